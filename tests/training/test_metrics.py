"""Rows of metrics: what they cover, their file, and TensorBoard."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.objectives import (
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
)
from keras_transformer.training.metrics import (
    append_row,
    keep_rows,
    read_metrics,
    training_cost,
)
from keras_transformer.training.progress import TrainingLog
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs

# What a row covers


def make_log(tmp_path, model, dev_metric=None, step=0, **options):
    options = {"tensorboard": False, "show": False} | options
    training = tiny_run.training_config(train_steps=100_000)
    configs = RunConfigs(tiny_run.model_config(), tiny_run.DATA, training)
    return TrainingLog(RunDirectory(tmp_path), configs, model, dev_metric, step=step, **options)


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    log = EventAccumulator(str(folder))
    log.Reload()
    return {
        tag: [(each.step, float(tf.make_ndarray(each.tensor_proto))) for each in log.Tensors(tag)]
        for tag in log.Tags()["tensors"]
    }


def test_row_covers_batches_since_previous_row(tmp_path):
    config = {"num_layers": 1, "model_dim": 8, "feed_forward_dim": 8, "num_heads": 1}
    model = Transformer(TransformerConfig(**config, vocabulary_size=20, dropout=0.0))
    # A rate of 0 leaves the weights as they are, so that `evaluate` gives the same afterwards.
    model.compile(
        keras.optimizers.SGD(0.0),
        SmoothedCrossEntropy(0.1),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens(), Padding()],
    )
    generator = np.random.default_rng(0)
    ids = generator.integers(4, 20, (4, 4, 6))  # 4 batches; sentences have 1 to 6 tokens
    ids = np.where(np.arange(6) < generator.integers(1, 7, (4, 4, 1)), ids, 0).astype("int32")
    target = np.where(np.arange(6) == 0, 2, ids)
    data = tf.data.Dataset.from_tensor_slices(({"source": ids, "target": target}, ids))
    model.make_train_function()
    before = {"seconds": 60.0, "target_tokens": 5000}
    path = tmp_path / "metrics.jsonl"
    for step in (10, 20):  # of the run that is resumed, which was killed after step 20
        append_row(path, {"step": step, **before, "skipped_steps": 2})
    log, stream = make_log(tmp_path, model, step=10, tensorboard=True), iter(data)

    def validate():  # between two rows; changes neither
        model.evaluate(data, verbose=0)
        return {}

    for step in range(11, 15):
        log.begin_update()
        values = model.train_function(stream)
        log.end_update()
        if step in (12, 13, 14):
            log.write_row(step, values, validate)
    log.close()
    _, *rows = read_metrics(path)
    tokens, seconds = before["target_tokens"], before["seconds"]
    for first, row in zip([10, 12, 13], rows, strict=True):
        stretch = data.skip(first - 10).take(row["step"] - first)
        expected = model.evaluate(stretch, verbose=0, return_dict=True)
        tokens += expected["target_tokens"]
        assert row["target_tokens"] == tokens
        for name in ("loss", "perplexity", "accuracy", "padding"):
            assert row[name] == pytest.approx(expected[name], rel=1e-5), name
        assert row["seconds"] >= seconds and row["tokens_per_second"] > 0
        seconds = row["seconds"]
        assert (row["learning_rate"], row["skipped_steps"]) == (0.0, 2)
    losses = [(row["step"], pytest.approx(row["loss"], rel=1e-5)) for row in rows]
    assert scalars(tmp_path / "tensorboard")["loss"] == losses


# metrics.jsonl


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_rows_are_short_json_that_is_read_at_once(path):
    append_row(path, {"step": 1, "loss": 6.18446683883667, "target_tokens": 123456789})
    assert path.read_text() == '{"step": 1, "loss": 6.18447, "target_tokens": 123456789}\n'
    append_row(path, {"step": 2, "loss": math.nan, "perplexity": math.inf})
    json.loads(path.read_text().splitlines()[1], parse_constant=pytest.fail)
    first, second = read_metrics(path)
    assert first == {"step": 1, "loss": 6.18447, "target_tokens": 123456789}
    assert math.isnan(second["loss"])


@pytest.mark.parametrize(
    ("ending", "step", "left"),
    [
        ('{"step": 300, "loss": 1.5}\n', 300, [100, 200, 300]),
        ('{"step": 300, "loss": 1.5}\n', 250, [100, 200]),
        ('{"step": 300, "loss": 1.5}\n', 0, []),
        ('{"step": 300, "loss": 1.5}', 300, [100, 200]),  # cut short
        ("\x00\x00\n", 300, [100, 200]),
    ],
)
def test_rows_beyond_resumed_step_and_cut_lines_are_dropped(path, ending, step, left):
    path.write_text('{"step": 100, "loss": 1.5}\n{"step": 200, "loss": 1.5}\n' + ending)
    assert [row["step"] for row in keep_rows(path, step)] == left
    append_row(path, {"step": 500, "target_tokens": 3})
    assert [row["step"] for row in read_metrics(path)] == [*left, 500]
    assert training_cost(path, "step-499").get("step", 0) == max(left, default=0)
    assert training_cost(path, "average") == {"step": 500, "target_tokens": 3}


def test_unusable_file_is_reported(path):
    for line in ("nonsense", '{"loss": 1}', '"step"'):
        path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        with pytest.raises(InputError, match="damaged: line 2 is not a "):
            read_metrics(path)
    path.write_text('{"step"')
    with pytest.raises(InputError, match=r"no metrics in .* yet; give the"):
        read_metrics(path)
    with pytest.raises(InputError, match="cannot write"):
        append_row(path / "absent", {"step": 1})
