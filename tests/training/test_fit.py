"""Training a tiny run: it learns, and what interrupts it leaves no trace in its weights."""

import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run

from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.objectives import SmoothedCrossEntropy
from keras_transformer.training import (
    RunConfigs,
    RunDirectory,
    compile_for_training,
    is_finished,
    train,
    trainer,
)
from keras_transformer.training.trainer import intervals

ROOT = pathlib.Path(__file__).resolve().parents[2]


def contents(run: RunDirectory, checkpoint: str) -> dict[str, np.ndarray]:
    """Gives all that a checkpoint holds, by name."""
    stored = tf.train.load_checkpoint(str(run.path / "checkpoints" / checkpoint))
    names = set(stored.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return {name: stored.get_tensor(name) for name in names}


def assert_same_checkpoint(first: RunDirectory, second: RunDirectory, name: str) -> None:
    expected, found = contents(first, name), contents(second, name)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


def metrics(run: RunDirectory) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


# What a run can carry from step to step beside the weights.
LIVELY = {"ema_decay": 0.8, "weight_decay": 0.01, "clip_norm": 1.0, "keep_best": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[RunDirectory, Transformer]:
    """Gives a run that went through its 12 steps at once, and the model that it returned."""
    run = tiny_run.create(tmp_path_factory.mktemp("undisturbed") / "run", **LIVELY)
    devs = [tiny_run.text(16, seed=1), tiny_run.text(8, seed=2)]
    return run, train(run, tiny_run.corpus(), devs, show=False)


def copy_of(run: RunDirectory, path: pathlib.Path, *, until_step: int) -> RunDirectory:
    """Copies a run as it was just after it had written a checkpoint."""
    copy = RunDirectory(shutil.copytree(run.path, path))
    for file in (path / "checkpoints").iterdir():
        step = file.name.partition(".")[0].removeprefix("step-")
        if step == "average" or (step.isdecimal() and int(step) > until_step):
            file.unlink()
    return copy


# A run from its beginning to its end


@pytest.mark.slow
def test_a_run_leaves_checkpoints_their_average_and_a_line_of_metrics_for_each(undisturbed):
    run, _ = undisturbed
    names = {path.name for path in (run.path / "checkpoints").iterdir()}
    expected = itertools.product(
        ("step-4", "step-8", "step-12", "average"), (".data-00000-of-00001", ".index")
    )
    assert names == {name + end for name, end in expected} | {"checkpoint_metrics.json"}
    assert {path.name for path in run.path.iterdir()} == {
        "checkpoints", "config.json", "lock", "metrics.jsonl", "source.model",
    }  # fmt: skip
    rows = metrics(run)
    assert [row["step"] for row in rows] == [3, 4, 6, 8, 9, 12]
    for row in rows:
        assert {"loss", "accuracy", "perplexity", "padding", "target_tokens"} < row.keys()
        assert ("bleu" in row) == ("val_loss" in row) == (row["step"] % 4 == 0)
        assert ("bleu_2" in row) == ("bleu" in row)
        assert np.all(np.isfinite(list(row.values())))
    assert [row["target_tokens"] for row in rows] == sorted(row["target_tokens"] for row in rows)


def test_the_loss_goes_down_on_pairs_seen_and_unseen(undisturbed):
    rows = metrics(undisturbed[0])
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    first, *_, last = [row["val_loss"] for row in rows if "val_loss" in row]
    assert last < first


def test_the_average_is_the_mean_of_the_last_checkpoints_and_what_is_returned(undisturbed):
    run, model = undisturbed
    averaged, eighth, twelfth = (contents(run, name) for name in ("average", "step-8", "step-12"))
    weights = [name for name in averaged if name.startswith("weights/")]
    assert len(weights) == len(model.weights)
    for name in weights:
        moving = f"average_{name}"
        assert np.any(eighth[moving] != eighth[name])
        mean = (eighth[moving].astype(np.float64) + twelfth[moving]) / 2
        np.testing.assert_array_equal(averaged[name], mean.astype(np.float32))
    for loaded, weight in zip(run.load_model().weights, model.weights, strict=True):
        np.testing.assert_array_equal(loaded, weight)


def test_dropout_is_on_and_its_random_numbers_go_on(undisturbed):
    fourth, eighth = (contents(undisturbed[0], name) for name in ("step-4", "step-8"))
    seeds = [name for name in fourth if name.startswith("seeds/")]
    assert seeds
    assert all(np.any(fourth[name] != eighth[name]) for name in seeds)


def test_a_run_that_is_done_is_not_trained_any_further(undisturbed, tmp_path):
    run = RunDirectory(shutil.copytree(undisturbed[0].path, tmp_path / "run"))
    train(run, tiny_run.corpus(), show=False)
    assert metrics(run) == metrics(undisturbed[0])
    assert_same_checkpoint(undisturbed[0], run, "step-12")
    assert_same_checkpoint(undisturbed[0], run, "average")


def test_a_finished_run_asked_for_another_average_makes_it_and_trains_no_further(
    undisturbed, tmp_path
):
    run = RunDirectory(shutil.copytree(undisturbed[0].path, tmp_path / "run"))
    configs = run.configs()
    training = configs.training.replace(average_last=1)
    run.continue_with(configs._replace(training=training))
    assert not is_finished(run)
    train(run, tiny_run.corpus(), show=False)
    assert is_finished(run)
    assert metrics(run) == metrics(undisturbed[0])
    averaged, last = (contents(run, name) for name in ("average", "step-12"))
    for name in averaged:
        if name.startswith("weights/"):
            np.testing.assert_array_equal(averaged[name], last[f"average_{name}"])


def test_a_run_that_another_process_trains_is_refused_and_left_alone(undisturbed, tmp_path):
    run = copy_of(undisturbed[0], tmp_path / "run", until_step=4)
    with run.lock(), pytest.raises(InputError, match="another process trains the run"):
        train(run, tiny_run.corpus(), show=False)
    assert run.checkpoints().steps() == [4]
    assert metrics(run) == metrics(undisturbed[0])
    with run.lock():  # it is free again
        pass


# Interruptions


def train_until(run: RunDirectory, batches: int, name: str) -> subprocess.CompletedProcess:
    """Trains in another process, which sends itself a signal after so many batches."""
    return subprocess.run(
        [sys.executable, tiny_run.__file__, str(run.path), str(batches), name],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        # A shell lets its background jobs ignore Ctrl-C, and pytest may be one.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.slow
def test_a_run_killed_and_stopped_again_and_again_ends_with_the_same_weights(undisturbed, tmp_path):
    run = tiny_run.create(tmp_path / "run", **LIVELY)
    killed = train_until(run, 6, "SIGKILL")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run.checkpoints().steps() == [4]
    assert_same_checkpoint(undisturbed[0], run, "step-4")
    stopped = train_until(run, 6, "SIGTERM")
    assert (stopped.returncode, stopped.stdout) == (0, "SIGTERM 6\n"), stopped.stderr
    assert run.checkpoints().steps() == [4, 6]
    stopped = train_until(run, 11, "SIGINT")
    assert (stopped.returncode, stopped.stdout) == (0, "SIGINT 11\n"), stopped.stderr
    assert run.checkpoints().steps() == [4, 8, 11]
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    assert run.checkpoints().steps() == [4, 8, 12]
    for name in ("step-8", "step-12", "average"):
        assert_same_checkpoint(undisturbed[0], run, name)
    scores = "checkpoints/checkpoint_metrics.json"
    assert (run.path / scores).read_text() == (undisturbed[0].path / scores).read_text()
    assert [row["step"] for row in metrics(run)] == [3, 4, 6, 8, 9, 11, 12]


def test_a_stopped_run_goes_on_as_if_nothing_had_been_and_may_be_made_longer(undisturbed, tmp_path):
    run = copy_of(undisturbed[0], tmp_path / "run", until_step=8)
    longer = tiny_run.training_config(train_steps=14, **LIVELY)
    run.continue_with(RunConfigs(tiny_run.model_config(), tiny_run.DATA, longer))
    train(run, tiny_run.corpus(), tensorboard=True, show=False)
    assert run.checkpoints().steps() == [4, 8, 12, 14]
    assert_same_checkpoint(undisturbed[0], run, "step-12")
    last, averaged = contents(run, "step-14"), contents(run, "average")
    name = "weights/source_embedding.Stable/.ATTRIBUTES/VARIABLE_VALUE"
    mean = (
        contents(run, "step-12")[f"average_{name}"].astype(np.float64) + last[f"average_{name}"]
    ) / 2
    np.testing.assert_array_equal(averaged[name], mean.astype(np.float32))
    assert list((run.path / "tensorboard").rglob("events.out.tfevents.*"))


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    undisturbed, tmp_path, capsys
):
    run = copy_of(undisturbed[0], tmp_path / "run", until_step=8)
    (run.path / "checkpoints" / "step-8.index").write_bytes(b"")
    train(run, tiny_run.corpus(), show=False)
    assert "going on from step 4" in capsys.readouterr().out
    assert_same_checkpoint(undisturbed[0], run, "step-12")


@pytest.mark.parametrize(
    ("step", "every", "end", "calls"),
    [
        (0, 4, 12, [(0, 3, 4)]),
        (8, 4, 12, [(2, 3, 4)]),
        (12, 4, 12, []),
        (16, 4, 12, []),
        (0, 4, 14, [(0, 3, 4), (3, 4, 2)]),
        (0, 100, 14, [(0, 1, 14)]),
        (0, 1, 3, [(0, 3, 1)]),
        # A run that ended between two multiples goes on to the next one first.
        (14, 4, 24, [(3, 4, 2), (4, 6, 4)]),
        (14, 4, 15, [(3, 4, 1)]),
        (14, 4, 25, [(3, 4, 2), (4, 6, 4), (6, 7, 1)]),
    ],
)
def test_checkpoints_come_at_multiples_and_at_the_end(step, every, end, calls):
    training = tiny_run.training_config(checkpoint_steps=every, train_steps=end)
    assert intervals(step, training) == calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("validation_steps", "checkpoints", "validations"),
    [(2, [4, 8, 10], [2, 4, 6, 8, 10]), (8, [4, 8, 10], [8, 10])],
)
def test_validations_may_come_more_or_less_often_than_checkpoints(
    tmp_path, validation_steps, checkpoints, validations
):
    run = tiny_run.create(
        tmp_path / "run", num_layers=1, train_steps=10, validation_steps=validation_steps,
        log_steps=100, stop_metric="val_loss",
    )  # fmt: skip
    train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), show=False)
    assert run.checkpoints().steps() == checkpoints
    rows = {row["step"]: row for row in metrics(run)}
    assert [step for step, row in rows.items() if "val_loss" in row] == validations
    assert [step for step, row in rows.items() if "bleu" in row] == validations
    kept = run.checkpoints().metrics.read()
    assert list(kept) == [step for step in checkpoints if step in validations]
    for step, values in kept.items():
        assert values["val_loss"] == pytest.approx(rows[step]["val_loss"], rel=1e-4)


