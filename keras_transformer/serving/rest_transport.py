"""Requests to a model server over REST, with Python's own library and nothing else."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from keras_transformer.serving.transport import Column, ModelName, RequestError, VersionStatus

# What the server makes of a gRPC status, the other way round.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# Proxies answer with these as well, in words of their own.
_CODES_WITHOUT_WORDS = (429, 503, 504)


class RestTransport:
    """A `Transport` that opens a connection for each request; threads may share it."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, Column], timeout_s: float
    ) -> Mapping[str, Any]:
        values = {name: column.values for name, column in inputs.items()}
        body = json.dumps({"signature_name": signature, "inputs": values}).encode()
        answer = self._request("POST", f"{_path(model)}:predict", timeout_s, body)
        outputs = answer.get("outputs")
        # A signature with a single output answers with the tensor alone.
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def signatures(self, model: ModelName, timeout_s: float) -> dict[str, dict[str, str]]:
        answer = self._request("GET", f"{_path(model)}/metadata", timeout_s)
        try:
            signatures = answer["metadata"]["signature_def"]["signature_def"]
            return {
                name: {key: value["dtype"] for key, value in signature["inputs"].items()}
                for name, signature in signatures.items()
                if not name.startswith("__")  # how TensorFlow marks its own
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise RequestError("UNIMPLEMENTED", "its metadata name no signatures") from error

    def versions(self, name: str, timeout_s: float) -> list[VersionStatus]:
        answer = self._request("GET", _path(ModelName(name)), timeout_s)
        try:
            return [
                VersionStatus(
                    int(entry["version"]), entry["state"], entry["status"]["error_message"]
                )
                for entry in answer["model_version_status"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError("UNIMPLEMENTED", "its status names no versions") from error

    def close(self) -> None:
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):  # it has ended by itself
                    each.shutdown(socket.SHUT_RDWR)

    def _request(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None
    ) -> dict[str, Any]:
        """Returns the JSON object that the server answers."""
        try:
            status, content = self._exchange(method, path, timeout_s, body)
        except TimeoutError as error:
            raise RequestError("DEADLINE_EXCEEDED", "") from error
        except (OSError, UnicodeError, http.client.IncompleteRead) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RequestError("UNAVAILABLE", reason) from error
        except http.client.HTTPException as error:
            raise RequestError("UNIMPLEMENTED", "it does not speak HTTP") from error
        answer = _parse(content)
        if status == 200 and answer:
            return answer
        if "error" in answer or status in _CODES_WITHOUT_WORDS:
            details = str(answer.get("error", f"HTTP status {status}"))
            raise RequestError(_CODES.get(status, "UNKNOWN"), details)
        raise RequestError("UNIMPLEMENTED", f"HTTP status {status} with something else than JSON")

    def _exchange(
        self, method: str, path: str, timeout_s: float, body: bytes | None
    ) -> tuple[int, bytes]:
        """Sends a request and returns the status and the whole body of its answer."""
        end = time.monotonic() + timeout_s
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        connection.connect()
        with connection.sock as stream:
            with self._lock:
                self._sockets.add(stream)
            try:
                stream.settimeout(_left(end))
                connection.request(method, path, body, {"Content-Type": "application/json"})
                stream.settimeout(_left(end))
                response = connection.getresponse()
                parts = []
                while True:  # the limit of a socket is for each piece, ours for all
                    stream.settimeout(_left(end))
                    parts.append(response.read1(1 << 20))
                    if not parts[-1]:
                        break
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
                return response.status, b"".join(parts)
            finally:
                with self._lock:
                    self._sockets.discard(stream)


def _left(end: float) -> float:
    """Returns the seconds until `end`."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _path(model: ModelName) -> str:
    path = f"/v1/models/{urllib.parse.quote(model.name, safe='')}"
    if model.version is not None:
        return f"{path}/versions/{model.version}"
    if model.label is not None:
        return f"{path}/labels/{urllib.parse.quote(model.label, safe='')}"
    return path


def _parse(content: bytes) -> dict[str, Any]:
    """Returns the JSON object of an answer; an empty one where there is none."""
    text = content.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except ValueError:
        # The server escapes its errors as C does, which is not always JSON.
        error = re.fullmatch(r'\s*\{\s*"error"\s*:\s*"(.*)"\s*\}\s*', text, re.DOTALL)
        return {"error": re.sub(r"""\\(["'?\\])""", r"\1", error[1])} if error else {}
    return answer if isinstance(answer, dict) else {}
