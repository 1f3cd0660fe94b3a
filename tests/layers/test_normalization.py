"""Layer normalization, both forms worked by hand."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import LayerNormalization

# Mean 4, deviations -3, -1, 1, 3; population variance (9 + 1 + 1 + 9) / 4 = 5.
ROW = np.array([[1.0, 3.0, 5.0, 7.0]], "float32")
DEVIATIONS = np.array([[-3.0, -1.0, 1.0, 3.0]])


def test_variance_form_adds_epsilon_under_the_root():
    result = LayerNormalization(epsilon=4.0)(ROW)
    np.testing.assert_allclose(result, DEVIATIONS / 3, rtol=1e-6)  # sqrt(5 + 4) = 3


def test_sigma_form_adds_epsilon_to_the_standard_deviation():
    result = LayerNormalization(epsilon=2.0, form="sigma")(ROW)
    np.testing.assert_allclose(result, DEVIATIONS / (5**0.5 + 2), rtol=1e-6)


@pytest.mark.parametrize("form", ["variance", "sigma"])
def test_gain_multiplies_and_bias_adds_after_normalizing(form):
    layer = LayerNormalization(epsilon=0.0, form=form)
    layer.build((None, 4))
    layer.gain.assign([1, 2, 3, 4])
    layer.bias.assign([10, 20, 30, 40])
    expected = DEVIATIONS / 5**0.5 * [1, 2, 3, 4] + [10, 20, 30, 40]
    np.testing.assert_allclose(layer(ROW), expected, rtol=1e-6)


@pytest.mark.parametrize("form", ["variance", "sigma"])
def test_every_vector_is_normalized_on_its_own(form):
    x = np.random.default_rng(0).normal(3, 5, size=(2, 3, 16)).astype("float32")
    result = np.asarray(LayerNormalization(1e-12, form)(x), "float64")
    np.testing.assert_allclose(result.mean(axis=-1), 0, atol=1e-6)
    np.testing.assert_allclose(result.std(axis=-1), 1, rtol=1e-5)
    alone = LayerNormalization(1e-12, form)(x[1:, 2:])
    np.testing.assert_allclose(result[1:, 2:], alone, rtol=1e-6)


@pytest.mark.parametrize("form", ["variance", "sigma"])
def test_equal_entries_give_the_bias_and_finite_gradients(form):
    layer = LayerNormalization(form=form)
    x = tf.Variable(tf.fill([2, 4], 3.0))
    with tf.GradientTape() as tape:
        result = layer(x)
        total = tf.reduce_sum(result * [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(result, np.zeros((2, 4)))
    assert np.isfinite(tape.gradient(total, x)).all()


def test_large_common_offset_keeps_precision():
    # E[x^2] - E[x]^2 in float32 would lose everything here: 4096^2 has steps of 2.
    result = LayerNormalization(epsilon=0.0)(ROW + 4096)
    np.testing.assert_allclose(result, DEVIATIONS / 5**0.5, rtol=1e-5)


@pytest.mark.parametrize("form", ["variance", "sigma"])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_inputs_have_float32_statistics(policy, form):
    # The sum of squares of 512 numbers of size 1000 is 5e8: float16 ends at 65,504.
    x = (1000.0 * np.random.default_rng(0).choice([-1, 1, 2], size=(3, 512))).astype("float32")
    layer = LayerNormalization(form=form, dtype=policy)
    result = layer(x)
    assert result.dtype == layer.compute_dtype
    rounded = x.astype("float16" if policy == "mixed_float16" else tf.bfloat16.as_numpy_dtype)
    exact = rounded.astype("float64")
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    # What is left is one rounding of the result, to 8 or 11 binary digits.
    digits = 2.0**-11 if policy == "mixed_float16" else 2.0**-8
    np.testing.assert_allclose(tf.cast(result, tf.float32), exact, rtol=1.1 * digits)
