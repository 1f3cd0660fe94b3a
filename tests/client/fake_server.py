"""A model server in this process: the protocols are real, the model is a Python function.

Codes and messages are those of TensorFlow Serving's source. It can fail, be slow or answer
nonsense.
"""

import concurrent.futures
import contextlib
import http.server
import json
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import grpc
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

HTTP_STATUS = {
    "UNAUTHENTICATED": 401,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class FaultError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class Request(NamedTuple):
    signature: str
    version: int
    inputs: dict[str, list[Any]]


class Model:
    """What both protocols serve: signatures with the `tensorflow.DataType` of each input, and a
    function from a signature and inputs to outputs, all of them lists by name.
    """

    def __init__(
        self,
        signatures: dict[str, dict[str, str]],
        predict: Callable[[str, dict[str, list[Any]]], dict[str, Any]],
        name: str = "translator",
    ) -> None:
        self.name = name
        self.signatures = dict(signatures)
        self.versions = {1: predict}
        self.states = {1: ("AVAILABLE", "")}
        self.labels: dict[str, int] = {}
        self.requests: list[Request] = []
        self.faults: list[FaultError | None] = []  # one for each of the next requests
        self.rejection: FaultError | None = None  # of requests with a text "bad", at once
        self.may_answer = threading.Event()  # clear it to keep requests waiting
        self.may_answer.set()
        self.headers: dict[str, str] = {}  # of the latest request
        self.required_headers: dict[str, str] = {}
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def predict(
        self, name: str, version: int | None, label: str, signature: str, inputs: dict[str, Any]
    ) -> dict[str, Any]:
        version = self._find(name, version, label)
        signature = signature or "serving_default"
        with self._lock:
            self.requests.append(Request(signature, version, inputs))
            fault = self.faults.pop(0) if self.faults else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            texts = [*inputs.get("text", ()), *inputs.get("source", ())]
            if self.rejection is not None and "bad" in texts:
                raise self.rejection
            self.may_answer.wait(60)
            if fault is not None:
                raise fault
            missing = sorted(set(self.signatures[signature]) - set(inputs))
            if missing:
                raise FaultError("INVALID_ARGUMENT", f"Missing named input: {missing[0]}")
            return self.versions[version](signature, inputs)
        finally:
            with self._lock:
                self.at_once -= 1

    def authenticate(self, headers: Iterable[tuple[str, str]]) -> None:
        self.headers = {name.lower(): value for name, value in headers}
        if not self.required_headers.items() <= self.headers.items():
            raise FaultError("UNAUTHENTICATED", "a valid token is required")

    def inputs_of(self, name: str, version: int | None, label: str, signature: str) -> Any:
        self._find(name, version, label)
        signature = signature or "serving_default"
        if signature not in self.signatures:
            message = f'Serving signature name: "{signature}" not found in signature def'
            raise FaultError("INVALID_ARGUMENT", message)
        return self.signatures[signature]

    def all_signatures(self, name: str, version: int | None, label: str) -> dict[str, Any]:
        self._find(name, version, label)
        return {"__saved_model_init_op": {}, **self.signatures}

    def status(self, name: str) -> dict[int, tuple[str, str]]:
        if name != self.name:
            raise FaultError("NOT_FOUND", f"Could not find any versions of model {name}")
        return self.states

    def _find(self, name: str, version: int | None, label: str) -> int:
        if label:
            if label not in self.labels:
                message = f"Unrecognized servable version label: {label}"
                raise FaultError("INVALID_ARGUMENT", message)
            version = self.labels[label]
        request = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        served = [number for number, (state, _) in self.states.items() if state == "AVAILABLE"]
        if name != self.name or not served or (version or served[0]) not in served:
            raise FaultError("NOT_FOUND", f"Servable not found for request: {request}")
        return version or max(served)


_TEXT = {"text": "DT_STRING"}
_PAIR = {"source": "DT_STRING", "target": "DT_STRING"}
_OPTIONS = {"length_penalty": "DT_FLOAT", "max_length": "DT_INT32", "seed": "DT_INT64",
            "prefix": "DT_STRING", "banned_phrases": "DT_STRING"}  # fmt: skip


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
            return outputs
        if signature == "score":
            lengths = [len(target.split()) + 1 for target in inputs["target"]]
            rows = [[-0.25] * length + [0.0] * (max(lengths) - length) for length in lengths]
            return {"scores": [sum(row) for row in rows], "token_scores": rows, "lengths": lengths}
        return {
            "translations": [[text.upper()] for text in inputs["text"]],
            "scores": [[-float(len(text))] for text in inputs["text"]],
        }

    options = {"serving_default": _TEXT, "translate_options": _TEXT | _OPTIONS}
    return Model(options | {"score": _PAIR, "attention": _PAIR}, predict)


@contextlib.contextmanager
def serve_grpc(
    model: Model,
    port: int = 0,
    tls: Any = None,
    host: str = "127.0.0.1",
    threads: int = 8,
    options: Any = (),
) -> Iterator[str]:
    """Serves a model over gRPC while the context lasts; gives the address.

    `tls` holds the paths of certificate, key, and the authority that clients need a certificate
    of, or None.
    """
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(threads), options=options)
    service = _GrpcService(model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    if tls is None:
        port = server.add_insecure_port(f"{host}:{port}")
    else:
        chain, key, authority = (path and path.read_bytes() for path in tls)
        credentials = grpc.ssl_server_credentials([(key, chain)], authority, authority is not None)
        port = server.add_secure_port(f"{host}:{port}", credentials)
    server.start()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def serve_rest(model: Model, port: int = 0, tls: Any = None) -> Iterator[str]:
    """Serves a model over REST while the context lasts, see `serve_grpc`."""
    handler = type("Handler", (_RestHandler,), {"model": model})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
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
        spec = request.model_spec
        which = self._which(spec)
        with _abort_with_faults(context):
            self._model.authenticate(context.invocation_metadata())
            dtypes = self._model.inputs_of(*which, spec.signature_name)
            inputs = {}
            for name, tensor in request.inputs.items():
                got = types_pb2.DataType.Name(tensor.dtype)
                if dtypes.get(name) != got or len(tensor.tensor_shape.dim) != 1:
                    raise FaultError("INVALID_ARGUMENT", f"{name} is {got}, not {dtypes.get(name)}")
                values = tf.make_ndarray(tensor).tolist()
                inputs[name] = [v.decode() if isinstance(v, bytes) else v for v in values]
            outputs = self._model.predict(*which, spec.signature_name, inputs)
            response = predict_pb2.PredictResponse()
            for name, values in outputs.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(values))
            return response

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        with _abort_with_faults(context):
            self._model.authenticate(context.invocation_metadata())
            signatures = self._model.all_signatures(*self._which(request.model_spec))
            definitions = get_model_metadata_pb2.SignatureDefMap()
            for name, inputs in signatures.items():
                definition = definitions.signature_def[name]
                for key, dtype in inputs.items():
                    definition.inputs[key].dtype = types_pb2.DataType.Value(dtype)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.metadata["signature_def"].Pack(definitions)
            return response

    def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        with _abort_with_faults(context):
            self._model.authenticate(context.invocation_metadata())
            response = get_model_status_pb2.GetModelStatusResponse()
            for version, (state, error) in self._model.status(request.model_spec.name).items():
                entry = response.model_version_status.add(version=version, state=state)
                entry.status.error_message = error
            return response

    def __getattr__(self, name: str) -> Any:
        return None  # the other methods of the services

    @staticmethod
    def _which(spec: Any) -> tuple[str, int | None, str]:
        version = spec.version.value if spec.HasField("version") else None
        return spec.name, version, spec.version_label


