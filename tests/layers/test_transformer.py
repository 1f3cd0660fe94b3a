"""Sub-layers, residual connections, encoder and decoder, each worked by hand or in float64."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers import DecoderLayer, FeedForward, LayerNormalization

# Feed-forward: FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)


def test_feed_forward_drops_inner_activations():
    # With unit matrices the result is the inner activations: 2 or, at a rate of 1/2, 0 or 4.
    layer = FeedForward(4, dropout=0.5)
    layer.build((None, None, 4))
    layer.inner.set_weights([np.eye(4), np.zeros(4)])
    layer.outer.set_weights([np.eye(4), np.zeros(4)])
    x = np.full((1, 64, 4), 2.0, "float32")
    np.testing.assert_array_equal(layer(x, training=False), x)
    np.testing.assert_array_equal(np.unique(layer(x, training=True)), [0, 4])


# Layer normalization worked by hand

# Mean 4, deviations -3, -1, 1, 3; population variance (9 + 1 + 1 + 9) / 4 = 5.
ROW = np.array([[1.0, 3.0, 5.0, 7.0]], "float32")
DEVIATIONS = np.array([[-3.0, -1.0, 1.0, 3.0]])


def test_norm_has_its_epsilon_its_gain_and_its_bias():
    layer = LayerNormalization(4.0)
    layer.build((None, 4))
    layer.gain.assign([1, 2, 3, 4])
    layer.bias.assign([10, 20, 30, 40])
    expected = DEVIATIONS / (5 + 4) ** 0.5 * [1, 2, 3, 4] + [10, 20, 30, 40]
    rows = np.concatenate([ROW - 9, ROW])  # each is normalized on its own
    np.testing.assert_allclose(layer(rows), expected.repeat(2, axis=0), rtol=1e-6)


def test_equal_entries_give_the_bias_and_finite_gradients():
    layer = LayerNormalization()
    x = tf.Variable(tf.fill([2, 4], 3.0))
    with tf.GradientTape() as tape:
        result = layer(x)
        total = tf.reduce_sum(result * [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(result, np.zeros((2, 4)))
    assert np.isfinite(tape.gradient(total, x)).all()


def test_large_common_offset_keeps_precision():
    # E[x^2] - E[x]^2 in float32 would lose everything here: 4096^2 has steps of 2.
    result = LayerNormalization(epsilon=0.0)(ROW + 4096)
    np.testing.assert_allclose(result, DEVIATIONS / 5**0.5, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_inputs_have_float32_statistics(policy):
    # The sum of squares of 512 numbers of size 1000 is 5e8: float16 ends at 65,504.
    x = (1000.0 * np.random.default_rng(0).choice([-1, 1, 2], size=(3, 512))).astype("float32")
    layer = LayerNormalization(dtype=policy)
    result = layer(x)
    assert result.dtype == layer.compute_dtype
    rounded = x.astype("float16" if policy == "mixed_float16" else tf.bfloat16.as_numpy_dtype)
    exact = rounded.astype("float64")
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    # What is left is one rounding of the result, to 8 or 11 binary digits.
    digits = 2.0**-11 if policy == "mixed_float16" else 2.0**-8
    np.testing.assert_allclose(tf.cast(result, tf.float32), exact, rtol=1.1 * digits)


# Residual connections: the sub-layers of an encoder layer replaced by constants


def layer_with_constants(norm_position, output, dropout=0.0, sublayer="self_attention"):
    """A decoder layer of which one sub-layer returns `output`, and the others 0."""
    layer = DecoderLayer(
        num_heads=1, key_dim=2, value_dim=2, feed_forward_dim=2, attention_bias=True,
        norm_position=norm_position, dropout=dropout,
    )  # fmt: skip
    layer.build((None, None, 2), (None, None, 2))
    attentions = layer.self_attention, layer.cross_attention
    for weight in (weight for each in (*attentions, layer.feed_forward) for weight in each.weights):
        weight.assign(np.zeros(weight.shape))
    last = {each.name: each.output_projection for each in attentions}
    (last | {"feed_forward": layer.feed_forward.outer})[sublayer].bias.assign(output)
    return layer


def test_pre_norm_does_not_normalize_the_sum():
    layer = layer_with_constants("pre", [0.0, 5.0], dropout=0.5)
    x = np.full((1, 64, 2), 100.0, "float32")
    np.testing.assert_array_equal(layer(x, x), x + np.array([0.0, 5.0]))
    # At a rate of 1/2 the output 5 becomes 0 or 10.
    np.testing.assert_array_equal(np.unique(layer(x, x, training=True)), [100, 110])


@pytest.mark.parametrize("sublayer", ["self_attention", "cross_attention", "feed_forward"])
def test_dropout_of_post_norm_comes_before_the_norm(sublayer):
    # Rows of x + dropout(y) are (0 or 4, 0 or 4). Normalized after it they are (0, 0), (-1, 1) or
    # (1, -1); dropout after the norm would give 2.
    layer = layer_with_constants("post", [2.0, 2.0], dropout=0.5, sublayer=sublayer)
    x = np.zeros((1, 64, 2), "float32")
    result = np.asarray(layer(x, x, training=True))[0]
    rows = np.unique(result.round(3) + 0.0, axis=0)
    np.testing.assert_array_equal(rows, [[-1, 1], [0, 0], [1, -1]])


def test_norm_gains_are_not_rounded_in_mixed_precision():
    mixed, exact = LayerNormalization(dtype="mixed_bfloat16"), LayerNormalization()
    for layer in (mixed, exact):
        layer.build((None, 8))
        layer.gain.assign(np.full(8, 1.001))  # not a bfloat16 number
    x = ops.cast(np.random.default_rng(3).normal(size=(2, 5, 8)), "bfloat16")
    np.testing.assert_array_equal(mixed(x), ops.cast(exact(ops.cast(x, "float32")), "bfloat16"))
