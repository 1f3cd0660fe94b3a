"""A tiny run: it learns, and interruptions leave no trace in its weights; what ends it early."""

import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from tiny_run import assert_same_checkpoint, contents

from keras_transformer.data import MAX_COMPILED_SHAPES, MAX_SHAPES, BatchPlan
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer, build_model
from keras_transformer.tasks import Metric, TranslationTask
from keras_transformer.training import (
    Checkpoints,
    RunConfigs,
    RunDirectory,
    compile_for_training,
    train,
    trainer,
)
from keras_transformer.training.checkpoints import by_name
from keras_transformer.training.distribution import Worker
from keras_transformer.training.trainer import (
    Due,
    StopSignals,
    Trainer,
    WeightAverage,
    is_finished,
    report_out_of_memory,
)

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
DEV = tiny_run.text(16, seed=1)


def metrics(run: RunDirectory) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


# What a run can carry from step to step beside the weights.
LIVELY = {
    "ema_decay": 0.8, "weight_decay": 0.01, "clip_norm": 1.0, "keep_best": 2, "validation_steps": 8
}  # fmt: skip


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
def test_run_leaves_checkpoints_average_and_metrics(undisturbed):
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
        assert ("bleu" in row) == ("val_loss" in row) == (row["step"] in (8, 12))
        assert ("bleu_2" in row) == ("bleu" in row)
        assert np.all(np.isfinite(list(row.values())))
    assert [row["target_tokens"] for row in rows] == sorted(row["target_tokens"] for row in rows)
    assert run.checkpoints().metrics.read().keys() == {8, 12}


def test_training_and_dev_loss_decrease(undisturbed):
    rows = metrics(undisturbed[0])
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    first, *_, last = [row["val_loss"] for row in rows if "val_loss" in row]
    assert last < first


def test_returned_model_is_mean_of_last_checkpoints(undisturbed):
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


def test_dropout_seeds_advance_between_checkpoints(undisturbed):
    fourth, eighth = (contents(undisturbed[0], name) for name in ("step-4", "step-8"))
    seeds = [name for name in fourth if name.startswith("seeds/")]
    assert seeds
    assert all(np.any(fourth[name] != eighth[name]) for name in seeds)


def test_finished_run_is_not_trained_again(undisturbed, tmp_path):
    run = RunDirectory(shutil.copytree(undisturbed[0].path, tmp_path / "run"))
    train(run, tiny_run.corpus(), show=False)
    assert metrics(run) == metrics(undisturbed[0])
    assert_same_checkpoint(undisturbed[0], run, "step-12")
    assert_same_checkpoint(undisturbed[0], run, "average")


def test_finished_run_makes_another_average(undisturbed, tmp_path):
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


def test_locked_run_is_rejected_and_unchanged(undisturbed, tmp_path):
    run = copy_of(undisturbed[0], tmp_path / "run", until_step=4)
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
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
def test_killed_and_stopped_run_ends_with_same_weights(undisturbed, tmp_path):
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


def test_resumed_run_is_exact_and_can_be_extended(undisturbed, tmp_path):
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


def test_damaged_newest_checkpoint_resumes_earlier_one(undisturbed, tmp_path, capsys):
    run = copy_of(undisturbed[0], tmp_path / "run", until_step=8)
    (run.path / "checkpoints" / "step-8.index").write_bytes(b"")
    train(run, tiny_run.corpus(), show=False)
    assert "resuming from step 4" in capsys.readouterr().out
    assert_same_checkpoint(undisturbed[0], run, "step-12")


# Settings


SHORT = {"train_steps": 10, "checkpoint_steps": 5}


def test_bfloat16_trains_with_float32_weights(tmp_path):
    run = tiny_run.create(tmp_path, precision="mixed_bfloat16", **SHORT)
    model = train(run, tiny_run.corpus(), show=False)
    assert model.compute_dtype == "bfloat16"
    assert {weight.dtype for weight in model.weights} == {"float32"}
    first, last = [row for row in metrics(run) if row["step"] in (5, 10)]
    assert last["loss"] < first["loss"]
    assert all(np.all(np.isfinite(value)) for value in contents(run, "step-10").values())


