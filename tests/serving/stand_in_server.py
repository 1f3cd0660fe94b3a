"""A replacement of tensorflow_model_server with its flags, in Python.

It runs the SavedModel in a session, with the session's configuration and numbers of threads as the
server has them, and does not batch. It shows that the client works with an export, and that the
flags of a command do not stop the session; the rest of the server it does not have.
"""

import argparse
import pathlib
import sys
import time
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401  (loads the tokenizer's ops)
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow_serving.config import model_server_config_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "client"))

from fake_server import FaultError, Model, serve_grpc, serve_rest

TIMEOUT_MS = 30_000  # of a request


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=8500)
    parser.add_argument("--rest_api_port", type=int, default=8501)
    parser.add_argument("--model_config_file", type=pathlib.Path)
    parser.add_argument("--file_system_poll_wait_seconds", type=float, default=1.0)
    parser.add_argument("--enable_batching", nargs="?")
    parser.add_argument("--batching_parameters_file", type=argparse.FileType())
    parser.add_argument("--grpc_max_threads", type=int, default=8)
    parser.add_argument("--rest_api_num_threads", type=int)
    parser.add_argument("--rest_api_timeout_in_ms", type=int)
    parser.add_argument("--model_config_file_poll_wait_seconds", type=float)
    parser.add_argument("--allow_version_labels_for_unavailable_models", action="store_true")
    parser.add_argument("--monitoring_config_file", type=argparse.FileType())
    parser.add_argument("--tensorflow_session_config_file", type=pathlib.Path)
    # 0 is as many threads as cores. The server writes them over those of the session's file.
    parser.add_argument("--tensorflow_intra_op_parallelism", type=int, default=0)
    parser.add_argument("--tensorflow_inter_op_parallelism", type=int, default=0)
    flags = parser.parse_args()
    config = tf.compat.v1.ConfigProto()
    if flags.tensorflow_session_config_file is not None:
        text_format.Parse(flags.tensorflow_session_config_file.read_text(), config)
    config.intra_op_parallelism_threads = flags.tensorflow_intra_op_parallelism
    config.inter_op_parallelism_threads = flags.tensorflow_inter_op_parallelism
    models = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(flags.model_config_file.read_text(), models)
    (served,) = models.model_config_list.config
    folder = pathlib.Path(served.base_path)
    model = Model({}, lambda signature, inputs: {}, served.name)
    model.versions = {}
    with (
        serve_grpc(model, flags.port, threads=flags.grpc_max_threads),
        serve_rest(model, flags.rest_api_port),
    ):
        while True:
            versions = [int(path.name) for path in folder.glob("[0-9]*")]
            for version in versions:
                if version == max(versions) and version not in (*model.versions, *model.errors):
                    try:
                        load(model, version, folder / str(version), config)
                    except (OSError, tf.errors.OpError, DecodeError) as error:
                        model.errors[version] = str(error)
            time.sleep(flags.file_system_poll_wait_seconds)


def load(
    model: Model, version: int, folder: pathlib.Path, config: tf.compat.v1.ConfigProto | None = None
) -> None:
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def

    def predict(signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        fed = {loaded[signature].inputs[name].name: values for name, values in inputs.items()}
        fetched = {name: info.name for name, info in loaded[signature].outputs.items()}
        # The server passes a request's deadline on: without one the session would work in the
        # thread that calls it, and not in its pool.
        options = tf.compat.v1.RunOptions(timeout_in_ms=TIMEOUT_MS)
        try:
            values = session.run(fetched, fed, options=options)
        except tf.errors.DeadlineExceededError as error:
            raise FaultError("DEADLINE_EXCEEDED", error.message) from error
        return {name: decode(value.tolist()) for name, value in values.items()}

    model.signatures = {
        name: {key: types_pb2.DataType.Name(info.dtype) for key, info in each.inputs.items()}
        for name, each in loaded.items()
        if each.inputs
    }
    model.versions = {version: predict}


def decode(values: Any) -> Any:
    if isinstance(values, list):
        return [decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


if __name__ == "__main__":
    main()
