"""Programs for test_backends.py: models and layers on another backend, without TensorFlow.

    KERAS_BACKEND=jax python other_backend.py FOLDER PROGRAM

FOLDER has batches.npz and what TensorFlow saved: NAME.keras of each model, and layers.keras. A
program leaves its results in FOLDER/NAME.npz. "models" calls, steps and trains each model, and
calls the layers; "distribution" trains with `keras.distribution` on eight virtual devices (JAX).
"""

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer import SmoothedCrossEntropy, TransformerConfig, build_model

Array = np.ndarray
IS_JAX = keras.backend.backend() == "jax"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as one program under JAX, which else compiles each operation alone."""
    if not IS_JAX:
        return function
    import jax

    return jax.jit(function)


def run_layers(batches: dict[str, Array]) -> dict[str, Array]:
    """Calls the functional model of layers."""
    model = keras.models.load_model("layers.keras")
    outputs = compiled(model)([batches["source"][:3], batches["target"][:3]])
    return {f"output_{i}": keras.ops.convert_to_numpy(y) for i, y in enumerate(outputs)}


def steps(model: Any, source: Array, target: Array, capacity: int | None) -> Array:
    """Returns the logits [B, T, V] of one step after the other."""
    state = compiled(lambda source: model.encode(source, capacity=capacity))(source)
    step, logits = compiled(model.step), []
    for time in range(target.shape[1]):
        row, state = step(target[:, time : time + 1], state)
        logits.append(keras.ops.convert_to_numpy(row))
    return np.concatenate(logits, axis=1)


def run_model(name: str, batches: dict[str, Array]) -> dict[str, Any]:
    model = keras.models.load_model(f"{name}.keras")
    source, target = batches["source"][:3], batches["target"][:3, :3]
    inputs = {"source": source, "target": target}
    logits, weights = compiled(lambda x: (model(x), model.attentions(x)))(inputs)
    sums = [keras.ops.convert_to_numpy(each).sum(axis=-1).ravel() for each in weights.values()]
    capacity = target.shape[1] + 2 if IS_JAX else None  # JAX would compile a growing cache anew
    results = {
        "attention_sums": np.concatenate(sums),
        "call": keras.ops.convert_to_numpy(logits),
        "steps": steps(model, source, target, capacity),
    }
    return results | train(model, batches) | train_with_dropout(model, batches)


def train(model: Any, batches: dict[str, Array]) -> dict[str, Any]:
    """Runs the updates that test_backends.py runs under TensorFlow."""
    inputs = {"source": batches["source"], "target": batches["target"]}
    shown = model.fit(inputs, batches["labels"], batch_size=8, shuffle=False, verbose=0).history
    return {
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "metrics": np.array([shown[name][0] for name in ("accuracy", "perplexity")]),
    }


def train_with_dropout(model: Any, batches: dict[str, Array]) -> dict[str, Any]:
    """Trains a new model in mixed precision and with dropout, in one batch."""
    model = build_model(model.config.replace(dropout=0.1), dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
    inputs = {"source": batches["source"], "target": batches["target"]}
    shown = model.fit(inputs, batches["source"], batch_size=200, epochs=20, verbose=0).history
    return {
        "dropout_losses": np.array(shown["loss"]),
        "computes_in": model.compute_dtype,
        "stores": str(model.weights[0].dtype),
    }


DISTRIBUTED = TransformerConfig(
    vocabulary_size=32, model_dim=16, num_layers=1, num_heads=2, feed_forward_dim=24, dropout=0.0
)


def train_distributed(batches: dict[str, Array]) -> dict[str, dict[str, Any]]:
    """Trains a model on one device, with data parallelism and with model parallelism."""
    distribution = keras.distribution
    devices = distribution.list_devices()
    assert len(devices) == 8
    data = distribution.DataParallel(device_mesh=distribution.DeviceMesh((8,), ["batch"], devices))
    mesh = distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    layout = distribution.LayoutMap(mesh)
    layout[".*embedding/table"] = ("model", None)
    matrices = "query|key_value|query_key_value|inner|projection|output|memory"
    layout[f".*/({matrices})/kernel"] = (None, "model")
    model = distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    results: dict[str, dict[str, Any]] = {}
    for way, chosen in (("one", None), ("data", data), ("model", model)):
        distribution.set_distribution(chosen)
        keras.utils.set_random_seed(1)
        built = build_model(DISTRIBUTED)
        start = built.get_weights()
        built.compile(keras.optimizers.SGD(0.3, momentum=0.9), SmoothedCrossEntropy())
        inputs = {"source": batches["source"], "target": batches["target"]}
        built.fit(inputs, batches["labels"], batch_size=8, shuffle=False, verbose=0)
        weights = built.get_weights()
        results[way] = {
            "weights": np.concatenate([weight.ravel() for weight in weights]),
            "change": max(np.abs(a - b).max() for a, b in zip(weights, start, strict=True)),
            "sharded": sum(not weight.value.is_fully_replicated for weight in built.weights),
        }
    return results


def main(folder: pathlib.Path, program: str) -> None:
    os.chdir(folder)
    keras.utils.set_random_seed(1)
    batches = dict(np.load("batches.npz"))
    if program == "distribution":
        results: dict[str, dict[str, Any]] = train_distributed(batches)
    else:
        names = [path.stem for path in pathlib.Path().glob("*.keras")]
        results = {name: run_model(name, batches) for name in names if name != "layers"}
        results["layers"] = run_layers(batches)
    for name, values in results.items():
        np.savez(f"{name}.npz", backend=keras.backend.backend(), **values)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
