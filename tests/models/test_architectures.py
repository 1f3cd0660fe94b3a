"""What holds of every architecture in every variant, from arithmetic to a search: one table.

The cases are in model_cases.py, runs and exports of them in test_architecture_runs.py.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
import recurrent_oracle
import tensorflow as tf
import transformer_oracle
from keras import ops
from model_cases import (
    CONFIGS,
    INPUTS,
    SOURCE,
    TARGET,
    VARIANTS,
    logits_of,
    model_of,
    random_model,
    steps_of,
)

from keras_transformer.config import architectures
from keras_transformer.models import Ensemble
from keras_transformer.search import beam_search, kv_cache_capacities

every_case = pytest.mark.parametrize("name", CONFIGS)
variants = pytest.mark.parametrize("name", VARIANTS)


def check_coverage(model, state):
    """Checks that a state after all steps has the sum of attention, if the model has attention."""
    if not hasattr(model, "attention"):
        assert state.coverage is None
        return
    is_hidden = np.asarray(getattr(model, "visible_source", np.array)(SOURCE)) == 0
    expected = np.sum(model.attention(INPUTS), axis=1) + is_hidden
    np.testing.assert_allclose(state.coverage[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_configs_cover_every_architecture():
    own = {
        config
        for config in architectures().values()
        if config.__module__.startswith("keras_transformer.")
    }
    assert own <= {type(config) for config in CONFIGS.values()}


# The full pass and the steps


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bag"])
def test_logits_and_attention_equal_the_oracle_in_float64(name):
    model = model_of(name, "float64")
    # A halting unit computes in float32, whatever the model does.
    halts = "universal" in name and "fixed" not in name
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 if halts else 1e-9)
    logits, attention = logits_of(model), np.asarray(model.attention(INPUTS))
    weights = {kind: np.array(each) for kind, each in model.attentions(INPUTS).items()}
    values = getattr(model, "token_values", dict)(INPUTS)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0], target[target != 0]
        expected = (recurrent_oracle if "recurrent" in name else transformer_oracle).answer(
            model, source, target
        )
        close(logits[row, : len(target)], expected.logits)
        found = attention[row, : len(target), : expected.attention.shape[1]]
        np.testing.assert_allclose(found, expected.attention, atol=1e-6)
        assert list(weights) == list(expected.heads)
        for kind, heads in expected.heads.items():
            found = weights[kind][:, row]
            real = found[..., : heads.shape[2], : heads.shape[3]]
            np.testing.assert_allclose(real, heads, atol=1e-5)
            np.testing.assert_allclose(real.sum(axis=-1), heads.sum(axis=-1), atol=1e-6)
            real[:] = 0
            assert not found.any()  # of padding
        for side, halting in expected.halting.items():
            for key, numbers in zip(("steps", "remainders"), halting, strict=True):
                found = np.asarray(values[f"{side}_{key}"])[row]
                np.testing.assert_allclose(found[: len(numbers)], numbers, atol=1e-5)
                assert not found[len(numbers) :].any()
    if halts:  # where all tokens took the same number of steps, much would go unseen
        assert any(len(np.unique(values[f"{side}_steps"])) > 2 for side in ("source", "target"))


@pytest.mark.parametrize(("beams", "capacity"), [(2, None), (1, 8)], ids=["growing", "fixed"])
@every_case
def test_steps_equal_the_full_pass(name, beams, capacity):
    model = model_of(name)
    stepped, state = steps_of(model, beams, capacity=capacity, coverage=True)
    np.testing.assert_allclose(stepped, logits_of(model), rtol=1e-4, atol=1e-5)
    check_coverage(model, state)


@variants
def test_ensemble_with_a_transformer_steps_as_it_calls(name):
    model = model_of(name)
    both = Ensemble([random_model(CONFIGS["transformer"]), model])
    stepped, state = steps_of(both, 2, coverage=True)
    np.testing.assert_allclose(stepped, both.call(INPUTS), rtol=1e-4, atol=1e-4)
    assert hasattr(both, "attention") == hasattr(model, "attention")
    check_coverage(both, state)


@pytest.mark.parametrize(
    ("name", "policy", "error"),
    [(name, "bfloat16", 0.05) for name in CONFIGS]
    + [(name, "mixed_float16", 0.008) for name in VARIANTS],
)
def test_half_precision_is_close_to_float32(name, policy, error):
    if name == "bag":  # Keras's initializer of a GRU knows no bfloat16
        policy = f"mixed_{policy.removeprefix('mixed_')}"
    model, half = model_of(name), model_of(name, policy)
    exact = logits_of(model)
    tolerance = error * exact.std()
    assert 0 < np.abs(logits_of(half) - exact).max() < tolerance
    assert np.abs(steps_of(half)[0] - exact).max() < tolerance
    if hasattr(model, "attention"):
        attention = np.subtract(half.attention(INPUTS), model.attention(INPUTS))
        assert np.abs(attention).max() < error / 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@variants
def test_quantized_steps_equal_the_full_pass(name):
    model = random_model(CONFIGS[name].replace(share_embeddings="none", output_bias=True))
    exact = logits_of(model)
    model.quantize("int8")
    full, is_real = logits_of(model), TARGET != 0
    error = np.abs(full - exact)[is_real].max()
    assert 0 < error < 0.2 * exact.std()
    np.testing.assert_allclose(steps_of(model)[0][is_real], full[is_real], rtol=0, atol=1e-5)


@every_case
def test_sources_of_padding_give_finite_logits(name):
    empty = INPUTS | {"source": np.zeros_like(SOURCE)}
    assert np.isfinite(logits_of(model_of(name), empty)).all()


@every_case
def test_dropout_acts_in_training_only(name):
    model = model_of(name)
    expected = logits_of(model)
    np.testing.assert_array_equal(logits_of(model, training=False), expected)
    assert np.abs(logits_of(model, training=True) - expected).max() > 0.01


# Search and XLA


@pytest.mark.parametrize("bound", [None, 3], ids=["growing", "fixed"])
@variants
def test_wide_beam_equals_enumeration(name, bound):
    model = random_model(CONFIGS[name].replace(vocabulary_size=6))
    sentences = np.array([[4, 5, 3], [5, 3, 0]])
    # Up to three tokens other than padding (0) and BOS (2), then EOS (3).
    tokens = (1, 4, 5)
    found = [each for n in range(4) for each in itertools.product(tokens, repeat=n)]
    rows = np.array([[2, *each, 3, *[0] * (3 - len(each))] for each in found])  # [40, 5]
    best = tf.function(beam_search, autograph=False)(
        model.step,
        model.encode(
            sentences, num_hypotheses=40, capacity=bound and kv_cache_capacities(bound)[0]
        ),
        max_length_bound=bound,
        max_lengths=tf.constant([3, 3]),
        beam_size=40,
        num_translations=40,
    )
    lengths = (rows[:, 1:] != 0).sum(axis=1)
    for index, sentence in enumerate(sentences):
        inputs = {"source": np.repeat(sentence[None], 40, axis=0), "target": rows[:, :-1]}
        log_probs = np.asarray(ops.log_softmax(logits_of(model, inputs)))
        picked = np.take_along_axis(log_probs, rows[:, 1:, None], axis=2)[..., 0]
        scores = (picked * (rows[:, 1:] != 0)).sum(axis=1) / ((5 + lengths) / 6) ** 0.6
        expected = {tuple(ids): score for ids, score in zip(rows[:, 1:], scores, strict=True)}
        places = zip(best.ids[index].numpy(), best.scores[index].numpy(), strict=True)
        searched = {tuple(ids): score for ids, score in places}
        assert searched.keys() == expected.keys()
        np.testing.assert_allclose([searched[ids] for ids in expected], scores, rtol=1e-4)


@pytest.mark.slow
@variants
def test_xla_search_equals_the_graph(name):
    model = model_of(name)

    def search(source):
        capacity = kv_cache_capacities(5)[0]
        found = beam_search(
            model.step,
            model.encode(source, num_hypotheses=3, capacity=capacity),
            max_lengths=tf.constant([5, 3, 4]),
            beam_size=3,
            max_length_bound=5,
        )
        return found.ids, found.scores

    plain, compiled = (
        tf.function(search, jit_compile=xla, autograph=False)(tf.constant(SOURCE))
        for xla in (False, True)
    )
    np.testing.assert_array_equal(compiled[0], plain[0])
    np.testing.assert_allclose(compiled[1], plain[1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer, ssru", "recurrent, all", "universal, all"])
def test_xla_gives_the_logits_and_gradients_of_the_graph(name):
    model = random_model(CONFIGS[name].replace(dropout=0.0))

    def logits_and_gradients(source, target):
        with tf.GradientTape() as tape:
            logits = model({"source": source, "target": target}, training=True)
            value = tf.reduce_sum(logits**2) + sum(model.losses)
        gradients = tape.gradient(value, [weight.value for weight in model.trainable_weights])
        return [logits, *map(tf.convert_to_tensor, gradients)]

    # As in training, where batches have several shapes.
    ids = [tf.TensorSpec([None, None], tf.int32)] * 2
    plain, compiled = (
        tf.function(logits_and_gradients, ids, jit_compile=xla, autograph=False)(SOURCE, TARGET)
        for xla in (False, True)
    )
    largest = max(np.abs(gradient).max() for gradient in plain[1:])
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6, atol=1e-6)
    for weight, expected, found in zip(
        model.trainable_weights, plain[1:], compiled[1:], strict=True
    ):
        assert np.abs(expected).max() > 0, weight.path
        np.testing.assert_allclose(
            found, expected, rtol=1e-5, atol=1e-6 * largest, err_msg=weight.path
        )


# Files and sizes


@every_case
def test_keras_file_round_trip(name, tmp_path):
    model = random_model(CONFIGS[name], "mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert (type(copy), copy.config, copy.name) == (type(model), model.config, model.name)
    assert copy.dtype_policy.name == "mixed_bfloat16"
    assert not copy.compiled
    np.testing.assert_array_equal(logits_of(copy), logits_of(model))