def test_float16_overflows_count_as_steps(tmp_path, monkeypatch):
    def compile_with_huge_scale(model, *options):
        compile_for_training(model, *options)
        model.optimizer.dynamic_scale.assign(2.0**24)

    monkeypatch.setattr(trainer, "compile_for_training", compile_with_huge_scale)
    run = tiny_run.create(
        tmp_path / "run", precision="mixed_float16", train_steps=20, checkpoint_steps=10
    )
    model = train(run, tiny_run.corpus(), show=False)
    assert 0 < int(model.optimizer.iterations) < 20
    assert run.checkpoints().steps() == [10, 20]
    first, last = [row for row in metrics(run) if row["step"] in (10, 20)]
    assert (first["step"], last["step"]) == (10, 20)
    assert last["loss"] < first["loss"]
    assert all(np.all(np.isfinite(value)) for value in contents(run, "step-20").values())
    stopped = copy_of(run, tmp_path / "stopped", until_step=10)
    train(stopped, tiny_run.corpus(), show=False)
    assert_same_checkpoint(run, stopped, "step-20")


# Runs that start from the weights of another one


def weights_of(run, name, group="weights"):
    return {
        each.removeprefix(f"{group}/"): value
        for each, value in contents(run, name).items()
        if each.startswith(f"{group}/")
    }


@pytest.fixture(scope="module")
def start():
    """A model with random weights."""
    config = tiny_run.model_config(model_dim=8, feed_forward_dim=8)
    model, random = build_model(config), np.random.default_rng(3)
    model.set_weights([random.normal(scale=0.4, size=w.shape) for w in model.get_weights()])
    return model


@pytest.fixture
def create(start, tmp_path):
    """Creates a run that starts from it, of 4 steps, and searches no dev set."""

    def create(**changes):
        changes = {"train_steps": 4, "validation_time_share": 0.0} | changes
        run, vocabulary = RunDirectory(tmp_path / "run"), tiny_run.make_vocabulary()
        configs = RunConfigs(start.config, tiny_run.DATA, tiny_run.training_config(**changes))
        run.write(configs, vocabulary, vocabulary, start)
        return run

    return create


def mean_loss(model):
    """Gives the mean loss of a target token of the dev set, a sentence at a time."""
    vocabulary = tiny_run.make_vocabulary()
    losses = []
    for text, translation in zip(*DEV, strict=True):
        (source,), (labels,) = vocabulary.encode([text]), vocabulary.encode([translation])
        inputs = {"source": np.array([[*source, 3]]), "target": np.array([[2, *labels]])}
        logits = np.asarray(model(inputs), np.float64)[0]
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        losses += [-row[id_] for row, id_ in zip(log_probs, [*labels, 3], strict=True)]
    return np.mean(losses)


def test_start_weights_and_moving_average(create, start):
    started = Trainer(create(ema_decay=0.9), tf.distribute.get_strategy())
    averages = started.weight_average.variables.values()
    for found in (started.model.weights, averages):
        for weight, expected in zip(found, start.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)
    assert (started.step, started.is_measured) == (0, False)


