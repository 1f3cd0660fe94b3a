"""Length and coverage penalties, and the quick top k against TensorFlow's."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import IMPOSSIBLE
from keras_transformer.search.scoring import (
    coverage_penalty,
    cut_into_blocks,
    length_penalty,
    log_normalizers,
    top_k_of_rows,
)


def test_length_penalty_equals_worked_numbers():
    lengths = tf.constant([1, 7, 19])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.0)), [1, 1, 1])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(1.0)), [1, 2, 4])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.5)), [1, 2**0.5, 2], rtol=1e-6)


def test_coverage_penalty_sums_logs_of_coverage_up_to_one():
    coverage = tf.constant([[[0.5, 2.0, 0.1], [1.0, 1.0, 1.0]]])
    found = coverage_penalty(coverage, tf.constant([0.2]))
    np.testing.assert_allclose(found, [[0.2 * (math.log(0.5) + math.log(0.1)), 0.0]], rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_coverage_penalty_is_finite_without_attention(jit_compile):
    coverage = tf.constant([[[0.0], [1e-45], [1e-30]]])
    found = tf.function(coverage_penalty, jit_compile=jit_compile)(coverage, tf.constant([1.0]))
    np.testing.assert_allclose(found, [[-87.34, -87.34, math.log(1e-30)]], rtol=1e-4)


@pytest.mark.parametrize("width", [5, 300, 2048, 8000, 9521])
@pytest.mark.parametrize("values", ["distinct", "many equal", "all equal", "one finite"])
def test_top_k_equals_tensorflow_ties_included(width, values):
    random = np.random.default_rng(width)
    shape = (3, 2, width)
    rows = {
        "distinct": random.standard_normal(shape),
        "many equal": random.integers(0, 6, shape),
        "all equal": np.full(shape, -7.0),
        "one finite": np.where(np.arange(width) == width - 1, -9.0, np.full(shape, IMPOSSIBLE)),
    }[values].astype("f")
    rows, addend = tf.constant(rows), tf.constant([[0.0, -0.5]] * 3)
    expected = tf.math.top_k(tf.reshape(rows + addend[..., None], [3, 2 * width]), 5)
    numbers, places, indices = top_k_of_rows(cut_into_blocks(rows, 5), 5, addend)
    np.testing.assert_array_equal(numbers, expected.values)
    np.testing.assert_array_equal(places * width + indices, expected.indices)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_log_normalizers_are_those_of_a_softmax(scale, is_compiled):
    logits = tf.constant(scale * np.random.default_rng(0).standard_normal((3, 2, 70)), tf.float32)
    largest, rest = log_normalizers(cut_into_blocks(logits, 4), is_compiled=is_compiled)
    np.testing.assert_allclose(largest + rest, tf.reduce_logsumexp(logits, axis=2), rtol=1e-6)
