"""Calls, steps and trains models and layers on another backend, without TensorFlow.

    KERAS_BACKEND=jax python other_backend.py FOLDER

FOLDER has batches.npz and what TensorFlow saved: NAME.keras of each model, and layers.keras.
Results go to FOLDER/NAME.npz.
"""

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer import SmoothedCrossEntropy, build_model

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
    # The updates that test_backends.py runs under TensorFlow.
    inputs = {"source": batches["source"], "target": batches["target"]}
    shown = model.fit(inputs, batches["labels"], batch_size=8, shuffle=False, verbose=0).history
    results["weights"] = np.concatenate([weight.ravel() for weight in model.get_weights()])
    results["metrics"] = np.array([shown[name][0] for name in ("accuracy", "perplexity")])
    if name == "transformer":  # in mixed precision and with dropout, all rows in one batch
        model = build_model(model.config.replace(dropout=0.1), dtype="mixed_bfloat16")
        model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
        shown = model.fit(inputs, batches["source"], batch_size=200, epochs=20, verbose=0).history
        results["dropout_losses"] = np.array(shown["loss"])
        results["dtypes"] = [model.compute_dtype, str(model.weights[0].dtype)]
    return results


def main(folder: pathlib.Path) -> None:
    os.chdir(folder)
    keras.utils.set_random_seed(1)
    batches = dict(np.load("batches.npz"))
    names = [path.stem for path in pathlib.Path().glob("*.keras")]
    results = {name: run_model(name, batches) for name in names if name != "layers"}
    results["layers"] = run_layers(batches)
    for name, values in results.items():
        np.savez(f"{name}.npz", backend=keras.backend.backend(), **values)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