@pytest.mark.slow
def test_dev_loss_of_start_weights_is_logged(create, start):
    run = create(label_smoothing=0.0, learning_rate=0.0)
    model = train(run, tiny_run.corpus(), DEV, show=False)
    first, *_, last = metrics(run)
    assert (first["step"], first["target_tokens"], "loss" in first) == (0, 0, False)
    assert first["val_loss"] == pytest.approx(mean_loss(start), rel=1e-5)
    assert last["val_loss"] == first["val_loss"]  # at a learning rate of 0
    for found, expected in zip(model.get_weights(), start.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_moving_average_starts_without_frozen_weights(create, start):
    run = create(learning_rate=0.0, ema_decay=0.9, freeze="encoder")
    train(run, tiny_run.corpus(), show=False)
    averages = weights_of(run, "step-4", "average_weights")
    assert averages and not any(name.startswith("encoder") for name in averages)
    for name, value in averages.items():
        np.testing.assert_allclose(value, weights_of(run, "step-0")[name], rtol=1e-6)
    for found, expected in zip(run.load_model("4").weights, start.weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_lora_run_keeps_matrices_and_merges_them(create, start, tmp_path, ema_decay):
    options = {"checkpoint_steps": 2, "keep_checkpoints": 1, "average_last": 1}
    run = create(lora_rank=2, ema_decay=ema_decay, precision="mixed_bfloat16", **options)
    model = train(run, tiny_run.corpus(), show=False)
    assert run.checkpoints().steps() == [0, 4]
    found = weights_of(run, "step-4")
    assert found and all("lora_kernel_" in name for name in found)
    before = {path: np.array(value) for path, value in by_name(start, start.weights).items()}
    merged = run.load_model("4")
    after = by_name(merged, merged.weights)
    changed = {path for path in after if np.any(after[path] != before[path])}
    assert changed == {path for path in after if path.endswith("/kernel")}

    tuned = run.load_model("4", merge_lora=False)
    tuned.save_lora_weights(tmp_path / "lora")
    start_model = run.load_model("0")
    start_model.load_lora_weights(tmp_path / "lora")
    ids = np.array([[5, 6, 7, 3]])
    expected = run.load_model("average")({"source": ids, "target": ids})
    for each in (tuned, start_model):
        np.testing.assert_allclose(each({"source": ids, "target": ids}), expected, atol=1e-5)
    for weight, other in zip(model.weights, run.load_model("average").weights, strict=True):
        np.testing.assert_array_equal(weight, other)


@pytest.mark.slow
def test_resumed_lora_run_is_exact(create, tmp_path):
    run = create(lora_rank=2, checkpoint_steps=2)
    train(run, tiny_run.corpus(), show=False)
    stopped = copy_of(run, tmp_path / "stopped", until_step=2)
    train(stopped, tiny_run.corpus(), show=False)
    assert_same_checkpoint(run, stopped, "step-4")
    assert_same_checkpoint(run, stopped, "average")


@pytest.mark.slow
def test_run_without_checkpoint_starts_again(create):
    run = create(freeze="embeddings")
    train(run, tiny_run.corpus(), DEV, show=False)
    before, rows = weights_of(run, "step-4"), metrics(run)
    for path in (run.path / "checkpoints").glob("*[4e].[di]*"):  # of step 4, and the average
        path.unlink()
    assert run.checkpoints().steps() == [0]
    train(run, tiny_run.corpus(), DEV, show=False)
    after = weights_of(run, "step-4")
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert [row["step"] for row in metrics(run)] == [row["step"] for row in rows] == [0, 3, 4]


def test_start_may_be_best_but_is_never_newest(create, start):
    checkpoints = create().checkpoints()
    checkpoints.save_weights(start, "step-4")
    for step, bleu in ((0, 12.0), (4, 11.0)):
        checkpoints.metrics.write(step, {"bleu": bleu})
    assert (checkpoints.newest(5), checkpoints.best(1)) == ([4], [0])


def test_start_of_interrupted_attempt_is_dropped(create, start):
    run = create()
    (run.path / "config.json").unlink()
    vocabulary = tiny_run.make_vocabulary()
    configs = RunConfigs(start.config, tiny_run.DATA, tiny_run.training_config())
    run.write(configs, vocabulary, vocabulary)
    assert run.checkpoints().steps() == []


# What follows an update, and what ends a run


@pytest.mark.parametrize(
    ("changes", "checks", "logs", "validates", "saves"),
    [
        ({}, [10], [3, 4, 6, 8, 9, 10], [4, 8, 10], [4, 8, 10]),
        ({"validation_steps": 2}, [10], [2, 3, 4, 6, 8, 9, 10], [2, 4, 6, 8, 10], [4, 8, 10]),
        ({"validation_steps": 8}, [10], [3, 4, 6, 8, 9, 10], [8, 10], [4, 8, 10]),
        ({"max_bad_steps": 8, "log_steps": 100}, [4, 8], [4, 8, 10], [4, 8, 10], [4, 8, 10]),
        ({"max_bad_steps": 1, "checkpoint_steps": 7}, range(1, 11), [3, 6, 7, 9, 10], [7, 10],
         [7, 10]),
    ],
)  # fmt: skip
def test_what_is_due_follows_from_step_and_configuration(changes, checks, logs, validates, saves):
    training = tiny_run.training_config(train_steps=10, **changes)
    due = {step: Due.after(step, training) for step in range(1, 11)}
    for name, steps in zip(Due._fields, (checks, logs, validates, saves), strict=False):
        assert [step for step in due if getattr(due[step], name)] == list(steps), name
    assert {step for step in due if due[step].ask} == {8, *validates, *saves}


def test_extended_run_saves_at_multiples_again():
    training = tiny_run.training_config(train_steps=25)  # the run had ended at 14
    assert [step for step in range(15, 26) if Due.after(step, training).save] == [16, 20, 24, 25]


@pytest.mark.slow
def test_metric_that_stalls_stops_run_at_same_step_when_resumed(tmp_path):
    options = {"train_steps": 36, "stop_metric": "val_loss", "stop_patience": 2}
    options |= {"learning_rate": 0.0, "validation_time_share": 0.0}
    run = tiny_run.create(tmp_path / "run", **options)
    train(run, tiny_run.corpus(), DEV, show=False)
    assert run.checkpoints().steps() == [4, 8, 12]
    assert is_finished(run)
    resumed = copy_of(run, tmp_path / "resumed", until_step=8)
    assert not is_finished(resumed)
    for _ in range(2):  # the second time there is nothing to do
        train(resumed, tiny_run.corpus(), DEV, show=False)
        assert_same_checkpoint(run, resumed, "average")
    assert resumed.checkpoints().steps() == [4, 8, 12]


def test_gradients_that_stay_non_finite_end_run_with_advice(tmp_path):
    run = tiny_run.create(tmp_path, learning_rate=1e30, warmup_steps=1, max_bad_steps=4)
    with pytest.raises(InputError) as caught:
        train(run, tiny_run.corpus(), show=False)
    message = str(caught.value)
    assert re.match(r"no gradient was finite in the [45] updates up to step 6, and the", message)
    for part in ("last good checkpoint is step-4", "learning_rate", "clip_norm", "max_bad_steps"):
        assert part in message


def test_batch_without_room_for_a_sentence_is_reported(tmp_path):
    run = tiny_run.create(tmp_path, batch_tokens=3)
    with pytest.raises(InputError, match="batch_tokens 3 has no room for the longest sentence"):
        train(run, tiny_run.corpus(), show=False)


@pytest.fixture
def handlers():
    """Handles Ctrl-C as in a terminal, and checks that all handlers are restored."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    signal.signal(signal.SIGINT, found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_noted_and_a_second_ctrl_c_raises(handlers, number):
    with StopSignals() as signals:
        assert signals.received is None
        signal.raise_signal(number)
        assert signals.received == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signal_handlers_are_restored_after_error(handlers):
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError  # the fixture looks at the handlers


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and `&` in scripts do
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGINT)
        assert signals.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_train_without_handlers(handlers):
    def run():
        with StopSignals():
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


# A metric that stalls

BLEU = TranslationTask.metric


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("bleu", [1, 2, 3, 4], []),
        ("bleu", [3, 2, 1], [3]),
        ("bleu", [3, 2, 4, 2, 2], [5]),
        ("bleu", [3, 3, 3], [3]),  # the same is not better
        ("wer", [3, 2, 1], []),
        ("wer", [1, 2, 0.5, float("inf"), 3], [5]),
        ("val_accuracy", [0.3, 0.2, 0.1], [3]),
        ("val_loss", [3, 2, 1], []),
        ("val_loss", [1, 2, 0.5, 2, 3, 4], [5, 6]),
        ("val_perplexity", [1, float("nan"), float("nan")], [3]),
        ("val_loss", [float("nan"), float("nan"), 1.0], [2]),
    ],
)
def test_stalled_after_patience_checkpoints(tmp_path, name, values, expected):
    lower_is_better = Metric(name, higher_is_better=False)
    metric = lower_is_better if name == "wer" else TranslationTask().find_metric(name)
    checkpoints = Checkpoints(tmp_path)
    for step, value in enumerate(values, start=1):
        checkpoints.metrics.write(step, {name: value, "other": 1.0})
    steps = range(1, len(values) + 1)
    assert [step for step in steps if checkpoints.is_stalled(step, metric, 2)] == expected


def test_stall_counts_regular_checkpoints_up_to_the_step(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=100)
    # At 250 the run had ended before it was extended.
    for step, value in ((100, 3.0), (200, 2.0), (250, 1.0), (300, 1.5), (400, 4.0)):
        checkpoints.metrics.write(step, {"bleu": value})
    steps = (200, 250, 300, 400)
    stalled = [step for step in steps if checkpoints.is_stalled(step, BLEU, 2)]
    assert stalled == [300]


# Several workers


@pytest.fixture
def second_worker(tmp_path):
    """A trainer that takes itself for the second of two workers."""
    created = Trainer(tiny_run.create(tmp_path), tf.distribute.get_strategy())
    created.worker = Worker(1, 2)
    return created


@pytest.mark.parametrize("can_read", [True, False])
def test_workers_that_resume_differently_stop(second_worker, monkeypatch, can_read):
    monkeypatch.setattr(trainer, "value_of_chief", lambda strategy, value: 8)
    reports = []
    monkeypatch.setattr(trainer, "sum_over_workers", lambda strategy, x: reports.append(x) or x)

    def resume(model, **state):
        if not can_read:
            raise InputError("no checkpoint is whole")
        return 4

    monkeypatch.setattr(second_worker.checkpoints, "resume", resume)
    expected = "worker 1 read step 4, the first worker step 8" if can_read else "is whole"
    with pytest.raises(InputError, match=expected):
        second_worker._resume()
    assert reports == [1.0]  # the other workers learn of it, and stop too


def test_checkpoint_that_the_first_worker_cannot_write_ends_all(second_worker, monkeypatch):
    place = "keras_transformer.training.distribution"
    monkeypatch.setattr(f"{place}.worker_of", lambda strategy: Worker(1, 2))
    monkeypatch.setattr(f"{place}.sum_over_workers", lambda strategy, x: x + 1.0)
    with pytest.raises(InputError, match="another worker has failed"):
        second_worker.save()


def test_checkpoints_that_one_worker_cannot_average_end_all(second_worker, monkeypatch):
    def average(model, steps):
        raise InputError("step-4 is damaged")

    reports = []
    place = "keras_transformer.training.distribution"
    monkeypatch.setattr(f"{place}.worker_of", lambda strategy: Worker(1, 2))
    monkeypatch.setattr(f"{place}.sum_over_workers", lambda strategy, x: reports.append(x) or x)
    monkeypatch.setattr(second_worker.checkpoints, "to_average", lambda *counts: [4])
    monkeypatch.setattr(second_worker.checkpoints, "average", average)
    with pytest.raises(InputError, match="step-4 is damaged"):
        second_worker.average()
    assert reports == [1.0]


RESUME = """
import sys
from keras_transformer.data import MAX_COMPILED_SHAPES, MAX_SHAPES, BatchPlan
from keras_transformer.errors import InputError
from keras_transformer.training import RunDirectory, make_strategy
from keras_transformer.training.trainer import Trainer
strategy = make_strategy()
try:
    Trainer(RunDirectory(sys.argv[1]), strategy)
except InputError as error:
    print(error)
"""


# The disk of the first worker is full, which the others cannot see.
SAVE = """
import sys
sys.path.insert(0, sys.argv[2])
import tiny_run
from keras_transformer.errors import InputError
from keras_transformer.training import Checkpoints, RunDirectory, make_strategy, train
def fail(*arguments, **options):
    raise InputError("the disk is full")
Checkpoints.save = fail
try:
    train(RunDirectory(sys.argv[1]), tiny_run.corpus(), strategy=make_strategy(), show=False)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "steps", "expected"),
    [
        (RESUME, (12, 8), ("worker 0 read step 12, the first", "worker 1 read step 8, the first")),
        (SAVE, (8, 8), ("the disk is full", "another worker has failed")),
    ],
    ids=["resume", "save"],
)
def test_two_workers_stop_together(undisturbed, tmp_path, free_ports, program, steps, expected):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index, until_step in enumerate(steps):
        run = copy_of(undisturbed[0], tmp_path / str(index), until_step=until_step)
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = {"PYTHONPATH": str(ROOT), "TF_CONFIG": json.dumps(task)}
        command = [sys.executable, "-c", program, str(run.path), str(FOLDER)]
        options = {"env": os.environ | environment, "text": True}
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, **options))
    for worker, message in zip(workers, expected, strict=True):
        assert message in worker.communicate(timeout=600)[0]


