"""Residual connections, encoder and decoder: order of sub-layers, masks, cached steps, dropout."""

import numpy as np
import pytest

from keras_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, Residual
from keras_transformer.layers.masks import ancestor_bias, padding_bias

B, T, S, D = 2, 5, 4, 8
OPTIONS = dict(num_heads=2, key_dim=3, value_dim=5, feed_forward_dim=12)
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(B, T, D)).astype("float32")
PADDING = np.arange(T) < [[5], [3]]
MEMORY = RANDOM.normal(size=(B, S, D)).astype("float32")
MEMORY_PADDING = np.arange(S) < [[4], [2]]
MASK = dict(memory_padding_mask=MEMORY_PADDING)


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


def run(sublayer, x, *arguments, **masks):
    return np.asarray(sublayer(x.astype("float32"), *arguments, **masks), "float64")


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Residual connections, worked by hand

PAIR = np.array([[[1.0, 2.0]]], "float32")
OUTPUT = np.array([[[0.0, 5.0]]], "float32")  # of a sub-layer


def test_post_norm_normalizes_the_sum():
    # x + y = (1, 7): mean 4, deviations -3 and 3, variance 9; with epsilon 7 the root is 4.
    residual = Residual(norm_epsilon=7.0)
    np.testing.assert_array_equal(residual.pre_norm(PAIR), PAIR)
    np.testing.assert_allclose(residual(PAIR, OUTPUT), [[[-0.75, 0.75]]], rtol=1e-6)


def test_pre_norm_normalizes_the_input_but_not_the_sum():
    # x = (1, 3): mean 2, deviations -1 and 1, variance 1; with epsilon 3 the root is 2.
    residual = Residual(norm_position="pre", norm_epsilon=3.0)
    entered = residual.pre_norm(np.array([[[1.0, 3.0]]]))
    np.testing.assert_allclose(entered, [[[-0.5, 0.5]]], rtol=1e-6)
    np.testing.assert_array_equal(residual(PAIR, OUTPUT), [[[1, 7]]])


def test_the_sigma_form_reaches_the_norm():
    # x + y = (1, 7): deviations -3 and 3, sigma 3; with epsilon 1 the divisor is 4.
    residual = Residual(norm_form="sigma", norm_epsilon=1.0)
    np.testing.assert_allclose(residual(PAIR, OUTPUT), [[[-0.75, 0.75]]], rtol=1e-6)


def test_dropout_acts_on_the_sub_layers_output_before_the_sum():
    # At a rate of 1/2 the output 5 becomes 0 or 10, and x = 100 always stays: 100 or 110.
    residual = Residual(norm_position="pre", dropout=0.5)
    x, output = np.full((1, 64, 2), 100.0, "float32"), np.full((1, 64, 2), 5.0, "float32")
    np.testing.assert_array_equal(residual(x, output, training=False), x + output)
    np.testing.assert_array_equal(np.unique(residual(x, output, training=True)), [100, 110])


def test_dropout_of_post_norm_comes_before_the_norm():
    # Rows of x + dropout(y) are (0 or 4, 0 or 4). Normalized after it they are (0, 0), (-1, 1) or
    # (1, -1); dropout after the norm would give 2.
    residual = Residual(dropout=0.5, norm_epsilon=1e-6)
    x, output = np.zeros((1, 64, 2), "float32"), np.full((1, 64, 2), 2.0, "float32")
    result = np.asarray(residual(x, output, training=True))[0]
    rows = np.unique(result.round(3) + 0.0, axis=0)
    np.testing.assert_array_equal(rows, [[-1, 1], [0, 0], [1, -1]])


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_there_is_one_norm_either_way(norm_position):
    residual = Residual(norm_position=norm_position)
    residual.build((None, None, 2))
    assert [weight.shape for weight in residual.weights] == [(2,), (2,)]


# Encoder and decoder layers


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_encoder_layer_attends_then_feeds_forward(norm_position):
    layer = randomize(EncoderLayer(**OPTIONS, norm_position=norm_position))
    is_pre = norm_position == "pre"
    norms = [layer.self_attention_residual.norm, layer.feed_forward_residual.norm]
    y = normalized(X, norms[0]) if is_pre else X
    x = X + run(layer.self_attention, y, padding_mask=PADDING)
    x = x if is_pre else normalized(x, norms[0])
    y = normalized(x, norms[1]) if is_pre else x
    x = x + run(layer.feed_forward, y)
    x = x if is_pre else normalized(x, norms[1])
    assert_close(layer(X, padding_mask=PADDING), x)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_decoder_layer_attends_to_itself_then_memory(norm_position):
    layer = randomize(DecoderLayer(**OPTIONS, norm_position=norm_position))
    is_pre = norm_position == "pre"
    sublayers = [
        (
            layer.self_attention_residual,
            lambda y: run(layer.self_attention, y, use_causal_mask=True),
        ),
        (
            layer.cross_attention_residual,
            lambda y: run(layer.cross_attention, y, MEMORY, padding_mask=MEMORY_PADDING),
        ),
        (layer.feed_forward_residual, lambda y: run(layer.feed_forward, y)),
    ]
    x = X
    for residual, sublayer in sublayers:
        y = normalized(x, residual.norm) if is_pre else x
        x = x + sublayer(y)
        x = x if is_pre else normalized(x, residual.norm)
    assert_close(layer(X, MEMORY, **MASK), x)


