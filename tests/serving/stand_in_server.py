"""A replacement of tensorflow_model_server with its flags, in Python.

It shows that the client works with an export. It proves nothing about the server: it runs the
SavedModel in Python, and does not batch.
"""

import argparse
import pathlib
import sys
import time
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops)
from tensorflow.core.framework import types_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "client"))

from fake_server import Model, serve_grpc, serve_rest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--rest_api_port", type=int)
    parser.add_argument("--model_name")
    parser.add_argument("--model_base_path", type=pathlib.Path)
    parser.add_argument("--file_system_poll_wait_seconds", type=float)
    parser.add_argument("--enable_batching")
    parser.add_argument("--batching_parameters_file", type=argparse.FileType())
    parser.add_argument("--tensorflow_session_config_file", type=argparse.FileType())
    flags = parser.parse_args()
    model = Model({}, lambda signature, inputs: {}, flags.model_name)
    model.versions, model.states = {}, {}
    with serve_grpc(model, flags.port), serve_rest(model, flags.rest_api_port):
        while True:
            versions = [int(path.name) for path in flags.model_base_path.glob("[0-9]*")]
            for version in versions:
                if version == max(versions) and version not in model.versions:
                    load(model, version, flags.model_base_path / str(version))
            time.sleep(flags.file_system_poll_wait_seconds)


def load(model: Model, version: int, folder: pathlib.Path) -> None:
    """Serves a version instead of the one before."""
    loaded = tf.saved_model.load(str(folder))
    specs = {
        name: signature.structured_input_signature[1]
        for name, signature in loaded.signatures.items()
    }

    def predict(signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        tensors = {
            name: tf.constant(values, specs[signature][name].dtype)
            for name, values in inputs.items()
        }
        outputs = loaded.signatures[signature](**tensors)
        return {name: decode(value.numpy().tolist()) for name, value in outputs.items()}

    model.signatures = {
        name: {
            key: types_pb2.DataType.Name(spec.dtype.as_datatype_enum)
            for key, spec in inputs.items()
        }
        for name, inputs in specs.items()
    }
    model.versions[version] = predict
    older = {number: ("END", "") for number in model.states}
    model.states = {**older, version: ("AVAILABLE", "")}


def decode(values: Any) -> Any:
    if isinstance(values, list):
        return [decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


if __name__ == "__main__":
    main()
