"""The decoder: order of sub-layers, causality, cached steps, padding, the last norm, dropout."""

import numpy as np
import pytest

from keras_transformer.layers import CrossAttention, Decoder, DecoderLayer
from keras_transformer.layers.masks import ancestor_bias, causal_bias, padding_bias

B, T, S, D = 2, 5, 4, 8
OPTIONS = dict(num_heads=2, key_dim=3, value_dim=5, feed_forward_dim=12)
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
MEMORY = RANDOM.normal(size=(B, S, D)).astype("float32")
CAUSAL = causal_bias(T)
MEMORY_BIAS = padding_bias(np.array([[5, 6, 7, 3], [5, 3, 0, 0]]))


def randomize(layer):
    """Gives random values to all weights, norms and biases included."""
    layer.build((None, None, D))
    layer.set_weights([RANDOM.normal(scale=0.4, size=w.shape) for w in layer.weights])
    return layer


def normalized(x, norm):
    """Layer normalization in float64 with the layer's gain and bias and epsilon 1e-6."""
    gain, bias = (np.asarray(weight, "float64") for weight in norm.get_weights())
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6) * gain + bias


def run(sublayer, x, *arguments):
    return np.asarray(sublayer(x.astype("float32"), *arguments), "float64")


def test_post_norm_layer_attends_to_itself_then_to_the_memory_then_feeds_forward():
    layer = randomize(DecoderLayer(**OPTIONS))
    memory = layer.cross_attention.project_memory(MEMORY)
    x = X + run(layer.self_attention, X, CAUSAL)
    x = normalized(x, layer.self_attention_residual.norm)
    x = x + run(layer.cross_attention, x, memory, MEMORY_BIAS)
    x = normalized(x, layer.cross_attention_residual.norm)
    x = normalized(x + run(layer.feed_forward, x), layer.feed_forward_residual.norm)
    np.testing.assert_allclose(layer(X, memory, CAUSAL, MEMORY_BIAS), x, rtol=1e-4, atol=1e-4)


def test_a_decoder_of_ones_own_is_built_by_the_memory_that_it_projects_first():
    decoder = Decoder(num_layers=2, **OPTIONS)
    memory = decoder.project_memory(MEMORY)
    assert len(memory) == 2
    assert decoder(X, memory, CAUSAL, MEMORY_BIAS).shape == X.shape
    layer = DecoderLayer(**OPTIONS)
    memory = layer.cross_attention.project_memory(MEMORY)
    assert layer(X, memory, CAUSAL, MEMORY_BIAS).shape == X.shape
    assert len(CrossAttention(num_heads=2, key_dim=4, value_dim=4).project_memory(MEMORY)) == 2


def test_pre_norm_layer_normalizes_what_enters_each_sublayer_but_not_the_memory():
    layer = randomize(DecoderLayer(**OPTIONS, norm_position="pre"))
    memory = layer.cross_attention.project_memory(MEMORY)
    entered = normalized(X, layer.self_attention_residual.norm)
    x = X + run(layer.self_attention, entered, CAUSAL)
    entered = normalized(x, layer.cross_attention_residual.norm)
    x = x + run(layer.cross_attention, entered, memory, MEMORY_BIAS)
    x = x + run(layer.feed_forward, normalized(x, layer.feed_forward_residual.norm))
    np.testing.assert_allclose(layer(X, memory, CAUSAL, MEMORY_BIAS), x, rtol=1e-4, atol=1e-4)


def test_every_layer_projects_the_memory_with_its_own_weights():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS))
    projected = decoder.project_memory(MEMORY)
    for layer, (keys, values) in zip(decoder.layers, projected, strict=True):
        own = layer.cross_attention.project_memory(MEMORY)
        np.testing.assert_array_equal(keys, own.keys)
        np.testing.assert_array_equal(values, own.values)
    x = X
    for layer, memory in zip(decoder.layers, projected, strict=True):
        x = layer(x, memory, CAUSAL, MEMORY_BIAS)
    np.testing.assert_array_equal(decoder(X, projected, CAUSAL, MEMORY_BIAS), x)


