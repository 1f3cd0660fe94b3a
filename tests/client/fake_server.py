"""A model server in this process: the protocols are real, the model is a Python function.

Messages are those of the package tensorflow-serving-api, codes and texts those of TensorFlow
Serving's source.
"""

import concurrent.futures
import contextlib
import http.server
import json
import re
import ssl
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import grpc
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

HTTP_STATUS = {
    "UNAUTHENTICATED": 401, "INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500, "UNAVAILABLE": 503,
}  # fmt: skip


class FaultError(Exception):
    """A failure: the name of a gRPC code, and a text."""

    code = property(lambda self: self.args[0])
    message = property(lambda self: self.args[1])


class Request(NamedTuple):
    signature: str
    version: int
    inputs: dict[str, list[Any]]


class Model:
    """What both protocols serve: signatures with the `tensorflow.DataType` of each input, and for
    each version a function from a signature and inputs to outputs, all of them lists by name.
    """

    def __init__(self, signatures: Any, predict: Any, name: str = "translator") -> None:
        self.name = name
        self.signatures: dict[str, dict[str, str]] = dict(signatures)
        self.versions = {1: predict}
        self.requests: list[Request] = []
        self.faults: list[FaultError] = []  # of the next requests
        self.rejection: FaultError | None = None  # of requests with a text "bad"
        self.may_answer = threading.Event()  # clear it to keep requests waiting
        self.may_answer.set()
        self.headers: dict[str, str] = {}  # of the latest request
        self.required_headers: dict[str, str] = {}

    def find(self, headers: Iterable[tuple[str, str]], name: str, version: int | None) -> int:
        """Returns the version that a request with these headers is for."""
        self.headers = {name.lower(): value for name, value in headers}
        if not self.required_headers.items() <= self.headers.items():
            raise FaultError("UNAUTHENTICATED", "a valid token is required")
        version = max(self.versions, default=0) if version is None else version
        if name != self.name or version not in self.versions:
            raise FaultError("NOT_FOUND", f"Servable not found for request: {name}, {version}")
        return version

    def input_types(self, signature: str) -> dict[str, str]:
        if signature not in self.signatures:
            message = f'Serving signature name: "{signature}" not found in signature def'
            raise FaultError("INVALID_ARGUMENT", message)
        return self.signatures[signature]

    def predict(self, version: int, signature: str, inputs: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(Request(signature, version, inputs))
        fault = self.faults.pop(0) if self.faults else None
        if self.rejection is not None and "bad" in [*inputs.get("text", inputs.get("source"))]:
            raise self.rejection
        self.may_answer.wait(60)
        if fault is not None:
            raise fault
        return self.versions[version](signature, inputs)


_TEXT = {"text": "DT_STRING"}
_PAIR = {"source": "DT_STRING", "target": "DT_STRING"}
_OPTIONS = {"length_penalty": "DT_FLOAT", "max_length": "DT_INT32", "seed": "DT_INT32",
            "prefix": "DT_STRING"}  # fmt: skip


def upper_case_model() -> Model:
    """Returns a model that translates to upper case, with the number of characters as the score.

    Each token of a given translation scores -0.25. Of two words, each attends to the other's place.
    """

    def predict(signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        if signature == "attention":
            weights = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
            outputs: dict[str, Any] = {"attention": [weights] * len(inputs["source"])}
            for side, texts in inputs.items():
                rows = [["▁" + word for word in text.split()] for text in texts]
                outputs[f"{side}_pieces"] = [[*row, "</s>"] for row in rows]
                outputs[f"{side}_words"] = [[*range(len(row)), -1] for row in rows]
            return outputs
        if signature == "score":
            lengths = [len(target.split()) + 1 for target in inputs["target"]]
            rows = [[-0.25] * length + [0.0] * (max(lengths) - length) for length in lengths]
            scores = [sum(row) for row in rows]
            return {"scores": scores, "token_scores": rows, "lengths": lengths}
        return {
            "translations": [[text.upper()] for text in inputs["text"]],
            "scores": [[-float(len(text))] for text in inputs["text"]],
        }

    options = {"serving_default": _TEXT, "translate_options": _TEXT | _OPTIONS}
    return Model(options | {"score": _PAIR, "attention": _PAIR}, predict)


@contextlib.contextmanager
def serve_grpc(model: Model, port: int = 0, tls: Any = None) -> Iterator[str]:
    """Serves a model over gRPC while the context lasts; gives the address.

    `tls` holds the paths of certificate, key, and the authority that clients need a certificate
    of, or None.
    """
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    service = _GrpcService(model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    if tls is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        chain, key, authority = (path and path.read_bytes() for path in tls)
        credentials = grpc.ssl_server_credentials([(key, chain)], authority, authority is not None)
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def serve_rest(model: Model, port: int = 0, tls: Any = None) -> Iterator[str]:
    """Serves a model over REST while the context lasts, see `serve_grpc`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _RestHandler)
    server.model = model
    server.handle_error = lambda *_: None  # clients that leave or fail the handshake
    if tls is not None:
        chain, key, authority = tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        if authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


SERVE = {"grpc": serve_grpc, "rest": serve_rest}


class _GrpcService:
    def __init__(self, model: Model) -> None:
        self._model = model

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802  (the protocol's name)
        with self._version(request, context) as version:
            signature = request.model_spec.signature_name
            types = self._model.input_types(signature)
            inputs = {}
            for name, tensor in request.inputs.items():
                if types.get(name) != types_pb2.DataType.Name(tensor.dtype):
                    raise FaultError("INVALID_ARGUMENT", f"{name} is not {types.get(name)}")
                values = tf.make_ndarray(tensor).tolist()
                inputs[name] = [v.decode() if isinstance(v, bytes) else v for v in values]
            outputs = self._model.predict(version, signature, inputs)
            response = predict_pb2.PredictResponse()
            for name, values in outputs.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(values))
            return response

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._version(request, context):
            definitions = get_model_metadata_pb2.SignatureDefMap()
            for name, inputs in self._model.signatures.items():
                for key, dtype in inputs.items():
                    number = types_pb2.DataType.Value(dtype)
                    definitions.signature_def[name].inputs[key].dtype = number
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.metadata["signature_def"].Pack(definitions)
            return response

    def __getattr__(self, name: str) -> Any:
        return None  # the other methods of the service

    @contextlib.contextmanager
    def _version(self, request: Any, context: Any) -> Iterator[int]:
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        try:
            yield self._model.find(context.invocation_metadata(), spec.name, version)
        except FaultError as fault:
            context.abort(grpc.StatusCode[fault.code], fault.message)


class _RestHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections, as TensorFlow Serving does

    def do_GET(self) -> None:
        self.model: Model = self.server.model
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pattern = r"/v1/models/([^/:]+)(?:/versions/(\d+))?(:predict|/metadata)?"
        name, version, action = re.fullmatch(pattern, self.path).groups()
        try:
            if action is None:
                states = [
                    {"version": str(each), "state": "AVAILABLE"} for each in self.model.versions
                ]
                answer = {"model_version_status": states}
            else:
                version = int(version) if version else None
                version = self.model.find(self.headers.items(), urllib.parse.unquote(name), version)
                answer = self._metadata() if body == b"" else self._predict(version, body)
            self._send(200, json.dumps(answer).encode())
        except FaultError as fault:
            # Escaped as C does it: \' is no JSON.
            message = re.sub(r"""([\\"'])""", r"\\\1", fault.message)
            self._send(HTTP_STATUS[fault.code], b'{ "error": "%b" }' % message.encode())

    def _send(self, status: int, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # a client that did not wait
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _metadata(self) -> Any:
        signatures = {
            key: {"inputs": {entry: {"dtype": kind} for entry, kind in inputs.items()}}
            for key, inputs in self.model.signatures.items()
        }
        return {"metadata": {"signature_def": {"signature_def": signatures}}}

    def _predict(self, version: int, body: bytes) -> Any:
        request = json.loads(body)
        signature = request.get("signature_name", "serving_default")
        inputs = {}
        for name, dtype in self.model.input_types(signature).items():
            kind = {"DT_STRING": str, "DT_FLOAT": float | int}.get(dtype, int)
            inputs[name] = request["inputs"][name]
            if not all(isinstance(value, kind) for value in inputs[name]):
                raise FaultError("INVALID_ARGUMENT", f"{name} is not of expected type: {dtype}")
        outputs = self.model.predict(version, signature, inputs)
        return {"outputs": outputs if len(outputs) != 1 else next(iter(outputs.values()))}

    do_POST = do_GET  # noqa: N815  (the name that Python looks up)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
