"""FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)."""

import numpy as np

from keras_transformer.layers import FeedForward

RANDOM = np.random.default_rng(0)


def test_a_worked_example():
    # x = (1, 2), W1 = [[1, -1, 0], [0, 1, -1]], b1 = (0, 0, 1):
    #   x W1 + b1 = (1, -1 + 2, -2 + 1) = (1, 1, -1), and max(0, .) = (1, 1, 0)
    # W2 = [[1, 2], [3, 4], [5, 6]], b2 = (10, 20): (1 + 3 + 10, 2 + 4 + 20) = (14, 26)
    layer = FeedForward(3)
    layer.build((None, None, 2))
    layer.inner.set_weights([np.array([[1, -1, 0], [0, 1, -1]]), np.array([0, 0, 1])])
    layer.outer.set_weights([np.array([[1, 2], [3, 4], [5, 6]]), np.array([10, 20])])
    np.testing.assert_array_equal(layer(np.array([[[1.0, 2.0]]])), [[[14, 26]]])


def test_equation_2_in_float64():
    layer = FeedForward(16)
    layer.build((None, None, 6))
    weights = [RANDOM.normal(size=shape) for shape in ((6, 16), (16,), (16, 6), (6,))]
    layer.inner.set_weights(weights[:2])
    layer.outer.set_weights(weights[2:])
    x = RANDOM.normal(size=(2, 5, 6))
    expected = np.maximum(0, x @ weights[0] + weights[1]) @ weights[2] + weights[3]
    np.testing.assert_allclose(layer(x.astype("float32")), expected, rtol=1e-4, atol=1e-4)


def test_positions_do_not_see_each_other():
    layer = FeedForward(16)
    x = RANDOM.normal(size=(1, 5, 6)).astype("float32")
    together = np.asarray(layer(x))
    for position in range(5):
        alone = layer(x[:, position : position + 1])
        np.testing.assert_allclose(together[:, position], alone[:, 0], rtol=1e-5, atol=1e-6)


def test_dropout_acts_on_the_inner_activations():
    # With unit matrices the result is the inner activations: 2 or, at a rate of 1/2, 0 or 4.
    layer = FeedForward(4, dropout=0.5)
    layer.build((None, None, 4))
    layer.inner.set_weights([np.eye(4), np.zeros(4)])
    layer.outer.set_weights([np.eye(4), np.zeros(4)])
    x = np.full((1, 64, 4), 2.0, "float32")
    np.testing.assert_array_equal(layer(x, training=False), x)
    np.testing.assert_array_equal(np.unique(layer(x, training=True)), [0, 4])
