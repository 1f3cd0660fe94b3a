"""Layers, models, loss, metrics and schedule on JAX and PyTorch, without TensorFlow.

See other_backend.py, whose processes run beside this one; in them `import tensorflow` fails.
"""

import importlib
import importlib.util
import os
import pathlib
import shutil
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
from keras_transformer.layers import Decoder, Encoder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("other_backend.py")
BACKENDS = [name for name in ("jax", "torch") if importlib.util.find_spec(name) is not None]
UPDATES, ROWS = 12, 8
SIZES = dict(vocabulary_size=30, model_dim=16, dropout=0.0)
HEADS = dict(num_heads=2, feed_forward_dim=24)
CONFIGS = {
    "transformer": TransformerConfig(
        num_layers=1, positions="relative", decoder_attention_window=3, **HEADS, **SIZES
    ),
    "recurrent": RecurrentConfig(hidden_dim=12, intra_decoder_attention=True, **SIZES),
    "student": TransformerConfig(num_layers=1, decoder_mixer="ssru", **HEADS, **SIZES),
    "universal": UniversalConfig(num_steps=2, **HEADS, **SIZES),
}  # fmt: skip
slow = pytest.mark.slow
every_model = pytest.mark.parametrize("name", CONFIGS)


def make_batches() -> dict[str, np.ndarray]:
    """Sentences of 1 to 9 tokens, so that batches and rows differ in their numbers of tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 10, size=(UPDATES * ROWS, 1))
    labels = np.where(np.arange(9) < lengths, random.integers(3, 30, (len(lengths), 9)), 0)
    source = np.where(np.arange(9) < lengths, random.integers(3, 30, (len(lengths), 9)), 0)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
    return {"source": source, "target": target, "labels": labels}


def make_layers() -> keras.Model:
    """Stacks in a functional model, with implicit masks of `Embedding`."""
    sizes = dict(num_layers=2, feed_forward_dim=12, num_heads=2, key_dim=4, value_dim=6)
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embed = keras.layers.Embedding(30, 8, mask_zero=True)
    memory, scores = Encoder(norm_position="pre", **sizes)(
        embed(source), return_attention_scores=True
    )
    return keras.Model([source, target], [memory, scores, Decoder(**sizes)(embed(target), memory)])


def flat_weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def start(backend: str, folder: pathlib.Path) -> subprocess.Popen:
    environment = {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *sys.path]),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes longer than running
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A folder of results for each backend that is installed, and TensorFlow's."""
    common = tmp_path_factory.mktemp("tensorflow")
    (common / "tensorflow.py").write_text("raise ModuleNotFoundError('tensorflow was imported')")
    batches = make_batches()
    np.savez(common / "batches.npz", **batches)
    keras.utils.set_random_seed(0)
    layers = make_layers()
    layers.save(common / "layers.keras")
    models = {name: build_model(config) for name, config in CONFIGS.items()}
    for name, model in models.items():
        # Adam would amplify the rounding of gradients near 0.
        optimizer = keras.optimizers.SGD(InverseSquareRoot(1, warmup_steps=100), momentum=0.9)
        metrics = [TokenAccuracy(), Perplexity()]
        model.compile(optimizer, SmoothedCrossEntropy(), metrics=metrics)
        model.optimizer.build(model.trainable_variables)
        model.save(common / f"{name}.keras")
    folders = {
        name: pathlib.Path(shutil.copytree(common, tmp_path_factory.mktemp("others") / name))
        for name in BACKENDS
    }
    processes = [start(name, folder) for name, folder in folders.items()]
    inputs = {name: batches[name] for name in ("source", "target")}
    first = {"source": batches["source"][:3], "target": batches["target"][:3, :3]}
    outputs = layers([inputs["source"][:3], inputs["target"][:3]])
    np.savez(common / "layers.npz", **{f"output_{i}": y for i, y in enumerate(outputs)})
    for name, model in models.items():
        weights, call = flat_weights(model), np.asarray(model(first))
        shown = model.fit(inputs, batches["labels"], batch_size=ROWS, shuffle=False, verbose=0)
        np.savez(
            common / f"{name}.npz",
            call=call,
            weights=flat_weights(model),
            metrics=[shown.history[key][0] for key in ("accuracy", "perplexity")],
            change=np.abs(flat_weights(model) - weights).max(),
        )
    for process in processes:
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors
    return folders | {"tensorflow": common}


@pytest.fixture(scope="module", params=("jax", "torch"))
def results(request, folders):
    """Gives the results of a name on another backend."""
    if request.param not in folders:
        pytest.skip(f"needs {request.param}, which is not installed")
    return lambda name: dict(np.load(folders[request.param] / f"{name}.npz"))


@pytest.fixture(scope="module")
def expected(folders):
    return lambda name: dict(np.load(folders["tensorflow"] / f"{name}.npz"))


@slow
def test_layers_of_a_functional_model_equal_tensorflow(results, expected):
    found, outputs = results("layers"), expected("layers")
    for name, output in outputs.items():
        np.testing.assert_allclose(found[name], output, rtol=0, atol=1e-5)


@slow
@every_model
def test_model_calls_steps_and_trains_as_under_tensorflow(results, expected, name):
    found, theirs = results(name), expected(name)
    assert found["backend"] in ("jax", "torch")
    assert np.abs(theirs["call"]).max() > 0.1
    for way in ("call", "steps"):
        np.testing.assert_allclose(found[way], theirs["call"], rtol=0, atol=1e-5)
    assert theirs["change"] > 0.005
    np.testing.assert_allclose(found["weights"], theirs["weights"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["metrics"], theirs["metrics"], rtol=1e-5)
    sums = found["attention_sums"]  # 0 for padding
    assert (np.minimum(abs(sums), abs(sums - 1)) < 1e-5).all()
    assert sums.max() > 0.5
    if name == "transformer":  # with dropout, in mixed precision
        assert found["dtypes"].tolist() == ["bfloat16", "float32"]
        first, *_, last = found["dropout_losses"]
        assert last < 0.95 * first


def test_search_on_another_backend_is_rejected(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match="Keras's TensorFlow backend, got 'jax'; set KERAS"):
        importlib.reload(search)
