"""A program for test_backends.py: trains, saves and decodes without TensorFlow.

    KERAS_BACKEND=jax python other_backend.py FOLDER [ARCHITECTURE ...]

FOLDER holds README.md's first example (example.py), a compiled model (start.keras) and its batches
(batches.npz), both written under TensorFlow. Leaves what the tests look at in results.npz; for
architectures, of which FOLDER holds ARCHITECTURE.keras, in ARCHITECTURE.npz.
"""

import os
import pathlib
import sys
from typing import Any

import keras
import numpy as np

from keras_transformer import ModelConfig, SmoothedCrossEntropy, Transformer

Array = np.ndarray
Results = dict[str, Any]


def run_the_example(program: str) -> tuple[Transformer, dict[str, Array], Results]:
    """Runs the example, and reads back the model that it saved.

    Returns that model, its inputs, and the logits of the model before and after.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "README.md", "exec"), names)
    inputs = {"source": names["labels"][:200], "target": names["shifted"][:200]}
    again = keras.models.load_model("copy.keras")
    return (
        again,
        inputs,
        {
            "labels": inputs["source"],
            "logits": names["model"].predict(inputs, verbose=0),
            "logits_read_back": again.predict(inputs, verbose=0),
        },
    )


def train_on(model: Transformer, batches: dict[str, Array]) -> Results:
    """Trains as test_backends.py does under TensorFlow."""
    rows = len(batches["labels"]) // 20
    inputs = {"source": batches["source"], "target": batches["target"]}
    shown = model.fit(inputs, batches["labels"], batch_size=rows, shuffle=False, verbose=0).history
    return {
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "metrics": np.array([shown[name][0] for name in ("accuracy", "perplexity")]),
    }


def steps(model: Any, step: Any, source: Array, target: Array, capacity: int | None) -> Array:
    """Returns the logits of one step after the other."""
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


def decode(model: Transformer, source: Array, target: Array) -> Results:
    """Returns the logits of `call`, and of `step` with a state that grows and one that does not."""

    step: Any = model.step
    attentions: Any = model.attentions
    if keras.backend.backend() == "jax":
        import jax

        step, attentions = jax.jit(step), jax.jit(attentions)
    weights = attentions({"source": source, "target": target}).values()
    sums = [keras.ops.convert_to_numpy(keras.ops.sum(each, axis=-1)).ravel() for each in weights]
    return {
        "attention_sums": np.stack(sums),
        "call": keras.ops.convert_to_numpy(model({"source": source, "target": target})),
        "growing": steps(model, step, source, target, None),
        "fixed": steps(model, step, source, target, target.shape[1] + 2),
    }


def train_in_half_precision(inputs: dict[str, Array]) -> Results:
    config = ModelConfig.preset("tiny", vocabulary_size=20, num_layers=1)
    model = Transformer(config, dtype="mixed_bfloat16")
    model.compile(keras.optimizers.Adam(3e-3), SmoothedCrossEntropy())
    shown = model.fit(inputs, inputs["source"], batch_size=20, epochs=5, verbose=0).history
    return {
        "half_precision_losses": np.array(shown["loss"]),
        "half_precision_computes_in": model.compute_dtype,
        "half_precision_weights": str(model.weights[0].dtype),
    }


def run_architecture(name: str) -> None:
    """Calls, steps and trains a model; none of its searches needs a capacity."""
    model, arrays = keras.models.load_model(f"{name}.keras"), dict(np.load("batches.npz"))
    inputs = {key: arrays[key][:6] for key in ("source", "target")}
    step: Any = model.step
    if keras.backend.backend() == "jax":
        import jax

        step = jax.jit(step)
    call = keras.ops.convert_to_numpy(model(inputs))
    stepped = steps(model, step, inputs["source"], inputs["target"][:, :3], None)
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
    losses = model.fit(inputs, arrays["labels"][:6], epochs=3, verbose=0).history["loss"]
    np.savez(f"{name}.npz", call=call, steps=stepped, losses=losses)


def main(folder: pathlib.Path, architectures: list[str]) -> None:
    os.chdir(folder)
    keras.utils.set_random_seed(1)
    if architectures:
        for name in architectures:
            run_architecture(name)
        return
    results = train_on(keras.models.load_model("start.keras"), dict(np.load("batches.npz")))
    program = pathlib.Path("example.py").read_text(encoding="utf-8")
    model, inputs, example = run_the_example(program)
    results |= example | decode(model, inputs["source"][:3], inputs["target"][:3])
    results |= train_in_half_precision(inputs)
    np.savez("results.npz", backend=keras.backend.backend(), **results)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
