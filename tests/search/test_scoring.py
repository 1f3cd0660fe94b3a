"""Length and coverage penalties, and the quick top k against TensorFlow's."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import IMPOSSIBLE
from keras_transformer.search.scoring import coverage_penalty, final_scores, length_penalty, top_k


def test_length_penalty_equals_worked_numbers():
    lengths = tf.constant([1, 7, 19])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.0)), [1, 1, 1])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(1.0)), [1, 2, 4])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.5)), [1, 2**0.5, 2], rtol=1e-6)


def test_impossible_scores_stay_impossible_with_a_huge_penalty():
    log_probs = tf.constant([[-1.0, -np.inf]])
    penalty = length_penalty(tf.constant(9), tf.constant([[1e6]]))
    scores = final_scores(log_probs, penalty, None, tf.constant([[0.0]]))
    np.testing.assert_allclose(scores, [[0.0, -np.inf]], atol=1e-30)


def test_coverage_penalty_sums_logs_of_coverage_up_to_one():
    coverage = tf.constant([[[0.5, 2.0, 0.1], [1.0, 1.0, 1.0]]])
    found = coverage_penalty(coverage, tf.constant([[0.2]]))
    np.testing.assert_allclose(found, [[0.2 * (math.log(0.5) + math.log(0.1)), 0.0]], rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_coverage_penalty_is_finite_without_attention(jit_compile):
    coverage = tf.constant([[[0.0], [1e-45], [1e-30]]])
    found = tf.function(coverage_penalty, jit_compile=jit_compile)(coverage, tf.constant([[1.0]]))
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
    expected = tf.math.top_k(rows, 5)
    found = top_k(tf.constant(rows), 5)
    np.testing.assert_array_equal(found[0], expected.values)
    np.testing.assert_array_equal(found[1], expected.indices)


def test_top_k_takes_an_empty_batch():
    values, indices = top_k(tf.zeros([0, 4, 8000]), 5)
    assert tuple(values.shape) == tuple(indices.shape) == (0, 4, 5)
