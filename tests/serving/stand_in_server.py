"""Stands in for tensorflow_model_server where there is none: an export in a session, over the fake
server's gRPC and REST.

It takes the flags of serve.sh, serves the highest version, and does not batch. It shows that the
client works with an export; the rest of the server it does not have.
"""

import argparse
import pathlib
import sys
import time
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops)
from google.protobuf import text_format
from tensorflow.core.framework import types_pb2
from tensorflow_serving.config import model_server_config_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "client"))

from fake_server import Model, serve_grpc, serve_rest


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8500)
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--model_config_file", type=pathlib.Path)
    parser.add_argument("--file_system_poll_wait_seconds", type=float, default=1.0)
    flags, _ = parser.parse_known_args()
    models = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(flags.model_config_file.read_text(), models)
    (served,) = models.model_config_list.config
    model = Model({}, lambda signature, inputs: {}, served.name)
    model.versions = {}
    with serve_grpc(model, flags.port), serve_rest(model, flags.rest_api_port):
        while True:
            paths = pathlib.Path(served.base_path).glob("[0-9]*")
            version = max((int(path.name) for path in paths), default=0)
            if version and version not in model.versions:
                load(model, version, pathlib.Path(served.base_path, str(version)))
            time.sleep(flags.file_system_poll_wait_seconds)


def load(model: Model, version: int, folder: pathlib.Path) -> None:
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def

    def predict(signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        fed = {loaded[signature].inputs[name].name: values for name, values in inputs.items()}
        fetched = {name: info.name for name, info in loaded[signature].outputs.items()}
        values = session.run(fetched, fed)
        return {name: decode(value.tolist()) for name, value in values.items()}

    model.signatures = {
        name: {key: types_pb2.DataType.Name(info.dtype) for key, info in each.inputs.items()}
        for name, each in loaded.items()
        if each.inputs
    }
    model.versions[version] = predict


def decode(values: Any) -> Any:
    if isinstance(values, list):
        return [decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


if __name__ == "__main__":
    main()