@contextlib.contextmanager
def _abort_with_faults(context: Any) -> Iterator[None]:
    try:
        yield
    except FaultError as fault:
        context.abort(grpc.StatusCode[fault.code], fault.message)


class _RestHandler(http.server.BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"  # keeps connections, as TensorFlow Serving does

    def do_POST(self) -> None:
        self._answer(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(predict)")

    def do_GET(self) -> None:
        self._answer(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(/metadata)?")

    def _answer(self, pattern: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.model.authenticate(self.headers.items())
            found = re.fullmatch(pattern, self.path)
            if found is None:
                message = f"Malformed request: {self.command} {self.path}"
                raise FaultError("INVALID_ARGUMENT", message)
            name, version, label = (urllib.parse.unquote(each or "") for each in found.groups()[:3])
            actions = {"predict": self._predict, "/metadata": self._metadata, None: self._status}
            which = (name, int(version) if version else None, label)
            self._send(200, json.dumps(actions[found[4]](which, body)).encode())
        except FaultError as fault:
            # Escaped as C does it: \' is no JSON.
            message = fault.message.replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'")
            self._send(HTTP_STATUS[fault.code], b'{ "error": "%b" }' % message.encode())

    def _send(self, status: int, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # a client that did not wait
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _predict(self, which: Any, body: bytes) -> Any:
        try:
            request = json.loads(body)
            signature, columns = request.get("signature_name", ""), dict(request["inputs"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FaultError("INVALID_ARGUMENT", "JSON Parse error: no object of inputs") from error
        inputs = {}
        for name, dtype in self.model.inputs_of(*which, signature).items():
            if name not in columns:
                raise FaultError("INVALID_ARGUMENT", f"Missing named input: {name} in 'inputs'.")
            kind = {"DT_STRING": str, "DT_FLOAT": float | int}.get(dtype, int)
            inputs[name] = columns[name]
            if not isinstance(inputs[name], list):
                raise FaultError("INVALID_ARGUMENT", f"input {name} needs at least one dimension")
            for value in inputs[name]:
                if not isinstance(value, kind):
                    message = f'JSON Value: "{value}" is not of expected type: {dtype}'
                    raise FaultError("INVALID_ARGUMENT", message)
        outputs = self.model.predict(*which, signature, inputs)
        return {"outputs": outputs if len(outputs) != 1 else next(iter(outputs.values()))}

    def _metadata(self, which: Any, body: bytes) -> Any:
        signatures = {
            name: {"inputs": {key: {"dtype": dtype} for key, dtype in inputs.items()}}
            for name, inputs in self.model.all_signatures(*which).items()
        }
        return {"metadata": {"signature_def": {"signature_def": signatures}}}

    def _status(self, which: Any, body: bytes) -> Any:
        return {
            "model_version_status": [
                {"version": str(version), "state": state, "status": {"error_message": error}}
                for version, (state, error) in self.model.status(which[0]).items()
            ]
        }

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
