"""Runs that start from the weights of another one."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tiny_run

from keras_transformer.models import build_model
from keras_transformer.training import RunConfigs, RunDirectory, train
from keras_transformer.training.trainer import Trainer

DEV = tiny_run.text(16, seed=1)


def weights_of(run, name, group="weights"):
    stored = tf.train.load_checkpoint(str(run.path / "checkpoints" / name))
    names = stored.get_variable_to_shape_map()
    return {
        each.removeprefix(f"{group}/"): stored.get_tensor(each)
        for each in names
        if each.startswith(f"{group}/")
    }


def rows_of(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def start():
    """A model with random weights."""
    config = tiny_run.model_config(num_layers=1, model_dim=8, feed_forward_dim=8)
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
        run.create(configs, vocabulary, vocabulary, start)
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


def test_training_begins_with_these_weights_and_their_moving_average(create, start):
    trainer = Trainer(create(ema_decay=0.9), tf.distribute.get_strategy(), False, show=False)
    averages = trainer.weight_average.variables.values()
    for found in (trainer.model.weights, averages):
        for weight, expected in zip(found, start.weights, strict=True):
            np.testing.assert_array_equal(weight, expected)
    assert (trainer.counter.step, trainer.is_measured) == (0, False)


@pytest.mark.slow
def test_the_loss_before_the_first_update_is_that_of_the_weights(create, start):
    run = create(label_smoothing=0.0, learning_rate=0.0)
    model = train(run, tiny_run.corpus(), DEV, show=False)
    first, *_, last = rows_of(run)
    assert (first["step"], first["target_tokens"], "loss" in first) == (0, 0, False)
    assert first["val_loss"] == pytest.approx(mean_loss(start), rel=1e-5)
    assert last["val_loss"] == first["val_loss"]  # at a learning rate of 0
    for found, expected in zip(model.get_weights(), start.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_moving_average_begins_with_these_weights_and_lacks_those_that_are_frozen(create, start):
    run = create(learning_rate=0.0, ema_decay=0.9, freeze="encoder")
    train(run, tiny_run.corpus(), show=False)
    averages = weights_of(run, "step-4", "average_weights")
    assert averages and not any(name.startswith("encoder") for name in averages)
    for name, value in averages.items():
        np.testing.assert_allclose(value, weights_of(run, "step-0")[name], rtol=1e-6)
    for found, expected in zip(run.load_model("4").weights, start.weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_a_run_that_is_stopped_before_its_first_checkpoint_starts_once_more(create):
    run = create(freeze="embeddings")
    train(run, tiny_run.corpus(), DEV, show=False)
    before, rows = weights_of(run, "step-4"), rows_of(run)
    for path in (run.path / "checkpoints").glob("*[4e].[di]*"):  # of step 4, and the average
        path.unlink()
    assert run.checkpoints().steps() == [0]
    train(run, tiny_run.corpus(), DEV, show=False)
    after = weights_of(run, "step-4")
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert [row["step"] for row in rows_of(run)] == [row["step"] for row in rows] == [0, 3, 4]


def test_the_newest_are_checkpoints_that_were_trained_and_the_best_may_be_the_start(create, start):
    checkpoints = create().checkpoints()
    checkpoints.save_weights(start, "step-4")
    for step, bleu in ((0, 12.0), (4, 11.0)):
        checkpoints.metrics.write(step, {"bleu": bleu})
    assert (checkpoints.newest(5), checkpoints.best(1)) == ([4], [0])


def test_weights_that_an_interrupted_attempt_has_left_are_not_taken(create, start):
    run = create()
    (run.path / "config.json").unlink()
    vocabulary = tiny_run.make_vocabulary()
    configs = RunConfigs(start.config, tiny_run.DATA, tiny_run.training_config())
    run.create(configs, vocabulary, vocabulary)
    assert run.checkpoints().steps() == []
