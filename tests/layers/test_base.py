"""Layers made with NumPy's numbers, files of LoRA matrices."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.file_state import Dense


def test_layer_with_numbers_of_numpy_is_saved(tmp_path):
    ids = np.array([[5, 6, 3]])
    layer = TokenEmbedding(ids.max() + 1, model_dim=np.int32(4), scale=np.bool_(False))
    model = keras.Sequential([layer])
    expected = model(ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ids), expected)


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
