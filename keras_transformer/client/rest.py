"""Requests to a model server over REST; needs urllib3 and no TensorFlow."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse
import weakref
from collections.abc import Mapping
from typing import Any

import urllib3

from keras_transformer.client import transport
from keras_transformer.client.transport import Certificates, ModelName, RequestError, VersionStatus
from keras_transformer.results import InputValues

# The server's mapping of gRPC codes to HTTP statuses, inverted.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",  # a proxy's, while the server restarts
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# Proxies answer with these too, without the server's JSON.
_CODES_OF_PROXIES = (401, 403, 429, 500, 502, 503, 504)
_CONNECT_TIMEOUT_S = 5.0
_MAX_IDLE = 64  # connections that are kept open


class RestTransport:
    """A `Transport` over a pool of connections."""

    def __init__(
        self,
        host: str,
        port: int,
        retries: int,
        certificates: Certificates | None,
        headers: Mapping[str, str],
    ) -> None:
        self._retries = urllib3.Retry(
            retries,
            backoff_factor=transport.FIRST_PAUSE_S,
            backoff_jitter=transport.FIRST_PAUSE_S,
            backoff_max=transport.MAX_PAUSE_S,
        )
        self._headers = {**headers, "content-type": "application/json"}
        self._pool: urllib3.HTTPConnectionPool
        if certificates is None:
            self._pool = urllib3.HTTPConnectionPool(host, port, maxsize=_MAX_IDLE)
        else:
            context = certificates.ssl_context()
            self._pool = urllib3.HTTPSConnectionPool(
                host, port, maxsize=_MAX_IDLE, ssl_context=context
            )
        # urllib3 itself cannot end requests that wait for an answer.
        tracked: Any = (_TrackedConnection, self._pool.ConnectionCls)
        self._pool.ConnectionCls = type("Connection", tracked, {"track": self._track})
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, InputValues], timeout_s: float
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
        with self._lock:
            self._is_closed.set()
            for stream in self._sockets:
                _shut_down(stream)
        self._pool.close()

    def _track(self, stream: socket.socket) -> None:
        """Remembers a socket for `close`."""
        with self._lock:
            if self._is_closed.is_set():
                raise ConnectionAbortedError
            self._sockets.add(stream)

    def _request(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None
    ) -> dict[str, Any]:
        """Returns the JSON object in the answer.

        The pool's own loop over attempts knows no deadline for all of them, sleeps through
        `close` and does not retry an answer that breaks off.
        """
        deadline = time.monotonic() + timeout_s
        retries = self._retries
        while True:
            try:
                return _parse(*self._exchange(method, path, deadline, body))
            except RequestError as failure:
                failure.attempts = len(retries.history) + 1
                if failure.code not in transport.RETRYABLE or not retries.total:
                    raise
                retries = retries.increment(method, path, error=failure)
                pause_s = retries.get_backoff_time()
                if time.monotonic() + pause_s >= deadline or self._is_closed.wait(pause_s):
                    raise

    def _exchange(
        self, method: str, path: str, deadline: float, body: bytes | None
    ) -> tuple[int, bytes]:
        """Sends a request once and returns status and body of the answer."""
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, total=_time_left(deadline))
        try:
            response: Any = self._pool.urlopen(
                method,
                path,
                body,
                self._headers,
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=False,
                decode_content=False,
            )
            with response:
                stream, parts = response.connection.stream, []
                _time_left(deadline)  # headers that were cut off look as if they were whole
                while not response.closed:
                    # The timeout of a socket restarts with each piece that arrives.
                    stream.settimeout(_time_left(deadline))
                    parts.append(response.read1(1 << 20))
                return response.status, b"".join(parts)
        except urllib3.exceptions.HTTPError as error:
            _time_left(deadline)
            raise _failure(error) from error


class _TrackedConnection:
    """A mix-in for connections.

    Attributes:
        stream: the socket, which `http.client` forgets while an answer is still read from it.
    """

    def connect(self) -> None:
        connection: Any = super()
        connection.connect()
        self.stream = self.sock  # type: ignore[attr-defined]
        self.track(self.stream)  # type: ignore[attr-defined]

    def getresponse(self) -> Any:
        connection: Any = super()
        # The timeout of a socket restarts with each byte of the headers.
        seconds: float = self.timeout  # type: ignore[attr-defined]
        timer = threading.Timer(seconds, _shut_down, (self.stream,))
        timer.start()
        try:
            return connection.getresponse()
        finally:
            timer.cancel()


def _shut_down(stream: socket.socket) -> None:
    """Ends what another thread does with a socket."""
    with contextlib.suppress(OSError):  # it is closed already
        # That of SSLSocket would take the TLS session from the thread that reads.
        socket.socket.shutdown(stream, socket.SHUT_RDWR)


def _failure(error: urllib3.exceptions.HTTPError) -> RequestError:
    """Returns the failure that an exception of urllib3 stands for."""
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return RequestError("DEADLINE_EXCEEDED", "")
    causes = [each for each in (*error.args, error.__cause__) if isinstance(each, Exception)]
    cause = causes[-1] if causes else error
    network = (OSError, http.client.IncompleteRead)
    if isinstance(cause, http.client.HTTPException) and not isinstance(cause, network):
        return RequestError("UNIMPLEMENTED", "it does not speak HTTP")
    return RequestError("UNAVAILABLE", getattr(cause, "strerror", None) or str(cause))


def _time_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise RequestError("DEADLINE_EXCEEDED", "")
    return seconds


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
        answer = {"error": re.sub(r"""\\(["'?\\])""", r"\1", error[1])} if error else {}
    if not isinstance(answer, dict):
        answer = {}
    if status == 200 and answer:
        return answer
    if "error" in answer or status in _CODES_OF_PROXIES:
        details = str(answer.get("error", f"HTTP status {status}"))
        raise RequestError(_CODES.get(status, "UNKNOWN"), details)
    raise RequestError("UNIMPLEMENTED", f"HTTP status {status} without a JSON object")
