"""Restricted self-attention in blocks against the whole matrix with a band of it left.

Shapes: B batch, T positions, D model, H heads, K key and U value dimension of a head.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import SelfAttention, WindowedSelfAttention
from keras_transformer.layers.windowed_attention import band_mask, in_blocks

B, D, H, K, U = 3, 8, 2, 4, 6
RANDOM = np.random.default_rng(1)


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def make_layer(window, max_relative_distance=None, dtype="float32"):
    options = dict(
        num_heads=H, key_dim=K, value_dim=U, max_relative_distance=max_relative_distance,
        dtype=dtype,
    )  # fmt: skip
    if window is None:
        layer = SelfAttention(**options)
    else:
        layer = WindowedSelfAttention(window=window, **options)
    layer.build((None, None, D))
    layer.set_weights([RANDOM.normal(size=weight.shape) / 2 for weight in layer.weights])
    return layer


def lengths(window):
    """The least length, and those around one block and three."""
    reach = window // 2
    return sorted({1, max(reach, 1), reach + 1, max(3 * reach - 1, 1), max(3 * reach, 1)})


def random_padding(length):
    """A mask of real tokens with padding anywhere, and sentences without and of nothing else."""
    mask = RANDOM.random((B, length)) < 0.7
    mask[0], mask[1] = True, False
    return mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 9])
@pytest.mark.parametrize("distance", [None, 3])
def test_blocks_equal_the_whole_matrix_with_a_band_mask(distance, window, causal):
    layer, causal = make_layer(window, distance), dict(use_causal_mask=causal)
    for length in lengths(window):
        x, mask = tf.Variable(normal(B, length, D)), random_padding(length)
        results = []
        for padding in (None, mask):
            seen = np.ones_like(mask) if padding is None else mask
            for whole in (False, True):
                with tf.GradientTape() as tape:
                    result = layer(x, mask=padding, return_attention_scores=whole, **causal)
                    result = result[0] if whole else result
                    total = tf.reduce_sum(tf.sin(result)[seen])
                sources = [x, *(weight.value for weight in layer.weights)]
                gradients = tape.gradient(total, sources, unconnected_gradients="zero")
                assert np.isfinite(result).all()  # of padding too
                results.append([result.numpy()[seen], *gradients])
            for number, (found, expected) in enumerate(zip(*results[-2:], strict=True)):
                found, expected = map(tf.convert_to_tensor, (found, expected))
                atol = 1e-6 * max(10, np.max(np.abs(expected))) if number else 1e-6
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


def test_the_band_is_that_of_table_1():
    # r = 5 sees two positions on each side and its own, or itself and the two before it.
    see = np.eye(6, dtype=bool)
    for distance in (1, 2):
        see |= np.eye(6, k=-distance, dtype=bool)
    np.testing.assert_array_equal(band_mask(6, 2, True)[0, 0], see)
    np.testing.assert_array_equal(band_mask(6, 2, False)[0, 0], see | see.T)


@pytest.mark.parametrize("causal", [False, True])
def test_windows_of_dynamic_length_and_under_xla(causal):
    layer = make_layer(41, 3)
    call = functools.partial(layer, use_causal_mask=causal)
    specs = tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None), tf.bool)
    graph = tf.function(call, input_signature=specs)
    compiled = tf.function(call, jit_compile=True)
    for length in (1, 19, 20, 50):
        x, mask = normal(B, length, D), random_padding(length)
        whole, _ = layer(x, mask=mask, use_causal_mask=causal, return_attention_scores=True)
        for run in (graph, compiled):
            np.testing.assert_allclose(run(x, mask)[mask], whole[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(B, 1, 1), (1, 1, 1, 1), (B, 1, 1, 1)], ids=str)
def test_a_mask_may_be_the_same_for_all_keys(shape):
    layer, x = make_layer(7), normal(B, 40, D)
    expected = layer(x)
    np.testing.assert_allclose(layer(x, attention_mask=np.ones(shape, bool)), expected, atol=1e-6)


def test_blocks_grow_linearly_with_length():
    graph = tf.function(functools.partial(in_blocks, bias=None, reach=20, causal=False))
    specs = [3 * [tf.TensorSpec((1, H, length, K))] for length in (2000, 1000)]
    blocks = [graph.get_concrete_function(*spec).structured_outputs for spec in specs]
    ratios = np.divide(*[[np.prod(part.shape) for part in parts] for parts in blocks])
    assert 1 <= ratios.min() <= ratios.max() < 2.1
