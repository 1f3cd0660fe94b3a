"""The encoder: its order of sub-layers, padding, the last norm, its dropout rates."""

import numpy as np
import pytest

from keras_transformer.layers import Encoder, EncoderLayer
from keras_transformer.layers.masks import padding_bias

D = 8
OPTIONS = dict(num_heads=2, key_dim=3, value_dim=5, feed_forward_dim=12)
RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(2, 5, D)).astype("float32")
BIAS = padding_bias(np.array([[5, 6, 7, 8, 3], [5, 6, 3, 0, 0]]))


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


def test_post_norm_layer_is_norm_of_x_plus_sublayer_twice():
    layer = randomize(EncoderLayer(**OPTIONS))
    x = X + run(layer.self_attention, X, BIAS)
    x = normalized(x, layer.self_attention_residual.norm)
    x = normalized(x + run(layer.feed_forward, x), layer.feed_forward_residual.norm)
    np.testing.assert_allclose(layer(X, BIAS), x, rtol=1e-4, atol=1e-4)


def test_pre_norm_layer_is_x_plus_sublayer_of_norm_twice():
    layer = randomize(EncoderLayer(**OPTIONS, norm_position="pre"))
    entered = normalized(X, layer.self_attention_residual.norm)
    x = X + run(layer.self_attention, entered, BIAS)
    entered = normalized(x, layer.feed_forward_residual.norm)
    x = x + run(layer.feed_forward, entered)
    np.testing.assert_allclose(layer(X, BIAS), x, rtol=1e-4, atol=1e-4)


def test_layers_of_the_stack_follow_each_other():
    encoder = randomize(Encoder(num_layers=3, **OPTIONS))
    x = X
    for layer in encoder.layers:
        x = layer(x, BIAS)
    np.testing.assert_array_equal(encoder(X, BIAS), x)
    assert len(encoder.layers) == 3


def test_pre_norm_stack_ends_with_a_norm():
    encoder = randomize(Encoder(num_layers=2, **OPTIONS, norm_position="pre"))
    x = X
    for layer in encoder.layers:
        x = layer(x, BIAS)
    expected = normalized(np.asarray(x, "float64"), encoder.final_norm)
    np.testing.assert_allclose(encoder(X, BIAS), expected, rtol=1e-4, atol=1e-4)
    assert Encoder(num_layers=1, **OPTIONS).final_norm is None


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_the_last_norm_has_the_form_and_epsilon_of_the_others(norm_position):
    options = dict(norm_form="sigma", norm_epsilon=0.5, norm_position=norm_position)
    encoder = Encoder(num_layers=1, **OPTIONS, **options)
    norms = [encoder.layers[0].self_attention_residual.norm]
    norms += [encoder.final_norm] if norm_position == "pre" else []
    assert [(norm.form, norm.epsilon) for norm in norms] == [("sigma", 0.5)] * len(norms)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_what_stands_at_padding_does_not_change_the_other_outputs(norm_position):
    encoder = randomize(Encoder(num_layers=2, **OPTIONS, norm_position=norm_position))
    other = X.copy()
    other[1, 3:] = 100 * RANDOM.normal(size=(2, D))
    before, after = np.asarray(encoder(X, BIAS)), np.asarray(encoder(other, BIAS))
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1, :3], after[1, :3])


def test_more_padding_does_not_change_the_other_outputs():
    encoder = randomize(Encoder(num_layers=2, **OPTIONS))
    alone = encoder(X[1:, :3], padding_bias(np.array([[5, 6, 3]])))
    np.testing.assert_allclose(encoder(X, BIAS)[1:, :3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_rate_acts_alone_and_only_in_training(rate):
    plain = randomize(EncoderLayer(**OPTIONS))
    layer = EncoderLayer(**OPTIONS, **{rate: 0.5})
    layer.build((None, None, D))
    layer.set_weights(plain.get_weights())
    expected = plain(X, BIAS, training=True)
    np.testing.assert_array_equal(layer(X, BIAS, training=False), expected)
    np.testing.assert_array_equal(layer(X, BIAS), expected)
    assert np.abs(layer(X, BIAS, training=True) - expected).max() > 0.01
    dropouts = {
        "dropout": [layer.self_attention_residual.dropout, layer.feed_forward_residual.dropout],
        "attention_dropout": [layer.self_attention.dropout],
        "feed_forward_dropout": [layer.feed_forward.dropout],
    }
    rates = {name: {dropout.rate for dropout in places} for name, places in dropouts.items()}
    assert rates == {name: {0.5 if name == rate else 0} for name in dropouts}
