"""What is shown and written between batches, with a clock of the test's own."""

import json
import types

import numpy as np
import pytest

from keras_transformer.training import callbacks
from keras_transformer.training.callbacks import MetricsFile, SaveCheckpoint, Throughput


@pytest.fixture
def clock(monkeypatch):
    """Gives a list of the times that the callbacks are going to read."""
    times = []
    fake = types.SimpleNamespace(perf_counter=lambda: times.pop(0))
    monkeypatch.setattr(callbacks, "time", fake)
    return times


def test_throughput_is_real_target_symbols_by_the_seconds_within_batches(clock):
    clock += [10.0, 12.0, 20.0, 21.0]
    throughput = Throughput()
    throughput.on_epoch_begin(0)
    throughput.on_train_batch_begin(0)
    throughput.on_train_batch_end(0, logs := {"loss": 5.0, "target_tokens": 300.0})
    assert logs == {"loss": 5.0, "tokens_per_second": 150}
    throughput.on_train_batch_begin(1)
    throughput.on_train_batch_end(1, logs := {"loss": 4.0, "target_tokens": 600.0})
    assert logs["tokens_per_second"] == 200


def test_at_an_intervals_end_throughput_leaves_out_validation_and_counts_anew(clock):
    clock += [0.0, 2.0, 100.0, 101.0]
    throughput = Throughput()
    for expected in (100, 200):
        throughput.on_epoch_begin(0)
        throughput.on_train_batch_begin(0)
        throughput.on_train_batch_end(0, {"target_tokens": 200.0})
        logs = {"target_tokens": 200.0, "val_loss": 3.0, "val_target_tokens": 9.0}
        throughput.on_epoch_end(0, logs)
        assert logs == {"tokens_per_second": expected, "val_loss": 3.0}


def test_throughput_bears_a_model_without_its_metric(clock):
    clock += [0.0, 1.0]
    throughput = Throughput()
    throughput.on_epoch_begin(0)
    throughput.on_train_batch_begin(0)
    throughput.on_train_batch_end(0, logs := {"loss": 1.0})
    throughput.on_epoch_end(0, logs)
    throughput.on_epoch_end(0, None)
    assert logs == {"loss": 1.0}


def test_a_checkpoint_is_written_at_each_intervals_end_under_its_step():
    written = []
    stub = types.SimpleNamespace(save=lambda model, step: written.append((model, step)))
    callback = SaveCheckpoint(stub, step_after=lambda epoch: 100 * (epoch + 1))
    callback.set_model("the model")
    callback.on_epoch_end(0)
    callback.on_epoch_end(1, {"loss": 1.0})
    assert written == [("the model", 100), ("the model", 200)]


def test_the_metrics_file_gets_a_line_an_interval_after_those_that_are_there(tmp_path, clock):
    clock += [50.0, 51.25, 53.0]
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    callback = MetricsFile(path, step_after=lambda epoch: epoch + 2)
    callback.on_epoch_end(0, {"loss": np.float32(0.5), "tokens_per_second": 7})
    callback.on_epoch_end(1, None)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [
        {"step": 1},
        {"step": 2, "seconds": 1.2, "loss": 0.5, "tokens_per_second": 7.0},
        {"step": 3, "seconds": 3.0},
    ]
