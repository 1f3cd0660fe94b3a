"""Layers, models, loss, metrics and schedule on JAX and PyTorch, where there is no TensorFlow.

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
    ModelConfig,
    Perplexity,
    RecurrentConfig,
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
    UniversalConfig,
    build_model,
    search,
)
from keras_transformer.errors import InputError

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("other_backend.py")
UPDATES, ROWS = 20, 6


def make_batches() -> dict[str, np.ndarray]:
    """Sentences of 1 to 9 tokens, so that batches and rows differ in their numbers of tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 10, size=(UPDATES * ROWS, 1))
    labels = np.where(np.arange(9) < lengths, random.integers(3, 30, (len(lengths), 9)), 0)
    source = np.where(np.arange(7) < lengths, random.integers(3, 30, (len(lengths), 7)), 0)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    return {"source": source, "target": target, "labels": labels}


def flat_weights(model: Transformer) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.fixture(scope="module", params=["jax", "torch"])
def backend(request) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}, which is not installed")
    return request.param


def start(backend: str, folder: pathlib.Path, *architectures: str) -> "subprocess.Popen[str]":
    """Starts the program for another backend, in which `import tensorflow` fails."""
    no_tensorflow = "raise ModuleNotFoundError('tensorflow was imported')"
    (folder / "tensorflow.py").write_text(no_tensorflow, encoding="utf-8")
    path = [str(folder), str(ROOT), *sys.path]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), *architectures],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def results(backend, tmp_path_factory) -> dict[str, np.ndarray]:
    """What the other backend gave, and under "tensorflow_..." what TensorFlow gives."""
    folder = tmp_path_factory.mktemp(backend)
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[1]
    (folder / "example.py").write_text(example, encoding="utf-8")
    batches = make_batches()
    np.savez(folder / "batches.npz", **batches)
    keras.utils.set_random_seed(0)
    model = Transformer(ModelConfig.preset("tiny", vocabulary_size=30, dropout=0.0))
    optimizer = keras.optimizers.Adam(InverseSquareRoot(128, warmup_steps=100), beta_2=0.98)
    model.compile(optimizer, SmoothedCrossEntropy(), metrics=[TokenAccuracy(), Perplexity()])
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "start.keras")
    process = start(backend, folder)
    first = flat_weights(model)
    inputs, labels = {"source": batches["source"], "target": batches["target"]}, batches["labels"]
    shown = model.fit(inputs, labels, batch_size=ROWS, shuffle=False, verbose=0).history
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return dict(np.load(folder / "results.npz")) | {
        "asked": backend,
        "start": first,
        "tensorflow_weights": flat_weights(model),
        "tensorflow_metrics": np.array([shown[name][0] for name in ("accuracy", "perplexity")]),
    }


@pytest.mark.slow
def test_other_architectures_call_step_and_train_as_under_tensorflow(backend, tmp_path):
    sizes = dict(vocabulary_size=30, model_dim=8, dropout=0.0)
    options = ("input_feeding", "intra_temporal_attention", "intra_decoder_attention")
    layers = dict(num_heads=2, feed_forward_dim=12, **sizes)
    configs = {
        "recurrent": RecurrentConfig(hidden_dim=6, **dict.fromkeys(options, True), **sizes),
        "universal": UniversalConfig(num_steps=2, **layers),
        "window": TransformerConfig(
            num_layers=1, encoder_attention_window=3, decoder_attention_window=3,
            positions="rotary", **layers,
        ),
    }  # fmt: skip
    batches = make_batches()
    inputs, labels = {key: batches[key][:6] for key in ("source", "target")}, batches["labels"][:6]
    np.savez(tmp_path / "batches.npz", **batches)
    keras.utils.set_random_seed(0)
    models = {name: build_model(config) for name, config in configs.items()}
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
    process = start(backend, tmp_path, *models)
    expected = {name: np.asarray(model(inputs)) for name, model in models.items()}
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    for name, model in models.items():
        found = np.load(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(found["call"], expected[name], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["steps"], expected[name][:, :3], rtol=0, atol=1e-5)
        model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
        losses = model.fit(inputs, labels, epochs=3, verbose=0).history["loss"]
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)


@pytest.mark.slow
def test_the_first_example_trains_saves_and_loads_without_tensorflow(results):
    assert results["backend"] == results["asked"]
    is_right = results["logits"].argmax(-1) == results["labels"]
    assert is_right.mean() > 0.8  # copying is easy: the model must have learned it
    np.testing.assert_array_equal(results["logits_read_back"], results["logits"])


@pytest.mark.slow
def test_20_updates_of_a_model_file_are_those_of_tensorflow(results):
    assert np.abs(results["tensorflow_weights"] - results["start"]).max() > 0.005
    np.testing.assert_allclose(results["weights"], results["tensorflow_weights"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(results["metrics"], results["tensorflow_metrics"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["growing", "fixed"])
def test_steps_equal_the_full_pass(results, state):
    assert np.abs(results["call"]).max() > 0.1
    np.testing.assert_allclose(results[state], results["call"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_attention_sums_to_1_and_to_0_for_padding(results):
    sums = results["attention_sums"]  # of all rows of encoder, decoder and cross
    assert len(sums) == 3
    assert (np.minimum(abs(sums), abs(sums - 1)) < 1e-5).all()
    assert (sums.max(axis=1) > 0.5).all()


@pytest.mark.slow
def test_mixed_precision_trains(results):
    assert results["half_precision_computes_in"] == "bfloat16"
    assert results["half_precision_weights"] == "float32"
    first, *_, last = results["half_precision_losses"]
    assert last < 0.9 * first


def test_search_on_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match="need Keras's TensorFlow backend, got 'jax'; set KERAS"):
        importlib.reload(search)
