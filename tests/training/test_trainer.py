"""A tiny run: it learns, and interruptions leave no trace in its weights; what ends it early."""

import dataclasses
import errno
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tiny_run
from tiny_run import assert_same_checkpoint, contents, copy_of

from keras_transformer.data.batches import MAX_COMPILED_SHAPES, MAX_SHAPES, BatchPlan
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer, build_model
from keras_transformer.training import trainer
from keras_transformer.training.optimizer import compile_for_training
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.trainer import train

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
DEV = tiny_run.text(16, seed=1)


def metrics(run: RunDirectory) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


# What a run can carry from step to step beside the weights.
LIVELY = {"weight_decay": 0.01, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[RunDirectory, Transformer]:
    """Gives a run that went through its 12 steps at once, and the model that it returned."""
    run = tiny_run.create(tmp_path_factory.mktemp("undisturbed") / "run", **LIVELY)
    return run, train(run, tiny_run.corpus(), DEV, show=False)


# A run from its beginning to its end


def test_run_leaves_checkpoints_average_and_metrics(undisturbed):
    run, _ = undisturbed
    names = {path.name for path in (run.path / "checkpoints").iterdir()}
    expected = {f"{name}.safetensors" for name in ("step-4", "step-8", "step-12", "average")}
    assert names == expected | {"manifest.json"}
    assert {path.name for path in run.path.iterdir()} == {
        "checkpoints", "config.json", "lock", "metrics.jsonl", "source.model",
    }  # fmt: skip
    rows, dev_names = metrics(run), {"bleu", "val_loss"}
    assert [row["step"] for row in rows] == [3, 4, 6, 8, 9, 12]
    for row in rows:
        assert {"loss", "accuracy", "perplexity", "padding", "target_tokens"} < row.keys()
        assert dev_names & row.keys() == (dev_names if row["step"] % 4 == 0 else set())
        assert np.all(np.isfinite(list(row.values())))
    assert [row["target_tokens"] for row in rows] == sorted(row["target_tokens"] for row in rows)
    assert run.checkpoints().dev_metrics().keys() == {4, 8, 12}
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    assert rows[-1]["val_loss"] < rows[1]["val_loss"]


def test_returned_model_is_mean_of_last_checkpoints(undisturbed):
    run, model = undisturbed
    averaged, eighth, twelfth = (contents(run, name) for name in ("average", "step-8", "step-12"))
    weights = [name for name in averaged if name.startswith("weights/")]
    assert len(weights) == len(model.weights)
    for name in weights:
        mean = (eighth[name].astype(np.float64) + twelfth[name]) / 2
        np.testing.assert_array_equal(averaged[name], mean.astype(np.float32))
    for loaded, weight in zip(run.load_model().weights, model.weights, strict=True):
        np.testing.assert_array_equal(loaded, weight)
    seeds = [name for name in eighth if name.startswith("states/")]  # of dropout
    assert seeds and all(np.any(eighth[name] != twelfth[name]) for name in seeds)


def test_finished_run_only_makes_another_average(undisturbed, tmp_path):
    run = RunDirectory(shutil.copytree(undisturbed[0].path, tmp_path / "run"))
    train(run, tiny_run.corpus(), DEV, show=False)
    for name in ("step-12", "average"):
        assert_same_checkpoint(undisturbed[0], run, name)
    run.change(average_last=1)
    assert not run.is_finished()
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
        train(run, tiny_run.corpus(), DEV, show=False)
    train(run, tiny_run.corpus(), DEV, show=False)
    assert run.is_finished()
    assert metrics(run) == metrics(undisturbed[0])
    averaged, last = (contents(run, name) for name in ("average", "step-12"))
    for name in averaged:
        if name.startswith("weights/"):
            np.testing.assert_array_equal(averaged[name], last[name])
    run.change(average_best=1)
    assert not run.is_finished()


# Interruptions


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises: a shell lets its background jobs ignore it, and pytest may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_closed_terminal_ends_a_run_by_a_checkpoint(tmp_path, monkeypatch):
    class ClosedTerminal(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stdout", ClosedTerminal())
    run = tiny_run.create(tmp_path / "run")
    stopped = tiny_run.train_until_killed(run.path, 5, "SIGHUP", show=True)
    assert (stopped.signal.name, stopped.step) == ("SIGHUP", 5)
    assert run.checkpoints().steps() == [4, 5]


@pytest.mark.slow
def test_killed_and_stopped_run_ends_with_same_weights(undisturbed, ctrl_c, tmp_path):
    run = tiny_run.create(tmp_path / "run", **LIVELY)
    killed = subprocess.run(
        [sys.executable, tiny_run.__file__, str(run.path), "6"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert killed.returncode == -signal.SIGKILL
    assert run.checkpoints().steps() == [4]
    assert_same_checkpoint(undisturbed[0], run, "step-4")
    for name, batches, steps in (("SIGTERM", 6, [4, 6]), ("SIGINT", 11, [4, 8, 11])):
        stopped = tiny_run.train_until_killed(run.path, batches, name)
        assert (stopped.signal.name, stopped.step) == (name, batches)
        assert run.checkpoints().steps() == steps
    train(run, tiny_run.corpus(), DEV, show=False)
    assert run.checkpoints().steps() == [4, 8, 12]
    for name in ("step-8", "step-12", "average"):
        assert_same_checkpoint(undisturbed[0], run, name)
    assert run.checkpoints().dev_metrics() == undisturbed[0].checkpoints().dev_metrics()
    assert [row["step"] for row in metrics(run)] == [3, 4, 6, 8, 9, 11, 12]


def test_changed_text_or_dev_set_is_an_error(resumed):
    other = tiny_run.text(16, seed=4)
    with pytest.raises(InputError, match=r"the dev set has changed since .* step 8; restore it"):
        train(resumed, tiny_run.corpus(), other, show=False)
    resumed.write_batch_inputs(resumed.batch_inputs | {"text": "digest"})
    changed = dataclasses.replace(tiny_run.corpus(), text="another")
    with pytest.raises(InputError, match="the text to train on has changed"):
        train(resumed, changed, DEV, show=False)


def test_resumed_run_is_exact_keeps_its_shapes_and_can_be_extended(
    undisturbed, resumed, monkeypatch
):
    before = resumed.batch_inputs
    assert before["max_shapes"] == MAX_SHAPES
    monkeypatch.setattr(trainer, "MAX_SHAPES", 1)  # as XLA would have it
    resumed.change(train_steps=14, log_steps=5)
    train(resumed, tiny_run.corpus(), DEV, tensorboard=True, show=False)
    assert resumed.checkpoints().steps() == [4, 8, 12, 14]
    assert_same_checkpoint(undisturbed[0], resumed, "step-12")
    assert resumed.batch_inputs == before
    assert list((resumed.path / "tensorboard").rglob("events.out.tfevents.*"))


@pytest.fixture
def resumed(undisturbed, tmp_path) -> RunDirectory:
    return copy_of(undisturbed[0], tmp_path / "copy", until_step=8)


def test_float16_overflows_count_as_steps_and_resume_exactly(tmp_path, monkeypatch):
    def compile_with_huge_scale(model, *options):
        compile_for_training(model, *options)
        model.optimizer.dynamic_scale.assign(2.0**24)

    monkeypatch.setattr(trainer, "compile_for_training", compile_with_huge_scale)
    options = {"precision": "mixed_float16", "train_steps": 20, "checkpoint_steps": 10}
    run = tiny_run.create(tmp_path / "run", **options)
    model = train(run, tiny_run.corpus(), show=False)
    assert 0 < int(model.optimizer.iterations) < 20
    assert (model.compute_dtype, {weight.dtype for weight in model.weights}) == (
        "float16", {"float32"},
    )  # fmt: skip
    assert run.checkpoints().steps() == [10, 20]
    first, last = [row for row in metrics(run) if row["step"] in (10, 20)]
    assert last["loss"] < first["loss"]
    assert all(np.all(np.isfinite(value)) for value in contents(run, "step-20").values())
    stopped = copy_of(run, tmp_path / "stopped", until_step=10)
    train(stopped, tiny_run.corpus(), show=False)
    assert_same_checkpoint(run, stopped, "step-20")


# A run that starts from the weights of another one


def test_start_weights_are_validated_and_kept_at_a_learning_rate_of_0(tmp_path):
    run, vocabulary = RunDirectory(tmp_path / "run"), tiny_run.make_vocabulary()
    start = build_model(tiny_run.model_config(model_dim=8, feed_forward_dim=8))
    options = dict(learning_rate=0.0, freeze="encoder", train_steps=4)
    training = tiny_run.training_config(**options, validation_time_share=0.0)
    configs = RunConfigs(start.config, tiny_run.DATA, training)
    run.write(configs, vocabulary, vocabulary, start)
    (run.path / "config.json").unlink()  # as if the attempt was interrupted
    run.write(configs, vocabulary, vocabulary)
    assert run.checkpoints().steps() == []
    (run.path / "config.json").unlink()
    run.write(configs, vocabulary, vocabulary, start)
    train(run, tiny_run.corpus(), DEV, show=False)
    first, *_, last = metrics(run)
    assert (first["step"], first["target_tokens"], "loss" in first) == (0, 0, False)
    assert last["val_loss"] == pytest.approx(first["val_loss"], rel=1e-5)
    for which in ("4", "auto"):
        for found, expected in zip(run.load_model(which).weights, start.weights, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    checkpoints = run.checkpoints()  # the start may be the best, but is never the newest
    for step, bleu in ((0, 12.0), (4, 11.0)):
        checkpoints.write_metrics(step, {"bleu": bleu})
    assert (checkpoints.newest(5), checkpoints.best(1)) == ([4], [0])


# What ends a run


@pytest.mark.slow
def test_metric_that_stalls_stops_run_at_same_step_when_resumed(tmp_path):
    options = {"train_steps": 36, "stop_metric": "val_loss", "stop_patience": 2}
    options |= {"learning_rate": 0.0, "validation_time_share": 0.0}
    run = tiny_run.create(tmp_path / "run", **options)
    train(run, tiny_run.corpus(), DEV, show=False)
    assert run.checkpoints().steps() == [4, 8, 12]
    assert run.is_finished()
    resumed = copy_of(run, tmp_path / "resumed", until_step=8)
    assert not resumed.is_finished()
    for _ in range(2):  # the second time there is nothing to do
        train(resumed, tiny_run.corpus(), DEV, show=False)
        assert_same_checkpoint(run, resumed, "average")
    assert resumed.checkpoints().steps() == [4, 8, 12]


def test_run_whose_gradients_stay_non_finite_ends_with_advice(tmp_path):
    run = tiny_run.create(tmp_path, learning_rate=1e30, warmup_steps=1, train_steps=40)
    message = "gradient was not finite in .. updates in a row, up to step 30; .*point is step-28"
    with pytest.raises(InputError, match=message):
        train(run, tiny_run.corpus(), show=False)


# Compiled, and on several devices

TRAIN_WITH_XLA = """
import sys
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import train
train(RunDirectory(sys.argv[2]), tiny_run.corpus(300, longest=40), jit_compile=True)
"""


@pytest.mark.slow
def test_xla_compiles_each_of_few_shapes_once_before_training(tmp_path, run_python):
    corpus = tiny_run.corpus(300, longest=40)
    fine, few = (
        BatchPlan(corpus, batch_tokens=256, max_shapes=number)
        for number in (MAX_SHAPES, MAX_COMPILED_SHAPES)
    )
    assert len(fine.shapes) > 8 >= len(few.shapes) > 5
    options = dict(dropout=0.0, batch_tokens=256, train_steps=few.batches_per_epoch)
    compiled = tiny_run.create(tmp_path / "xla", **options)
    dump = tmp_path / "dump"
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
    program = "-c", TRAIN_WITH_XLA, FOLDER
    run_python(*program, compiled.path, XLA_FLAGS=flags)
    programs = [
        path.name
        for path in dump.iterdir()
        if re.search(r"inference__update_.*before_optimizations\.txt$", path.name)
    ]
    assert len(programs) == len(few.shapes)
    plain = tiny_run.create(tmp_path / "plain", **options)
    with pytest.MonkeyPatch.context() as patch:  # the same batches without XLA
        patch.setattr(trainer, "MAX_SHAPES", MAX_COMPILED_SHAPES)
        train(plain, corpus, jit_compile=False, show=False)
    expected, found = (run.load_model().get_weights() for run in (plain, compiled))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)
