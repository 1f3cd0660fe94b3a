"""Attention beside Keras's; the models' is compared with float64 oracles.

Shapes: B batch, T queries, S keys, D model, H heads, K key and U value dimension of a head.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers import CrossAttention, KeysValues, SelfAttention
from keras_transformer.layers.attention import attention_weights

B, T, S, D, H, K, U = 2, 5, 4, 6, 3, 2, 4
RANDOM = np.random.default_rng(1)


def make_layer(kind=SelfAttention, **options):
    """Returns a layer with random weights."""
    layer = kind(num_heads=H, key_dim=K, value_dim=U, **options)
    layer.build((None, None, D))
    layer.set_weights([RANDOM.normal(size=weight.shape) for weight in layer.weights])
    return layer


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def random_mask(*shape):
    """A random mask without rows that are all False."""
    mask = RANDOM.random(shape) < 0.6
    mask[..., 0] = True
    return mask


def one_dense(*denses):
    """Returns the weights of one Dense layer that does the work of some of Keras's einsums."""
    kernels = [np.reshape(dense.kernel, (D, -1)) for dense in denses]
    biases = [np.ravel(dense.bias) for dense in denses if dense.bias is not None]
    return [np.concatenate(kernels, axis=1), *([np.concatenate(biases)] if biases else [])]


@pytest.mark.parametrize("use_bias", [False, True])
def test_attention_equals_that_of_keras_with_the_same_weights(use_bias):
    options = dict(use_bias=use_bias, dtype="float64")
    theirs = keras.layers.MultiHeadAttention(H, K, U, **options)
    x, memory = RANDOM.normal(size=(B, T, D)), RANDOM.normal(size=(B, S, D))
    theirs.build((B, T, D), (B, S, D))
    theirs.set_weights([RANDOM.normal(size=weight.shape) for weight in theirs.weights])
    output = theirs.output_dense
    last = [np.reshape(output.kernel, (H * U, D)), *([output.bias] if use_bias else [])]
    query, *keys_values = theirs.query_dense, theirs.key_dense, theirs.value_dense
    own, cross = (make_layer(kind, **options) for kind in (SelfAttention, CrossAttention))
    own.set_weights(one_dense(query, *keys_values) + last)
    cross.set_weights(one_dense(query) + one_dense(*keys_values) + last)
    # Keras's layer computes the softmax in float32.
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
    for mask in (random_mask(B, T, T), random_mask(B, H, T, T)):
        expected = theirs(x, x, attention_mask=mask)
        close(own(x, attention_mask=mask), expected)
    mask = random_mask(B, 1, S)
    expected = theirs(x, memory, attention_mask=mask)
    close(cross(x, memory, attention_mask=mask), expected)
    close(cross(x, memory, memory_mask=mask[:, 0]), expected)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_query_without_visible_keys_gives_finite_numbers(dtype):
    layer = make_layer(dtype=dtype)
    result = layer(normal(B, T, D), attention_mask=np.zeros((B, T, T), bool))
    assert np.isfinite(ops.convert_to_numpy(ops.cast(result, "float32"))).all()


def test_scores_beyond_the_range_of_exp_give_finite_weights():
    query, keys = ops.cast([[300.0, 0.0]], "float16"), ops.cast([[200.0, 0], [100, 0]], "float16")
    weights = attention_weights(query, keys, None)  # scores 60,000 and 30,000
    np.testing.assert_array_equal(weights, [[1, 0]])


@pytest.mark.filterwarnings("error")
def test_gradient_of_the_query_is_zero_for_a_single_key():
    query = tf.Variable(normal(B, 1, 3, D))
    with tf.GradientTape() as tape:  # none would leave momentum and decay out of an update
        weights = attention_weights(query, tf.constant(normal(B, 1, 1, D)), None)
    np.testing.assert_array_equal(tape.gradient(weights, query), np.zeros(query.shape))
    np.testing.assert_array_equal(weights, np.ones((B, 1, 3, 1)))


def test_dropout_acts_on_the_weights():
    # All keys are equal, so each of the 4 weights is 1/4; with values and output the identity the
    # result is the weights themselves. A rate of 1/2 leaves 0 or (1/4) / (1/2) = 1/2.
    layer = CrossAttention(num_heads=1, key_dim=4, value_dim=4, dropout=0.5)
    layer.build((None, None, 4))
    layer.output_projection.set_weights([np.eye(4)])
    memory = KeysValues(np.zeros((1, 1, 4, 4), "float32"), np.eye(4, dtype="float32")[None, None])
    x = np.ones((1, 64, 4), "float32")
    np.testing.assert_allclose(layer(x, memory, training=False), np.full(x.shape, 0.25), rtol=1e-6)
    dropped, weights = layer(x, memory, training=True, return_attention_scores=True)
    np.testing.assert_allclose(np.unique(ops.convert_to_numpy(dropped)), [0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(weights, np.full(weights.shape, 0.25), rtol=1e-6)


def test_gradients_of_relative_positions_in_half_precision():
    # Each row is a sum over pairs of positions, which bfloat16 would round to 8 bits. Products in
    # bfloat16 leave 1.4 % of the largest gradient with these weights, up to 2.7 % with others.
    keras.utils.set_random_seed(4)
    x = np.random.default_rng(0).normal(size=(8, 40, D)).astype("float32")
    sizes = dict(num_heads=H, key_dim=K, value_dim=U, max_relative_distance=1)
    layers = [SelfAttention(**sizes, dtype=dtype) for dtype in ("float32", "mixed_bfloat16")]
    gradients = []
    for layer in layers:
        layer.build((None, None, D))
        layer.set_weights(layers[0].get_weights())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(x), tf.float32) ** 2)
        tables = [layer.relative_keys.value, layer.relative_values.value]
        gradients.append([tf.convert_to_tensor(each) for each in tape.gradient(loss, tables)])
    for exact, found in zip(*gradients, strict=True):
        np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())
