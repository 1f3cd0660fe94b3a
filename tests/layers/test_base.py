"""Layers made with NumPy's numbers, dropout on one device and several, files of LoRA matrices."""

import json

import keras
import numpy as np
import pytest

from keras_transformer.layers import Dropout, TokenEmbedding
from keras_transformer.layers.base import Dense

ONES = np.ones((3, 4, 50), "float32")


def test_layer_with_numbers_of_numpy_is_saved(tmp_path):
    ids = np.array([[5, 6, 3]])
    layer = TokenEmbedding(ids.max() + 1, model_dim=np.int32(4), scale=np.bool_(False))
    model = keras.Sequential([layer])
    expected = model(ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ids), expected)


@pytest.mark.parametrize("noise_shape", [None, (None, 1, 50)])
def test_dropout_equals_keras_on_one_device(noise_shape):
    ours, keras_own = (
        layer(0.4, noise_shape=noise_shape, seed=5) for layer in (Dropout, keras.layers.Dropout)
    )
    for _ in range(2):
        expected = keras_own(ONES, training=True)
        assert 0.2 < np.mean(np.equal(expected, 0)) < 0.6
        np.testing.assert_array_equal(ours(ONES, training=True), expected)
        np.testing.assert_array_equal(ours(ONES, training=False), ONES)


# Logical devices must be set up before TensorFlow starts: in a process of their own.
ON_TWO_DEVICES = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_transformer.layers import Dropout
from keras_transformer.layers.embedding import RandomOffset
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
results = []
with strategy.scope():
    layers = [Dropout(0.4, seed=5), Dropout(0.4, noise_shape=(None, 1, 50), seed=6)]
    offset = RandomOffset(1000, seed=7)

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
draw = tf.function(lambda: strategy.run(lambda: offset(tf.ones([6, 2], tf.int32), training=True)))
offsets = [each.numpy().tolist() for each in strategy.experimental_local_results(draw())]
print(json.dumps([results, offsets]))
"""


@pytest.mark.slow
def test_dropout_masks_differ_between_replicas(run_python):
    results, offsets = json.loads(run_python("-c", ON_TWO_DEVICES).splitlines()[-1])
    assert offsets[0] != offsets[1]  # of positions, which replicas draw too
    results = np.array(results)  # [step, layer, replica, ...]
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


# LoRA matrices in files of weights


def tuned_model():
    """A model whose Dense layer has LoRA matrices that change its outputs."""
    model = keras.Sequential([keras.Input((3,)), Dense(4, name="dense")])
    base = [np.array(weight) for weight in model.weights]
    model.layers[0].enable_lora(2, lora_alpha=5)
    model.layers[0].lora_kernel_b.assign(np.ones((2, 4)))
    return model, base


def test_file_without_lora_leaves_its_matrices_as_they_are(tmp_path):
    plain = keras.Sequential([keras.Input((3,)), Dense(4, name="dense")])
    plain.save_weights(tmp_path / "base.weights.h5")
    model, _ = tuned_model()
    a, b = (np.array(getattr(model.layers[0], f"lora_kernel_{name}")) for name in "ab")
    model.load_weights(tmp_path / "base.weights.h5")
    np.testing.assert_array_equal(model.layers[0].lora_kernel_a, a)
    np.testing.assert_array_equal(model.layers[0].lora_kernel_b, b)
    expected = plain.layers[0].kernel + 5 / 2 * a @ b
    np.testing.assert_allclose(model.layers[0].kernel, expected, rtol=1e-6)
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 3)), np.zeros((2, 4)), verbose=0)
    assert not np.array_equal(model.layers[0].lora_kernel_a, a)


def test_plain_layer_reads_the_merged_kernel(tmp_path):
    model, _ = tuned_model()
    model.save_weights(tmp_path / "lora.weights.h5")
    plain = keras.Sequential([keras.Input((3,)), Dense(4, name="dense")])
    plain.load_weights(tmp_path / "lora.weights.h5")
    x = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")
    np.testing.assert_allclose(plain(x), model(x), rtol=1e-5)
    plain.quantize("int8")
    with pytest.raises(ValueError, match="cannot be merged into a kernel of int8; call"):
        plain.load_weights(tmp_path / "lora.weights.h5")