# Lack of memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: so it is"),
        tf.errors.InternalError(None, None, "Failed to create cuBLAS handle: NOT_INITIALIZED"),
    ],
)
def test_out_of_memory_names_flags(error):
    with pytest.raises(InputError) as caught, report_out_of_memory():
        raise error
    for part in ("out of memory", "--accumulation_steps", "--batch_tokens in another --run_dir"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_failed_allocation_is_out_of_memory():
    expected = r"out of memory with a batch \(.*raise --accumulation_steps"
    with pytest.raises(InputError, match=expected), report_out_of_memory():
        tf.zeros([2**25, 2**25])


def test_other_errors_are_not_out_of_memory():
    for error in (tf.errors.InvalidArgumentError(None, None, "shapes"), KeyError("x")):
        with pytest.raises(type(error)), report_out_of_memory():
            raise error


# The moving average


@pytest.mark.parametrize("kind", ["one device", "mirrored"])
def test_weight_average_follows_weights(kind):
    strategy = tf.distribute.get_strategy()
    if kind == "mirrored":
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
        average = WeightAverage(model, 0.5)
    kernel = model.trainable_weights[0]
    expected = float(kernel.numpy()[0, 0])
    for step in range(1, 13):
        kernel.assign([[0.3 * step]])
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * 0.3 * step
    (value,) = average.variables.values()
    np.testing.assert_allclose(value.numpy()[0, 0], expected, rtol=1e-5)
    trained = kernel.numpy()[0, 0]
    assert abs(trained - expected) > 1e-3
    with pytest.raises(KeyError), average.applied():
        np.testing.assert_allclose(kernel.numpy()[0, 0], expected, rtol=1e-5)
        raise KeyError
    assert kernel.numpy()[0, 0] == trained


# Compiled, and on several devices

TRAIN_WITH_XLA = """
import sys
from keras_transformer.host import keep_programs
keep_programs(sys.argv[3])
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.training import RunDirectory, train
train(RunDirectory(sys.argv[2]), tiny_run.corpus(300, longest=40), jit_compile=True)
"""
TRAIN_ON_TWO_DEVICES = """
import pathlib
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.training import make_strategy, train

strategy = make_strategy("mirrored")
print("replicas", strategy.num_replicas_in_sync)
run = tiny_run.create(pathlib.Path(sys.argv[2]))
train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), strategy=strategy, show=False)
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
    dump, cache = tmp_path / "dump", tmp_path / "cache"
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
    program = "-c", TRAIN_WITH_XLA, FOLDER
    output = run_python(*program, compiled.path, cache, XLA_FLAGS=flags)
    lines = [f"Compiling {len(few.shapes)} programs: {n} done" for n in range(len(few.shapes) + 1)]
    assert output.splitlines()[: len(lines)] == lines
    programs = [
        path.name
        for path in dump.iterdir()
        if re.search(r"inference_update_.*before_optimizations\.txt$", path.name)
    ]
    assert len(programs) == len(few.shapes)
    plain = tiny_run.create(tmp_path / "plain", **options)
    with pytest.MonkeyPatch.context() as patch:  # the same batches without XLA
        patch.setattr(trainer, "MAX_SHAPES", MAX_COMPILED_SHAPES)
        train(plain, corpus, jit_compile=False, show=False)
    expected, found = (run.load_model().get_weights() for run in (plain, compiled))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)

    # Another process takes the programs from the cache, and compiles one again that is damaged.
    before = {path: path.stat().st_mtime_ns for path in cache.glob("*/*.pb")}
    assert len(before) == len(few.shapes)
    damaged = next(iter(before))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    again = tiny_run.create(tmp_path / "again", **options)
    run_python(*program, again.path, cache, XLA_FLAGS=flags)
    after = {path: path.stat().st_mtime_ns for path in cache.glob("*/*.pb")}
    assert [path for path in after if after[path] != before[path]] == [damaged]
    for one, other in zip(found, again.load_model().get_weights(), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.slow
def test_mirrored_run_trains_on_two_devices(tmp_path, run_python):
    output = run_python("-c", TRAIN_ON_TWO_DEVICES, FOLDER, tmp_path / "run")
    assert "replicas 2" in output
    names = {path.name for path in (tmp_path / "run" / "checkpoints").glob("*.index")}
    assert names == {"step-4.index", "step-8.index", "step-12.index", "average.index"}
