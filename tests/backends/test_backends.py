"""Layers, models, loss, metrics and schedule on JAX and PyTorch, without TensorFlow.

See other_backend.py: one process for each backend, in which `import tensorflow` fails.
"""

import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import (
    InverseSquareRoot,
    Perplexity,
    RecurrentConfig,
    SmoothedCrossEntropy,
    TokenAccuracy,
    TransformerConfig,
    UniversalConfig,
    build_model,
    search,
)
from keras_transformer.errors import InputError

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("other_backend.py")
UPDATES, ROWS = 20, 6
SIZES = dict(vocabulary_size=30, model_dim=16, dropout=0.0)
LAYERS = dict(num_heads=2, feed_forward_dim=24, **SIZES)
CONFIGS = {
    "transformer": TransformerConfig(num_layers=2, **LAYERS),
    "window": TransformerConfig(
        num_layers=1, encoder_attention_window=3, decoder_attention_window=3, positions="rotary",
        **LAYERS,
    ),
    "recurrent": RecurrentConfig(
        hidden_dim=12, input_feeding=True, intra_temporal_attention=True,
        intra_decoder_attention=True, **SIZES,
    ),
    "universal": UniversalConfig(num_steps=2, **LAYERS),
}  # fmt: skip


def make_batches() -> dict[str, np.ndarray]:
    """Sentences of 1 to 9 tokens, so that batches and rows differ in their numbers of tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 10, size=(UPDATES * ROWS, 1))
    labels = np.where(np.arange(9) < lengths, random.integers(3, 30, (len(lengths), 9)), 0)
    source = np.where(np.arange(9) < lengths, random.integers(3, 30, (len(lengths), 9)), 0)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    return {"source": source, "target": target, "labels": labels}


def flat_weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.fixture(scope="module", params=["jax", "torch"])
def backend(request) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}, which is not installed")
    return request.param


@pytest.fixture(scope="module")
def results(backend, tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    """The other backend's results by model, with TensorFlow's as "tensorflow_..."."""
    folder = tmp_path_factory.mktemp(backend)
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[1]
    (folder / "example.py").write_text(example, encoding="utf-8")
    (folder / "tensorflow.py").write_text("raise ModuleNotFoundError('tensorflow was imported')")
    batches = make_batches()
    np.savez(folder / "batches.npz", **batches)
    models = {}
    for name, config in CONFIGS.items():
        keras.utils.set_random_seed(0)
        models[name] = build_model(config)
        # Adam would amplify the rounding of gradients near 0.
        optimizer = keras.optimizers.SGD(InverseSquareRoot(1, warmup_steps=100), momentum=0.9)
        metrics = [TokenAccuracy(), Perplexity()]
        models[name].compile(optimizer, SmoothedCrossEntropy(), metrics=metrics)
        models[name].optimizer.build(models[name].trainable_variables)
        models[name].save(folder / f"{name}.keras")
    path = [str(folder), str(ROOT), *sys.path]
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), *models, "readme"],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    inputs = {name: batches[name] for name in ("source", "target")}
    first = {name: rows[:3, :4] if name == "target" else rows[:3] for name, rows in inputs.items()}
    expected = {}
    for name, model in models.items():
        start, call = flat_weights(model), np.asarray(model(first))
        shown = model.fit(inputs, batches["labels"], batch_size=ROWS, shuffle=False, verbose=0)
        expected[name] = {
            "tensorflow_call": call,
            "tensorflow_weights": flat_weights(model),
            "tensorflow_metrics": [shown.history[key][0] for key in ("accuracy", "perplexity")],
            "change": np.abs(flat_weights(model) - start).max(),
        }
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return {
        name: dict(np.load(folder / f"{name}.npz")) | expected.get(name, {})
        for name in (*models, "readme")
    }


@pytest.mark.slow
def test_readme_example_trains_saves_and_loads(results, backend):
    example = results["readme"]
    assert example["backend"] == backend
    is_right = example["logits"].argmax(-1) == example["labels"]
    assert is_right.mean() > 0.8  # copying is easy: the model must have learned it
    np.testing.assert_array_equal(example["logits_read_back"], example["logits"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_call_and_steps_equal_tensorflow(results, name):
    expected = results[name]["tensorflow_call"]
    assert np.abs(expected).max() > 0.1
    for found in ("call", "growing", "fixed"):
        np.testing.assert_allclose(results[name][found], expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_20_updates_equal_tensorflow(results, name):
    result = results[name]
    assert result["change"] > 0.005
    np.testing.assert_allclose(result["weights"], result["tensorflow_weights"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(result["metrics"], result["tensorflow_metrics"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_attention_sums_to_1_or_0_for_padding(results, name):
    sums = results[name]["attention_sums"]
    assert (np.minimum(abs(sums), abs(sums - 1)) < 1e-5).all()
    assert sums.max() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_mixed_precision_trains_with_dropout(results, name):
    result = results[name]
    assert (result["computes_in"], result["stores"]) == ("bfloat16", "float32")
    first, *_, last = result["dropout_losses"]
    assert last < 0.95 * first


def test_search_on_another_backend_is_rejected(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match="need Keras's TensorFlow backend, got 'jax'; set KERAS"):
        importlib.reload(search)