# Stacks


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_stack_applies_its_layers_in_turn(kind, norm_position):
    stack = randomize(kind(num_layers=3, **OPTIONS, norm_position=norm_position))
    inputs, masks = ((X,), dict(padding_mask=PADDING)) if kind is Encoder else ((X, MEMORY), MASK)
    x, *others = inputs
    assert len(stack.layers) == 3
    for layer in stack.layers:
        x = layer(x, *others, **masks)
    if norm_position == "pre":
        x = normalized(np.asarray(x, "float64"), stack.final_norm)
    else:
        assert stack.final_norm is None
    assert_close(stack(*inputs, **masks), x)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_last_norm_has_the_form_and_epsilon_of_the_others(norm_position):
    options = dict(norm_form="sigma", norm_epsilon=0.5, norm_position=norm_position)
    encoder = Encoder(num_layers=1, **OPTIONS, **options)
    norms = [encoder.layers[0].self_attention_residual.norm]
    norms += [encoder.final_norm] if norm_position == "pre" else []
    assert [(norm.form, norm.epsilon) for norm in norms] == [("sigma", 0.5)] * len(norms)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_padding_does_not_change_encoder_outputs(norm_position):
    encoder = randomize(Encoder(num_layers=2, **OPTIONS, norm_position=norm_position))
    other = X.copy()
    other[1, 3:] = 100 * RANDOM.normal(size=(2, D))
    before, after = (np.asarray(encoder(x, padding_mask=PADDING)) for x in (X, other))
    np.testing.assert_array_equal(before[PADDING], after[PADDING])
    np.testing.assert_allclose(encoder(X[1:, :3])[0], before[1, :3], rtol=1e-4, atol=1e-5)


def test_padding_of_the_memory_does_not_change_outputs():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS))
    other = MEMORY.copy()
    other[1, 2:] = 100 * RANDOM.normal(size=(2, D))
    np.testing.assert_array_equal(decoder(X, MEMORY, **MASK), decoder(X, other, **MASK))


def test_future_tokens_do_not_change_earlier_outputs():
    decoder = randomize(Decoder(num_layers=2, **OPTIONS))
    before = np.asarray(decoder(X, MEMORY, **MASK))
    for time in range(1, T):
        other = X.copy()
        other[:, time:] = 10 * RANDOM.normal(size=(B, T - time, D))
        after = np.asarray(decoder(other, MEMORY, **MASK))
        np.testing.assert_array_equal(before[:, :time], after[:, :time])
        assert np.abs(before[:, time:] - after[:, time:]).max(axis=-1).all()


def test_earlier_tokens_change_later_outputs():
    decoder = randomize(Decoder(num_layers=1, **OPTIONS))
    other = X.copy()
    other[:, 0] += 1
    change = decoder(X, MEMORY, **MASK) - decoder(other, MEMORY, **MASK)
    assert (np.abs(change).max(axis=-1) > 1e-4).all()


def test_project_memory_builds_a_decoder():
    decoder = Decoder(num_layers=2, **OPTIONS)
    assert len(decoder.project_memory(MEMORY)) == 2
    assert decoder(X, MEMORY).shape == X.shape


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("attention_bias", [False, True])
def test_cached_steps_of_a_beam_equal_the_full_pass(norm_position, attention_bias):
    beams = 3
    options = dict(norm_position=norm_position, attention_bias=attention_bias)
    decoder = randomize(Decoder(num_layers=2, **OPTIONS, **options))
    x = RANDOM.normal(size=(B, beams, T, D)).astype("float32")
    full = [
        decoder(x[:, beam], MEMORY, return_attention_scores=True, **MASK) for beam in range(beams)
    ]
    memory, kv_cache = decoder.project_memory(MEMORY), decoder.empty_kv_cache(B)
    memory_bias = padding_bias(MEMORY_PADDING.astype("int32"))
    for time in range(T):
        places = np.broadcast_to(np.arange(beams)[:, None], (B, beams, time + 1))
        row, kv_cache, scores = decoder.step(
            x[:, :, time].reshape(-1, D), memory, kv_cache, time, ancestor_bias(places, beams),
            memory_bias,
        )  # fmt: skip
        row = np.asarray(row).reshape(B, beams, D)
        for beam, (outputs, _, cross_scores) in enumerate(full):
            assert_close(row[:, beam], outputs[:, time])
            assert_close(scores[:, :, beam], cross_scores[-1][:, :, time])


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_rate_acts_alone_and_only_in_training(rate, kind):
    plain = randomize(kind(**OPTIONS))
    layer = kind(**OPTIONS, **{rate: 0.5})
    layer.build((None, None, D))
    layer.set_weights(plain.get_weights())
    inputs = (X,) if kind is EncoderLayer else (X, MEMORY)
    expected = plain(*inputs, training=True)
    np.testing.assert_array_equal(layer(*inputs, training=False), expected)
    np.testing.assert_array_equal(layer(*inputs), expected)
    assert np.abs(layer(*inputs, training=True) - expected).max() > 0.01
    names = ["self_attention", "cross_attention", "feed_forward"]
    names = [name for name in names if hasattr(layer, name)]
    dropouts = {
        "dropout": [getattr(layer, f"{name}_residual").dropout for name in names],
        "attention_dropout": [getattr(layer, name).dropout for name in names[:-1]],
        "feed_forward_dropout": [layer.feed_forward.dropout],
    }
    rates = {name: {dropout.rate for dropout in places} for name, places in dropouts.items()}
    assert rates == {name: {0.5 if name == rate else 0} for name in dropouts}