# Settings


SHORT = {"num_layers": 1, "train_steps": 10, "checkpoint_steps": 5}


def test_bfloat16_trains_with_a_finite_loss_and_float32_weights(tmp_path):
    run = tiny_run.create(tmp_path, precision="mixed_bfloat16", **SHORT)
    model = train(run, tiny_run.corpus(), show=False)
    assert model.compute_dtype == "bfloat16"
    assert {weight.dtype for weight in model.weights} == {"float32"}
    first, last = [row for row in metrics(run) if row["step"] in (5, 10)]
    assert last["loss"] < first["loss"]
    assert all(np.all(np.isfinite(value)) for value in contents(run, "step-10").values())


def test_float16_trains_and_batches_whose_gradients_overflow_count_as_steps(tmp_path, monkeypatch):
    def compile_with_huge_scale(model, *options):
        compile_for_training(model, *options)
        model.optimizer.dynamic_scale.assign(2.0**24)

    monkeypatch.setattr(trainer, "compile_for_training", compile_with_huge_scale)
    run = tiny_run.create(tmp_path / "run", precision="mixed_float16", **SHORT)
    model = train(run, tiny_run.corpus(), show=False)
    assert 0 < int(model.optimizer.iterations) < 10
    assert run.checkpoints().steps() == [5, 10]
    first, last = [row for row in metrics(run) if row["step"] in (5, 10)]
    assert (first["step"], last["step"]) == (5, 10)
    assert last["loss"] < first["loss"]
    assert all(np.all(np.isfinite(value)) for value in contents(run, "step-10").values())
    stopped = copy_of(run, tmp_path / "stopped", until_step=5)
    train(stopped, tiny_run.corpus(), show=False)
    assert_same_checkpoint(run, stopped, "step-10")


