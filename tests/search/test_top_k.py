"""The quick top_k against TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search.top_k import top_k


@pytest.mark.parametrize("width", [5, 300, 2048, 8000, 9521])
@pytest.mark.parametrize("values", ["distinct", "many equal", "all equal", "one finite"])
def test_top_k_gives_what_tensorflow_gives_ties_included(width, values):
    random = np.random.default_rng(width)
    shape = (3, 2, width)
    rows = {
        "distinct": random.standard_normal(shape),
        "many equal": random.integers(0, 6, shape),
        "all equal": np.full(shape, -7.0),
        "one finite": np.where(np.arange(width) == width - 1, -9.0, np.full(shape, -np.inf)),
    }[values].astype("f")
    expected = tf.math.top_k(rows, 5)
    found = top_k(tf.constant(rows), 5)
    np.testing.assert_array_equal(found[0], expected.values)
    np.testing.assert_array_equal(found[1], expected.indices)


def test_top_k_takes_an_empty_batch():
    values, indices = top_k(tf.zeros([0, 4, 8000]), 5)
    assert tuple(values.shape) == tuple(indices.shape) == (0, 4, 5)
