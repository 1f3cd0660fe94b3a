"""The quick top_k against TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search.constraints import in_groups, top_k, top_k_of_groups


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


@pytest.mark.parametrize("width", [7, 2048, 8000])
@pytest.mark.parametrize("num_sets", [1, 2, 4])
def test_the_top_of_a_set_of_rows_counts_what_each_row_has_more(width, num_sets):
    random = np.random.default_rng(width)
    rows = random.integers(-9, 9, (3, 4, width)).astype("f")
    offsets = random.integers(-3, 3, (3, 4)).astype("f")
    offsets[1, 2] = -np.inf
    found = top_k_of_groups(in_groups(tf.constant(rows), 6), 6, tf.constant(offsets), num_sets)
    sets = (rows + offsets[..., None]).reshape(3, num_sets, -1)
    order = np.argsort(-sets, axis=-1, kind="stable")[..., :6]
    np.testing.assert_array_equal(found[0], np.take_along_axis(sets, order, -1))
    first_rows = np.arange(0, 4, 4 // num_sets)[:, None]
    np.testing.assert_array_equal(found[1], order // width + first_rows)
    np.testing.assert_array_equal(found[2], order % width)
