"""Separable convolutions against loops in NumPy, centered and causal, whole and step by step."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import SeparableConvolution, SeparableConvolutions

B, T, D, F = 2, 7, 4, 6
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(B, T, D)).astype("float32")


def randomize(layer):
    layer.set_weights([RANDOM.normal(size=weight.shape) for weight in layer.weights])
    return layer


def convolve(layer, x):
    """Gives [T, units] for x [T, D], with one loop for each index."""
    kernel, mixing = np.float64(layer.kernel), np.float64(layer.mixing.kernel)
    first = -(layer.width - 1) if layer.is_causal else -(layer.width // 2)
    sums = np.zeros_like(x, "float64")
    for time in range(len(x)):
        for index in range(layer.width):
            if 0 <= time + first + index < len(x):
                sums[time] += x[time + first + index] * kernel[index]
    return sums @ mixing + np.float64(layer.mixing.bias)


@pytest.mark.parametrize("width", [1, 3, 4, 5])
@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_the_sum_over_the_window(width, is_causal):
    layer = SeparableConvolution(3, width, is_causal)
    layer.build(X.shape)
    randomize(layer)
    expected = [convolve(layer, row) for row in X]
    np.testing.assert_allclose(layer(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_changes_nothing(is_causal):
    layer = SeparableConvolutions(F, is_causal=is_causal)
    layer(X)
    randomize(layer)
    alone = layer(X[:, :4])
    is_real = np.arange(T) < np.full((B, 1), 4)
    np.testing.assert_allclose(layer(X, is_real)[:, :4], alone, rtol=1e-5, atol=1e-5)


def test_steps_equal_the_whole():
    layer = SeparableConvolutions(F, is_causal=True)
    hypotheses = np.stack([X, X[:, ::-1]], axis=1)  # [B, W, T, D]
    rows = np.reshape(hypotheses, (-1, T, D))
    layer(rows)
    randomize(layer)
    whole = np.asarray(layer(rows))
    windows = layer.empty_windows(B, 2)
    for time in range(T):
        y, windows = layer.step(rows[:, time], windows)
        np.testing.assert_allclose(ops.convert_to_numpy(y), whole[:, time], rtol=1e-5, atol=1e-5)
