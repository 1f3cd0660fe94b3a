"""A program for test_backends.py: calls, steps, trains and saves models without TensorFlow.

    KERAS_BACKEND=jax python other_backend.py FOLDER MODEL [MODEL ...]

FOLDER has MODEL.keras, written under TensorFlow, and batches.npz. Leaves the results of each model
in MODEL.npz. The model "readme" is README.md's first example, example.py.
"""

import os
import pathlib
import sys
from typing import Any

import keras
import numpy as np

from keras_transformer import SmoothedCrossEntropy, build_model

Array = np.ndarray
UPDATES = 20


def run_the_example() -> dict[str, Array]:
    """Runs the example, and reads back the model that it saved."""
    names: dict[str, Any] = {"__name__": "__main__"}
    program = pathlib.Path("example.py").read_text(encoding="utf-8")
    exec(compile(program, "README.md", "exec"), names)
    inputs = {"source": names["labels"][:200], "target": names["shifted"][:200]}
    again = keras.models.load_model("copy.keras")
    return {
        "labels": inputs["source"],
        "logits": names["model"].predict(inputs, verbose=0),
        "logits_read_back": again.predict(inputs, verbose=0),
    }


def steps(model: Any, step: Any, source: Array, target: Array, capacity: int | None) -> Array:
    """Returns the logits [B, T, V] of one step after the other."""
    state = model.encode(source, capacity=capacity)
    logits = []
    for time in range(target.shape[1]):
        if capacity is not None:
            ancestors = np.where(np.arange(capacity) <= time, 0, -1).astype("int32")
            ancestors = np.broadcast_to(ancestors, (len(source), 1, capacity))
            state = state._replace(time=np.int32(time), ancestors=ancestors)
        row, state = step(target[:, time : time + 1], state)
        logits.append(keras.ops.convert_to_numpy(row))
    return np.concatenate(logits, axis=1)


def run_model(name: str, batches: dict[str, Array]) -> dict[str, Any]:
    model = keras.models.load_model(f"{name}.keras")
    source, target = batches["source"][:3], batches["target"][:3, :4]
    step: Any = model.step
    if keras.backend.backend() == "jax":
        import jax

        step = jax.jit(step)
    weights = model.attentions({"source": source, "target": target}).values()
    sums = [keras.ops.convert_to_numpy(keras.ops.sum(each, axis=-1)).ravel() for each in weights]
    results = {
        "attention_sums": np.concatenate(sums),
        "call": keras.ops.convert_to_numpy(model({"source": source, "target": target})),
        "growing": steps(model, step, source, target, None),
        "fixed": steps(model, step, source, target, target.shape[1] + 2),
    }
    return results | train(model, batches) | train_with_dropout(model, batches)


def train(model: Any, batches: dict[str, Array]) -> dict[str, Any]:
    """Runs the 20 updates that test_backends.py runs under TensorFlow."""
    inputs = {"source": batches["source"], "target": batches["target"]}
    rows = len(batches["labels"]) // UPDATES
    shown = model.fit(inputs, batches["labels"], batch_size=rows, shuffle=False, verbose=0).history
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


def main(folder: pathlib.Path, models: list[str]) -> None:
    os.chdir(folder)
    keras.utils.set_random_seed(1)
    batches = dict(np.load("batches.npz"))
    for name in models:
        results = run_the_example() if name == "readme" else run_model(name, batches)
        np.savez(f"{name}.npz", backend=keras.backend.backend(), **results)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
