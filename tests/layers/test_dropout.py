"""Dropout: rates, independence of masks, noise shapes, on one device and several."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import Dropout

ONES = np.ones((3, 4, 50), "float32")


def outputs(layer, x, calls, uses_xla=False):
    """Returns the outputs of a layer in several calls in training, [calls, ...]."""

    def call():
        return tf.stack([layer(x, training=True) for _ in range(calls)])

    return tf.function(call, jit_compile=uses_xla)()


@pytest.mark.parametrize("rate", [0.1, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rate_and_mean_are_exact_in_every_precision(dtype, rate):
    ones = tf.ones([2000, 2000], dtype)  # 4 million
    result = outputs(Dropout(rate, seed=1, dtype=dtype), ones, 1)
    deviation = (rate * (1 - rate) / 4e6) ** 0.5
    dropped = np.mean(np.asarray(result == 0))
    assert dropped == pytest.approx(rate, abs=2e-5 + 4 * deviation)
    scale = float(tf.cast(tf.cast(1 / (1 - rate), dtype), "float32"))  # rounded to the precision
    assert np.unique(np.asarray(tf.cast(result, "float32"))).tolist() == [0, scale]
    assert scale * (1 - dropped) == pytest.approx(1, abs=4 * deviation + scale / 2**8)


def test_entries_and_calls_are_dropped_independently():
    layers = [Dropout(0.4, seed=seed) for seed in (7, 8)]  # seeds of neighbouring replicas
    masks = [
        np.asarray(each == 0).astype("float32").ravel() - 0.4
        for layer in layers
        for each in outputs(layer, tf.ones([1000, 1000]), 3)
    ]

    def correlation(a, b):
        return np.mean(a * b) / 0.24

    noise = 4.5 * 1e-3  # a million entries
    for number, mask in enumerate(masks):
        for lag in (1, 2, 3, 4, 16, 64, 128, 512, 1000, 4096, 65536):
            assert abs(correlation(mask[lag:], mask[:-lag])) < noise
        for other in masks[:number]:
            for lag in (0, 1, 2, 512):
                assert abs(correlation(mask[lag:], other[: mask.size - lag])) < noise


def test_batch_and_length_need_not_be_known_before_the_call():
    layer = Dropout(0.25, seed=3)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 5])], autograph=False)
    def value_and_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x)

    for batch, length in ((3, 7), (1, 1), (0, 4)):  # odd numbers of entries, and none
        y, gradient = value_and_gradient(tf.ones([batch, length, 5]))
        assert y.shape == (batch, length, 5)
        np.testing.assert_array_equal(gradient, y)


def test_evaluation_and_extreme_rates():
    np.testing.assert_array_equal(Dropout(0.5)(ONES), ONES)
    np.testing.assert_array_equal(Dropout(0.0)(ONES, training=True), ONES)
    np.testing.assert_array_equal(Dropout(1.0)(ONES, training=True), 0 * ONES)
    rate = 1 - 2**-20
    assert set(np.unique(Dropout(rate)(ONES, training=True))) <= {0, np.float32(2**20)}


def test_compiled_mask_is_that_of_the_graph_without_random_numbers():
    masks = [outputs(Dropout(0.4, seed=7), ONES, 2, uses_xla) for uses_xla in (False, True)]
    np.testing.assert_array_equal(*masks)
    layer = Dropout(0.1)
    call = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    program = call.experimental_get_compiler_ir(tf.ones([8, 16]))(stage="hlo")
    assert "xor" in program
    assert "rng" not in program


# Logical devices must be set up before TensorFlow starts: in a process of their own.
ON_TWO_DEVICES = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_transformer.layers import Dropout
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
results = []
with strategy.scope():
    layers = [Dropout(0.4, seed=5), Dropout(0.4, noise_shape=(None, 1, 50), seed=6)]

for uses_xla in (False, True):
    def on_a_replica():
        def call():
            return [layer(tf.ones([3, 4, 50]), training=True) for layer in layers]
        return tf.function(call, jit_compile=uses_xla)()
    steps = tf.function(lambda: strategy.run(on_a_replica))
    for _ in range(2):
        results.append([
            [replica.numpy().tolist() for replica in strategy.experimental_local_results(output)]
            for output in steps()
        ])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_dropout_masks_differ_between_replicas(run_python):
    results = np.array(json.loads(run_python("-c", ON_TWO_DEVICES).splitlines()[-1]))
    # [step, layer, replica, ...]
    assert results.shape == (4, 2, 2, *ONES.shape)
    np.testing.assert_allclose(np.unique(results), [0, 1 / 0.6], rtol=1e-6)
    dropped = results == 0
    assert np.all(dropped[:, 1] == dropped[:, 1, :, :, :1])
    masks = [*dropped[:, 0].reshape(8, -1), *dropped[:, 1, :, :, 0].reshape(8, -1)]
    for number, mask in enumerate(masks):
        assert abs(mask.mean() - 0.4) < 4 * (0.24 / mask.size) ** 0.5
        for other in masks[:number]:
            if other.size == mask.size:  # independent of each other
                assert abs(np.mean(mask & other) - 0.16) < 4 * (0.16 * 0.84 / mask.size) ** 0.5
