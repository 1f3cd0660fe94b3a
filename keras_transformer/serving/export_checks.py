"""Looks at a SavedModel before it is published: would a stock model server serve it, and rightly?

A stock server has TensorFlow's operations and those of TensorFlow Text, and no Python.
"""

import pathlib
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.errors import InputError
from keras_transformer.serving import replay_warm_up
from keras_transformer.serving.warm_up import Request

# Call back into the Python process that made the graph.
_PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}
_TOLERANCE = 1e-4  # of numbers, absolute and relative


def check_operations(version: pathlib.Path, *, allow_xla: bool = False) -> list[str]:
    """Looks through the operations of a SavedModel, those in its functions included.

    Args:
        version: its folder.
        allow_xla: whether some may be compiled by XLA, which a server must be started for.

    Returns:
        The names of those that are not TensorFlow's own. Whether TensorFlow Text has them shows
        in `compare_answers`.

    Raises:
        InputError: there is one that no stock server runs.
    """
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    functions = [
        function for graph in model.meta_graphs for function in graph.graph_def.library.function
    ]
    nodes = [node for graph in model.meta_graphs for node in graph.graph_def.node]
    nodes += [node for function in functions for node in function.node_def]
    operations = {node.op for node in nodes}
    if found := sorted(operations & _PYTHON_OPERATIONS):
        raise InputError(
            f"the export calls Python ({', '.join(found)}), which a model server does not have; "
            "write that part of the model with TensorFlow operations"
        )
    is_compiled = any(holder.attr["_XlaMustCompile"].b for holder in [*nodes, *functions])
    if (is_compiled or any(name.startswith("Xla") for name in operations)) and not allow_xla:
        raise InputError(
            "the export has functions that XLA must compile, which a stock model server refuses; "
            "make the Translator without xla, or allow XLA"
        )
    called = {function.signature.name for function in functions}
    return sorted(name for name in operations - called if not hasattr(tf.raw_ops, name))


def compare_answers(
    version: pathlib.Path, requests: Sequence[Request], signatures: Mapping[str, Any]
) -> None:
    """Lets a fresh process without this package answer the warm-up requests, and compares.

    Args:
        version: the folder of the SavedModel, with the file of these requests in it.
        requests: what was written there.
        signatures: the functions in Python, by name.

    Raises:
        InputError: the process fails, or answers otherwise than Python.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "answers")
        process = subprocess.Popen(
            [sys.executable, "-I", replay_warm_up.__file__, str(version), str(path), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            expected = [_answer(signatures[name], inputs) for name, inputs in requests]
            output, _ = process.communicate()
        finally:
            process.kill()
        if process.returncode:
            reason = textwrap.shorten(output, 300) or f"it ended with {process.returncode}"
            raise InputError(
                f"a fresh process without keras_transformer cannot run the export: {reason}"
            )
        answers = list(_read_answers(path))
    for request, ours, theirs in zip(requests, expected, answers, strict=True):
        _compare(request.signature, ours, theirs)


def _answer(function: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # On a CPU as the other process: GPUs round otherwise.
    with tf.device("/CPU:0"):
        outputs = function(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}


def _read_answers(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log
        yield {name: tf.make_ndarray(value) for name, value in log.response.outputs.items()}


def _compare(signature: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raises `InputError` where an answer is another one, or is a number that JSON has not."""
    if ours.keys() != theirs.keys():
        raise InputError(
            f"signature {signature} gives {', '.join(sorted(theirs))} when exported, but "
            f"{', '.join(sorted(ours))} in Python"
        )
    for name, expected in ours.items():
        found = theirs[name]
        if expected.dtype.kind == "f":
            if not np.isfinite(expected).all():
                raise InputError(f"output {name} of signature {signature} has infinite numbers")
            is_same = expected.shape == found.shape and np.allclose(
                found, expected, rtol=_TOLERANCE, atol=_TOLERANCE
            )
        else:
            is_same = np.array_equal(found, expected)
        if not is_same:
            raise InputError(
                f"output {name} of signature {signature} is another one when exported: "
                + textwrap.shorten(f"{found!r} in place of {expected!r}", 300)
            )
