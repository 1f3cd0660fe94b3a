"""Residual connections with norm and dropout (3.1, 5.4), worked by hand."""

import numpy as np
import pytest

from keras_transformer.layers import Residual

X = np.array([[[1.0, 2.0]]], "float32")
OUTPUT = np.array([[[0.0, 5.0]]], "float32")  # of a sub-layer


def test_post_norm_normalizes_the_sum():
    # x + y = (1, 7): mean 4, deviations -3 and 3, variance 9; with epsilon 7 the root is 4.
    residual = Residual(norm_epsilon=7.0)
    np.testing.assert_array_equal(residual.enter(X), X)
    np.testing.assert_allclose(residual(X, OUTPUT), [[[-0.75, 0.75]]], rtol=1e-6)


def test_pre_norm_normalizes_what_enters_and_leaves_the_sum_alone():
    # x = (1, 3): mean 2, deviations -1 and 1, variance 1; with epsilon 3 the root is 2.
    residual = Residual(norm_position="pre", norm_epsilon=3.0)
    entered = residual.enter(np.array([[[1.0, 3.0]]]))
    np.testing.assert_allclose(entered, [[[-0.5, 0.5]]], rtol=1e-6)
    np.testing.assert_array_equal(residual(X, OUTPUT), [[[1, 7]]])


def test_the_sigma_form_reaches_the_norm():
    # x + y = (1, 7): deviations -3 and 3, sigma 3; with epsilon 1 the divisor is 4.
    residual = Residual(norm_form="sigma", norm_epsilon=1.0)
    np.testing.assert_allclose(residual(X, OUTPUT), [[[-0.75, 0.75]]], rtol=1e-6)


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