def compiled(**changes) -> Transformer:
    model = Transformer(tiny_run.model_config(num_layers=1, model_dim=64))
    compile_for_training(model, tiny_run.training_config(**changes))
    return model


def test_the_optimizer_and_loss_are_those_of_the_paper():
    model = compiled(learning_rate=None, warmup_steps=4000)
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    optimizer.iterations.assign(15_999)
    np.testing.assert_allclose(optimizer.learning_rate, (64 * 16_000) ** -0.5, rtol=1e-6)
    assert isinstance(model.loss, SmoothedCrossEntropy)
    assert model.loss.smoothing == 0.1


def test_a_learning_rate_is_the_one_at_the_end_of_warm_up():
    optimizer = compiled(learning_rate=0.01, warmup_steps=50).optimizer
    optimizer.iterations.assign(49)
    np.testing.assert_allclose(optimizer.learning_rate, 0.01, rtol=1e-6)


def test_weight_decay_shrinks_all_but_norms_and_biases():
    model = compiled(weight_decay=0.5, learning_rate=0.1, warmup_steps=1)
    before = {weight.path: weight.numpy() for weight in model.weights}
    nothing = np.zeros((2, 4), "int32")  # has no gradient: what is left is the decay
    model.train_on_batch({"source": nothing, "target": nothing}, nothing)
    kept = {path for path in before if path.endswith(("/gain", "/bias"))}
    assert 0 < len(kept) < len(before)
    for weight in model.weights:
        factor = 1.0 if weight.path in kept else 1 - 0.5 * 0.1
        np.testing.assert_allclose(weight, factor * before[weight.path], rtol=1e-5)


def test_accumulation_and_clipping_reach_the_model():
    model = compiled(accumulation_steps=3, clip_norm=0.5)
    assert (model.accumulation_steps, model.clip_norm) == (3, 0.5)