def test_pre_norm_stack_ends_with_a_norm():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS, norm_position="pre"))
    projected = decoder.project_memory(MEMORY)
    x = X
    for layer, memory in zip(decoder.layers, projected, strict=True):
        x = layer(x, memory, CAUSAL, MEMORY_BIAS)
    expected = normalized(np.asarray(x, "float64"), decoder.final_norm)
    result = decoder(X, projected, CAUSAL, MEMORY_BIAS)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert Decoder(num_layers=1, **OPTIONS).final_norm is None


def test_future_tokens_do_not_change_earlier_outputs():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS))
    memory = decoder.project_memory(MEMORY)
    before = np.asarray(decoder(X, memory, CAUSAL, MEMORY_BIAS))
    for time in range(1, T):
        other = X.copy()
        other[:, time:] = 10 * RANDOM.normal(size=(B, T - time, D))
        after = np.asarray(decoder(other, memory, CAUSAL, MEMORY_BIAS))
        np.testing.assert_array_equal(before[:, :time], after[:, :time])
        assert np.abs(before[:, time:] - after[:, time:]).max(axis=-1).all()


def test_earlier_tokens_change_later_outputs():
    decoder = randomize(Decoder(num_layers=1, **OPTIONS))
    memory = decoder.project_memory(MEMORY)
    other = X.copy()
    other[:, 0] += 1
    change = decoder(X, memory, CAUSAL, MEMORY_BIAS) - decoder(other, memory, CAUSAL, MEMORY_BIAS)
    assert (np.abs(change).max(axis=-1) > 1e-4).all()


def test_padding_of_the_memory_does_not_change_the_output():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS))
    other = MEMORY.copy()
    other[1, 2:] = 100 * RANDOM.normal(size=(2, D))
    before = decoder(X, decoder.project_memory(MEMORY), CAUSAL, MEMORY_BIAS)
    after = decoder(X, decoder.project_memory(other), CAUSAL, MEMORY_BIAS)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("attention_bias", [False, True])
def test_cached_steps_of_several_hypotheses_equal_the_full_pass(norm_position, attention_bias):
    beams, with_scores = 3, dict(return_attention_scores=True)
    options = dict(norm_position=norm_position, attention_bias=attention_bias)
    decoder = randomize(Decoder(num_layers=2, **OPTIONS, **options))
    x = RANDOM.normal(size=(B, beams, T, D)).astype("float32")
    memory = decoder.project_memory(MEMORY)
    kv_cache = decoder.empty_kv_cache(B)
    rows = []
    for time in range(T):
        places = np.broadcast_to(np.arange(beams)[:, None], (B, beams, time + 1))
        row, kv_cache, weights = decoder.step(
            x[:, :, time].reshape(-1, D),
            memory,
            MEMORY_BIAS,
            kv_cache,
            time,
            ancestor_bias(places, beams),
        )
        rows.append(np.asarray(row).reshape(B, beams, D))
        for beam in range(beams):
            *_, (_, full) = decoder(x[:, beam], memory, CAUSAL, MEMORY_BIAS, **with_scores)
            np.testing.assert_allclose(weights[:, :, beam], full[:, :, time], rtol=1e-4, atol=1e-4)
    for beam in range(beams):
        full = decoder(x[:, beam], memory, CAUSAL, MEMORY_BIAS)
        steps = np.stack([row[:, beam] for row in rows], axis=1)
        np.testing.assert_allclose(steps, full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_rate_acts_alone_and_only_in_training(rate):
    plain = randomize(DecoderLayer(**OPTIONS))
    layer = DecoderLayer(**OPTIONS, **{rate: 0.5})
    layer.build((None, None, D))
    layer.set_weights(plain.get_weights())
    inputs = X, plain.cross_attention.project_memory(MEMORY), CAUSAL, MEMORY_BIAS
    expected = plain(*inputs, training=True)
    np.testing.assert_array_equal(layer(*inputs, training=False), expected)
    np.testing.assert_array_equal(layer(*inputs), expected)
    assert np.abs(layer(*inputs, training=True) - expected).max() > 0.01
    dropouts = {
        "dropout": [
            layer.self_attention_residual.dropout,
            layer.cross_attention_residual.dropout,
            layer.feed_forward_residual.dropout,
        ],
        "attention_dropout": [layer.self_attention.dropout, layer.cross_attention.dropout],
        "feed_forward_dropout": [layer.feed_forward.dropout],
    }
    rates = {name: {dropout.rate for dropout in places} for name, places in dropouts.items()}
    assert rates == {name: {0.5 if name == rate else 0} for name in dropouts}
