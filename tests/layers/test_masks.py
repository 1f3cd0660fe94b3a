"""Masks and the biases made of them."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers.masks import (
    attention_bias,
    causal_mask,
    padding_bias,
    padding_mask,
    predicting_mask,
)

IDS = np.array([[5, 3, 0, 0], [7, 8, 9, 3]])


def softmax(scores):
    return ops.convert_to_numpy(ops.softmax(ops.cast(scores, "float32"), axis=-1))


def test_padding_mask_is_true_at_real_tokens():
    expected = [[True, True, False, False], [True, True, True, True]]
    np.testing.assert_array_equal(padding_mask(IDS), expected)


def test_padding_bias_hides_padding_from_every_query():
    bias = padding_bias(IDS)
    assert bias.shape == (2, 1, 1, 4)
    weights = softmax(ops.zeros((2, 3, 5, 4)) + bias)
    expected = np.array([[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])[:, None, None]
    np.testing.assert_allclose(weights, np.broadcast_to(expected, weights.shape))


def test_causal_mask_shows_each_position_itself_and_the_past():
    weights = softmax(attention_bias(causal_mask(3)))
    expected = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_causal_mask_of_dynamic_length():
    make = tf.function(causal_mask, input_signature=[tf.TensorSpec([], tf.int32)])
    np.testing.assert_array_equal(make(5), causal_mask(5))


@pytest.mark.parametrize("score", [-1000.0, 0.0, 1000.0])
def test_hidden_key_has_no_weight_whatever_its_score(score):
    scores = np.array([score, 0.0]) + ops.convert_to_numpy(attention_bias(np.array([False, True])))
    np.testing.assert_array_equal(softmax(scores), [0, 1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_biases_are_finite_in_half_precision(dtype):
    bias = ops.cast(attention_bias(np.array([True, False])), dtype)
    bias = ops.convert_to_numpy(ops.cast(bias, "float32"))
    assert bias[0] == 0
    assert np.isfinite(bias[1])
    assert bias[1] < -20_000


def test_a_decoder_predicts_after_all_tokens_but_eos():
    found = predicting_mask(np.array([[2, 5, 3, 0]]))
    np.testing.assert_array_equal(found, [[True, True, False, False]])
