"""What a row of metrics covers, in a real `fit` and with a clock of the test's own."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.models import Transformer
from keras_transformer.objectives import (
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
)
from keras_transformer.tasks import TranslationTask
from keras_transformer.training import metrics
from keras_transformer.training.flops import TrainingFlops
from keras_transformer.training.metrics import MetricLogger, StepCounter
from keras_transformer.training.trainer import LazyLogs

BATCH = {
    "loss": 3.0, "perplexity": 20.0, "accuracy": 0.25, "padding": 0.1, "target_tokens": 100.0,
    "flops": 7e9, "padded_flops": 8e9,
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """Gives an object whose `now` is the time that the callback reads."""
    fake = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(metrics, "time", types.SimpleNamespace(perf_counter=lambda: fake.now))
    return fake


class Training:
    """Calls the callback as `fit` does, with a model that has no more than it reads."""

    def __init__(self, clock, log_steps=2, step=0, last=None, rate=None):
        self.clock, self.counter = clock, StepCounter(step)
        self.measured = MetricLogger(self.counter, log_steps, last, [TranslationTask.metric], rate)
        self.rows, self.resets = [], 0
        self.measured.listeners.append(self.rows.append)
        self.bad_steps = tf.Variable(0)
        self.optimizer = types.SimpleNamespace(learning_rate=0.5)
        self.measured.set_model(self)

    def reset_metrics(self):
        self.resets += 1

    def batch(self, seconds=1.0, **logs):
        self.measured.on_train_batch_begin(0)
        self.clock.now += seconds
        self.counter.on_train_batch_end(0)
        self.measured.on_train_batch_end(0, BATCH | logs)

    def end_of_epoch(self, **logs):
        self.measured.on_epoch_end(0, BATCH | logs)


def batches(count: int, rows: int = 4, length: int = 6) -> tf.data.Dataset:
    """Makes batches of random tokens whose sentences have very different lengths."""
    generator = np.random.default_rng(0)
    ids = generator.integers(4, 20, (count, rows, length))
    lengths = generator.integers(1, length + 1, (count, rows, 1))
    ids = np.where(np.arange(length) < lengths, ids, 0).astype("int32")
    return tf.data.Dataset.from_tensor_slices(({"source": ids, "target": ids}, ids))


def test_a_row_has_the_values_of_the_batches_since_the_row_before_and_no_others():
    config = {"num_layers": 1, "model_dim": 8, "feed_forward_dim": 8, "num_heads": 1}
    model = Transformer(TransformerConfig(**config, vocabulary_size=20, dropout=0.0))
    metrics = [TokenAccuracy(), Perplexity(), TargetTokens(), Padding()]
    # A rate of 0 leaves the weights as they are, so that `evaluate` gives the same afterwards.
    model.flops_metric = TrainingFlops(model)
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.1), metrics=metrics)
    data, counter, rows = batches(10), StepCounter(), []
    measured = MetricLogger(counter, log_steps=2)
    measured.listeners.append(rows.append)
    callbacks = LazyLogs([counter, measured], model)
    model.fit(
        data,
        epochs=2,
        steps_per_epoch=5,
        validation_data=data.take(1),
        callbacks=callbacks,
        verbose=0,
        shuffle=False,
    )
    assert [row["step"] for row in rows] == [2, 4, 5, 6, 8, 10]
    totals = dict.fromkeys(("target_tokens", "flops", "padded_flops"), 0)
    for first, row in zip([0, 2, 4, 5, 6, 8], rows, strict=True):
        stretch = data.skip(first).take(row["step"] - first)
        expected = model.evaluate(stretch, verbose=0, return_dict=True)
        for name in totals:
            totals[name] += expected[name]
            assert row[name] == totals[name], name
        for name in ("loss", "perplexity", "accuracy", "padding"):
            assert row[name] == pytest.approx(expected[name], rel=1e-5), name
    expected = model.evaluate(data.take(1), verbose=0, return_dict=True)
    assert [row["step"] for row in rows if "val_loss" in row] == [5, 10]
    for name in ("loss", "perplexity", "accuracy"):
        assert rows[2][f"val_{name}"] == pytest.approx(expected[name], rel=1e-5)


def test_a_row_has_the_time_and_the_speed_of_its_batches(clock):
    training = Training(clock)
    for seconds in (3.0, 1.0, 0.5):
        training.batch(seconds, target_tokens=200.0)
    assert training.rows == [
        {
            "step": 2, "seconds": 4.0, "loss": 3.0, "perplexity": 20.0, "accuracy": 0.25,
            "padding": 0.1, "learning_rate": 0.5, "tokens_per_second": 50.0,
            "target_tokens": 200, "flops": 7 * 10**9, "padded_flops": 8 * 10**9,
            "skipped_steps": 0,
        }
    ]  # fmt: skip


def test_the_metrics_are_reset_only_when_the_next_batch_begins(clock):
    """Not before: Keras reads them once more at the end of an epoch."""
    training = Training(clock)
    training.batch()
    training.batch()
    assert training.resets == 0
    training.batch()
    assert training.resets == 1


def test_validation_bleu_and_checkpoints_take_no_time_of_training(clock):
    training = Training(clock, log_steps=3)
    training.batch(2.0)
    training.batch(2.0)
    clock.now += 1000
    training.end_of_epoch()
    clock.now += 1000
    training.batch(1.0)
    training.end_of_epoch()
    assert [row["seconds"] for row in training.rows] == [4.0, 5.0]
    assert [row["tokens_per_second"] for row in training.rows] == [25.0, 100.0]


@pytest.mark.parametrize("log_steps", [2, 4, 100])
def test_a_checkpoint_has_one_row_with_the_dev_set_in_it(clock, log_steps):
    training = Training(clock, log_steps)
    for _ in range(4):
        training.batch()
    training.end_of_epoch(
        val_loss=2.0, val_perplexity=9.0, val_accuracy=0.5, bleu=11.0,
        val_target_tokens=7.0, val_padding=0.0,
    )  # fmt: skip
    *_, last = training.rows
    assert [row["step"] for row in training.rows] == ([2, 4] if log_steps == 2 else [4])
    assert {name: last[name] for name in last if name.startswith("val_") or name == "bleu"} == {
        "val_loss": 2.0, "val_perplexity": 9.0, "val_accuracy": 0.5, "bleu": 11.0,
    }  # fmt: skip


def test_a_resumed_run_goes_on_counting_time_tokens_operations_and_skipped_updates(clock):
    last = {
        "step": 10, "seconds": 60.0, "target_tokens": 5000, "flops": 10**15,
        "padded_flops": 2 * 10**15, "sustained_flops": 6e14, "skipped_steps": 2,
    }  # fmt: skip
    training = Training(clock, step=10, last=last, rate=1e13)
    training.bad_steps.assign(1)
    training.batch()
    training.batch(target_tokens=300.0)
    training.end_of_epoch()
    row = training.rows[0]
    assert (row["step"], row["seconds"], row["target_tokens"]) == (12, 62.0, 5300)
    assert (row["flops"], row["padded_flops"]) == (10**15 + 7 * 10**9, 2 * 10**15 + 8 * 10**9)
    assert row["sustained_flops"] == 6e14 + 2 * 1e13
    assert row["skipped_steps"] == 3


def test_a_look_between_two_rows_changes_neither(clock):
    training = Training(clock)
    training.batch(target_tokens=40.0)
    assert training.measured.row_so_far()["tokens_per_second"] == 40.0
    training.batch(target_tokens=90.0)
    training.end_of_epoch()
    assert [row["tokens_per_second"] for row in training.rows] == [45.0]


def test_a_look_at_a_row_that_is_due_is_that_row(clock):
    training = Training(clock)
    training.batch(target_tokens=40.0)
    training.batch(target_tokens=90.0)
    looked = training.measured.row_so_far()
    training.end_of_epoch()
    assert looked["tokens_per_second"] == training.rows[0]["tokens_per_second"] == 45.0


@pytest.mark.parametrize(("batches", "steps"), [(1, [1]), (2, [2]), (3, [2, 3])])
def test_a_run_that_stops_within_an_epoch_leaves_a_row_of_its_last_batches(clock, batches, steps):
    training = Training(clock)
    for _ in range(batches):
        training.batch(target_tokens=100.0)
    training.measured.finish()
    training.measured.finish()
    assert [row["step"] for row in training.rows] == steps
    assert training.rows[-1]["seconds"] == batches


def test_every_listener_has_a_row_of_its_own(clock):
    training = Training(clock)
    others = []
    training.measured.listeners.insert(0, lambda row: row.clear())
    training.measured.listeners.append(others.append)
    training.batch()
    training.batch()
    training.end_of_epoch()
    assert len(others[0]) == len(training.rows[0]) == 12


def test_a_stopped_epoch_without_a_new_batch_gives_no_row(clock):
    training = Training(clock)
    training.end_of_epoch()
    assert training.rows == []


def test_callbacks_of_a_batch_get_tensors_and_those_of_an_epoch_numbers():
    """Where Keras's own list turned the tensors into numbers, the device was waited for."""
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])

        def on_test_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])

        def on_epoch_end(self, epoch, logs=None):
            seen.append(logs["loss"])

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1), "float32")
    model.fit(x, x, callbacks=LazyLogs([Seen()], model), validation_data=(x, x), verbose=0)
    assert [tf.is_tensor(value) for value in seen] == [True, True, False]
    assert isinstance(seen[2], float)
