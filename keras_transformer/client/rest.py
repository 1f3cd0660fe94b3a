"""Requests to a model server over REST; needs urllib3 and no TensorFlow."""

import contextlib
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

import urllib3

from keras_transformer.client.transport import (
    PORT_OF_GRPC,
    Certificates,
    ModelName,
    RequestError,
    VersionStatus,
)
from keras_transformer.errors import InputError
from keras_transformer.sentences import InputValues

# The server's mapping of gRPC codes to HTTP statuses, inverted.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",  # a proxy's, for a large body
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",  # a proxy's, while the server restarts
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_SETTINGS_OF_HTTP2 = r"\0\0.\x04"  # the first frame of a gRPC server
_CONNECT_TIMEOUT_S = 5.0
_MAX_IDLE = 64  # connections that are kept open


class RestTransport:
    """A `Transport` over a pool of connections."""

    def __init__(
        self, host: str, port: int, certificates: Certificates | None, headers: Mapping[str, str]
    ) -> None:
        self._headers = {**headers, "content-type": "application/json"}
        self._pool: urllib3.HTTPConnectionPool
        try:
            if certificates is None:
                self._pool = urllib3.HTTPConnectionPool(host, port, maxsize=_MAX_IDLE)
                self._pool.ConnectionCls = _HttpConnection
            else:
                self._pool = urllib3.HTTPSConnectionPool(
                    host,
                    port,
                    maxsize=_MAX_IDLE,
                    ssl_context=certificates.ssl_context(),
                    server_hostname=certificates.server_name,
                )
                self._pool.ConnectionCls = _HttpsConnection
        except urllib3.exceptions.LocationValueError as error:
            raise InputError(f"{host!r} is not the name or address of a host") from error

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, InputValues], timeout_s: float
    ) -> Mapping[str, Any]:
        values = {name: column.values for name, column in inputs.items()}
        request = {"signature_name": signature, "inputs": values}
        body = json.dumps(request, ensure_ascii=False).encode()  # UTF-8, shorter than \u escapes
        outputs = self._request("POST", f"{_path(model)}:predict", timeout_s, body).get("outputs")
        # A signature with a single output answers with the tensor alone.
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def signatures(self, model: ModelName, timeout_s: float) -> dict[str, dict[str, str]]:
        answer = self._request("GET", f"{_path(model)}/metadata", timeout_s)
        try:
            signatures = answer["metadata"]["signature_def"]["signature_def"]
            return {
                name: {key: value["dtype"] for key, value in signature["inputs"].items()}
                for name, signature in signatures.items()
                if not name.startswith("__")  # TensorFlow's own
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
        self._pool.close()

    def _request(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None
    ) -> dict[str, Any]:
        timeout = urllib3.Timeout(total=max(timeout_s, 1e-3))
        end = time.monotonic() + timeout_s
        try:
            response = self._pool.urlopen(
                method, path, body, self._headers, retries=False, redirect=False, timeout=timeout
            )
        except urllib3.exceptions.ReadTimeoutError as error:
            raise RequestError("DEADLINE_EXCEEDED", "") from error
        except urllib3.exceptions.ClosedPoolError as error:
            raise RequestError("CANCELLED", "the client is closed") from error
        except urllib3.exceptions.HTTPError as error:
            if time.monotonic() >= end:
                raise RequestError("DEADLINE_EXCEEDED", "") from error
            cause = error.__cause__ or error
            status_line = getattr(error.args[-1], "line", "")  # of http.client.BadStatusLine
            if re.match(_SETTINGS_OF_HTTP2, status_line, re.DOTALL):
                raise RequestError("UNIMPLEMENTED", PORT_OF_GRPC) from error
            details = getattr(cause, "strerror", None) or str(cause)
            raise RequestError("UNAVAILABLE", details) from error
        return _parse(response.status, response.data)


class _WithDeadline:
    """A connection that opens soon, and ends where a whole answer takes longer than its timeout.

    urllib3 would send a request within the timeout of connecting, which a large one over a slow
    line exceeds. Its timeout of reading is that of each read: a server that sends a byte from time
    to time never exceeds it.
    """

    def _new_conn(self) -> socket.socket:
        connection: Any = self
        timeout_s = connection.timeout
        connection.timeout = min(timeout_s, _CONNECT_TIMEOUT_S)
        try:
            opened: socket.socket = super()._new_conn()  # type: ignore[misc]
        finally:
            connection.timeout = timeout_s
        opened.settimeout(timeout_s)
        return opened

    def getresponse(self) -> Any:
        connection: Any = self
        timer = threading.Timer(connection.timeout, self._shut_down, [connection.sock])
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()  # type: ignore[misc]  # of urllib3's connection
        finally:
            timer.cancel()

    @staticmethod
    def _shut_down(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            connection.shutdown(socket.SHUT_RDWR)


class _HttpConnection(_WithDeadline, urllib3.connection.HTTPConnection):
    pass


class _HttpsConnection(_WithDeadline, urllib3.connection.HTTPSConnection):
    pass


def _path(model: ModelName) -> str:
    path = f"/v1/models/{urllib.parse.quote(model.name, safe='')}"
    if model.version is not None:
        return f"{path}/versions/{model.version}"
    if model.label is not None:
        return f"{path}/labels/{urllib.parse.quote(model.label, safe='')}"
    return path


def _parse(status: int, content: bytes) -> dict[str, Any]:
    """Returns the JSON object of an answer; raises `RequestError` where there is none."""
    text = content.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        # The server escapes its errors as C does, which is not always JSON.
        error = re.fullmatch(r'\s*\{\s*"error"\s*:\s*"(.*)"\s*\}\s*', text, re.DOTALL)
        answer = {"error": re.sub(r"""\\(["'?\\])""", r"\1", error[1])} if error else None
    if not isinstance(answer, dict):
        answer = {}
    if status == 200 and answer:
        return answer
    # Proxies answer with most of these too, without the server's JSON.
    if "error" in answer or status in _CODES.keys() - {400, 404}:
        details = str(answer.get("error", f"HTTP status {status}"))
        raise RequestError(_CODES.get(status, "UNKNOWN"), details)
    raise RequestError("UNIMPLEMENTED", f"HTTP status {status} without a JSON object")
