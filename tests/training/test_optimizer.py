"""Optimizer, schedule, loss, and frozen parts of a model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_run
from gru_architecture import BagConfig

from keras_transformer.config import RecurrentConfig, TransformerConfig, UniversalConfig
from keras_transformer.errors import InputError
from keras_transformer.models import Transformer, build_model
from keras_transformer.objectives import SmoothedCrossEntropy
from keras_transformer.training.optimizer import compile_for_training, freeze


def compiled(**changes) -> Transformer:
    model = Transformer(tiny_run.model_config(model_dim=64))
    compile_for_training(model, tiny_run.training_config(**changes))
    return model


def test_optimizer_and_loss_are_the_papers():
    model = compiled(learning_rate=None, warmup_steps=4000, accumulation_steps=3, clip_norm=0.5)
    assert (model.accumulation_steps, model.clip_norm) == (3, 0.5)
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    optimizer.iterations.assign(15_999)
    np.testing.assert_allclose(optimizer.learning_rate, (64 * 16_000) ** -0.5, rtol=1e-6)
    assert isinstance(model.loss, SmoothedCrossEntropy)
    assert model.loss.smoothing == 0.1


def test_weight_decay_excludes_norms_and_biases():
    model = compiled(weight_decay=0.5, learning_rate=0.1, warmup_steps=1)
    before = {weight.path: weight.numpy() for weight in model.weights}
    nothing = np.zeros((2, 4), "int32")  # has no gradient: what is left is the decay
    model.train_on_batch({"source": nothing, "target": nothing}, nothing)
    kept = {path for path in before if path.endswith(("/gain", "/bias"))}
    assert 0 < len(kept) < len(before)
    for weight in model.weights:
        factor = 1.0 if weight.path in kept else 1 - 0.5 * 0.1
        np.testing.assert_allclose(weight, factor * before[weight.path], rtol=1e-5)


@pytest.mark.slow
def test_updates_have_no_variable_that_is_kept_on_the_host():
    """TensorFlow has int32 variables in the memory of the CPU, where XLA on a GPU cannot write."""
    training = tiny_run.training_config(precision="mixed_float16")
    model = build_model(tiny_run.model_config(), dtype=training.precision)
    compile_for_training(model, training, jit_compile=True)
    ids = np.full([2, 3], 5, "int32")
    step = tf.function(lambda: model.train_step(({"source": ids, "target": ids}, ids)))
    graph = step.get_concrete_function().graph
    assert any(each is model.bad_steps for each in graph.variables)
    assert {each.dtype for each in graph.variables} <= {tf.float32, tf.float64, tf.int64}


def test_schedules_share_their_peak_and_decay():
    def rates(**changes):
        model = compiled(warmup_steps=10, train_steps=100, **changes)
        schedule = model.optimizer._learning_rate
        return [float(schedule(step - 1)) for step in (5, 10, 55, 100)]

    peak = (64 * 10) ** -0.5
    expected = {
        "paper": [peak / 2, peak, peak * (10 / 55) ** 0.5, peak * (10 / 100) ** 0.5],
        "constant": [peak / 2, peak, peak, peak],
        "cosine": [peak / 2, peak, *(peak * (1 + np.cos(np.pi * n / 91)) / 2 for n in (45, 90))],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(rates(schedule=name, learning_rate=None), values, rtol=1e-4)
    with_peak = np.array(expected["paper"]) / peak * 0.5
    np.testing.assert_allclose(rates(learning_rate=0.5), with_peak, rtol=1e-4)


# Frozen parts

SIZES = dict(vocabulary_size=12, model_dim=8, dropout=0.0)
HEADS = SIZES | dict(num_heads=2, feed_forward_dim=8)
CASES = {
    "transformer": (TransformerConfig(**HEADS, num_layers=1), "encoder"),
    "learned positions": (
        TransformerConfig(**HEADS, num_layers=1, positions="learned", share_embeddings="none"),
        "embeddings,decoder",
    ),
    "recurrent": (RecurrentConfig(**SIZES, hidden_dim=8), "encoder,embeddings"),
    "universal": (UniversalConfig(**HEADS, num_steps=2), "decoder"),
    "a user's own": (BagConfig(**SIZES), "writer"),
}
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
BATCH = ({"source": SOURCE, "target": np.array([[2, 9, 4, 6], [2, 5, 0, 0]])}, SOURCE)


def is_in(path, model, parts):
    """Whether the names of layers say that a weight belongs to one of these parts."""
    tables = {"source_embedding", "target_embedding", "positions"}
    layers = {each for part in parts.split(",") for each in ({part}, tables)[part == "embeddings"]}
    return path.removeprefix(f"{model.name}/").split("/")[0] in layers


@pytest.mark.parametrize("case", CASES)
def test_frozen_parts_are_not_updated(case):
    config, parts = CASES[case]
    model = build_model(config)
    freeze(model, parts)
    compile_for_training(model, tiny_run.training_config(warmup_steps=1, weight_decay=0.1))
    before = model.get_weights()
    model.train_step(BATCH)
    frozen = [is_in(weight.path, model, parts) for weight in model.weights]
    assert {True, False} == set(frozen)
    for weight, value, is_frozen in zip(model.weights, before, frozen, strict=True):
        assert np.array_equal(weight, value) == is_frozen, weight.path


def test_impossible_options_are_rejected():
    with pytest.raises(InputError, match=r"freeze must be one of decoder, embed.* got 'head'"):
        freeze(build_model(CASES["recurrent"][0]), "encoder,head")
    with pytest.raises(InputError, match="leaves no weights to train; name fewer parts"):
        freeze(build_model(CASES["transformer"][0]), "encoder,decoder,embeddings")
