"""The client of a model server: connect, translate, score.

Over REST it needs urllib3; over gRPC tensorflow-serving-api, and with it TensorFlow.
"""

import concurrent.futures
import json
import os
import random
import re
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import Self

from keras_transformer.client.transport import (
    PORT_NOT_OF_GRPC,
    PORT_OF_GRPC,
    Certificates,
    ModelName,
    RequestError,
    ServingError,
    Transport,
    VersionStatus,
    check_headers,
)
from keras_transformer.errors import InputError, check_unicode, needs_extra
from keras_transformer.results import Result
from keras_transformer.sentences import (
    Answer,
    InputValues,
    SentenceTranslator,
    batches_by_length,
    in_row_order,
    select_rows,
)

Reply = TypeVar("Reply")  # to a request without sentences, too

# A model server takes more, but gRPC proxies take 4 MiB by default, and nginx 1 MiB over REST.
_REQUEST_BYTES = 1_000_000
# The pause before a retry doubles from one to the next, minus up to half of it at random.
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 5.0
_RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")  # the server is starting, or its queue is full
# Another client's request of wrong rank or type fails all requests that share its batch.
_FAILED_BATCH = ("padding is turned off", "Tensor concat operation failed")
_STATUS_TIMEOUT_S = 5.0  # of the question about the model after a failure
_MESSAGES = {
    "UNAVAILABLE": "no answer from a {server}: {details}; tried for {seconds:.1f} s. Is it "
    "running, and is this the port of that protocol {security}?",
    "RESOURCE_EXHAUSTED": "the {server} is overloaded: {details}; tried for {seconds:.1f} s. Send "
    "fewer requests at once, or try later",
    "DEADLINE_EXCEEDED": "no answer from a {server} within the timeout; tried for {seconds:.1f} s. "
    "Check that it is running. Raise the timeout (over REST that of the server too, "
    "--rest_api_timeout_in_ms), or send fewer sentences at once",
    "UNAUTHENTICATED": "the {server} does not accept the credentials: {details}",
    "PERMISSION_DENIED": "the {server} does not allow that with these credentials: {details}",
    "UNIMPLEMENTED": "the {server} is not a TensorFlow model server: {details}; give the address "
    "of one, and the protocol that it speaks at this port {security}",
}


class Client(SentenceTranslator):
    """Translates and scores sentences with a model server; thread-safe.

    Args:
        address: the server's "host:port". TensorFlow Serving listens on port 8500 for gRPC, on
            8501 for REST. Over gRPC, "dns:///host:port" sends requests to all addresses of the
            host in turn.
        model: the name under which the server has the model.
        version: the version to use; None means the latest that is served.
        label: a label of a version, such as "canary", instead of its number.
        timeout_s: seconds for a request, until the last byte of its answer has come in, retries
            and the pauses between them included. The first request that fails ends a call.
        retries: how often a request is retried while the server is unreachable or overloaded, or
            where another client's request made their batch fail, after pauses that double from
            0.2 s up to 5 s. If their batch still fails, the request is split in halves, down to
            single sentences. No other failure is retried.
        protocol: "grpc" or "rest".
        batch_size: sentences in one request, which are of similar length. Requests have at most
            1 MB; a sentence that is longer goes alone.
        requests_in_flight: requests that run concurrently.
        tls: whether to connect by TLS, which verifies the server's certificate and host name.
        root_certificates: a PEM file of the certificate authorities to trust; None means the
            system's over REST and those that come with gRPC.
        client_certificate: a PEM file with the client's certificate chain, for mutual TLS.
        client_key: a PEM file with its private key, unencrypted.
        tls_server_name: the name that the server's certificate must have; None means the host.
        headers: HTTP headers, or gRPC metadata, of every request, such as
            {"authorization": "Bearer ..."}, which is sent by TLS or to this machine only; others
            may cross the network in clear text.

    Raises:
        InputError: an argument is invalid, or a certificate cannot be read.

    Example:
        >>> with Client("localhost:8500", model="mine") as client:
        ...     client.translate("two hundred").text
        'zweihundert'
    """

    def __init__(
        self,
        address: str,
        *,
        model: str = "translator",
        version: int | None = None,
        label: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        protocol: str = "grpc",
        batch_size: int = 64,
        requests_in_flight: int = 4,
        tls: bool = False,
        root_certificates: str | os.PathLike[str] | None = None,
        client_certificate: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        tls_server_name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        for name, value, minimum in (
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("requests_in_flight", requests_in_flight, 1),
        ):
            if value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise InputError(f"timeout_s must be a number of seconds, got {timeout_s}")
        for name, text in (("model", model), ("label", label or "")):
            check_unicode(name, text)
        if version is not None and not 0 < version < 1 << 63:
            raise InputError(f"version must be a positive number of 64 bits, got {version!r}")
        if version is not None and label is not None:
            raise InputError(f"give version {version} or label {label!r}, not both")
        self._model = ModelName(model, version, label)
        self._timeout_s = timeout_s
        self._retries = retries
        self.batch_size = batch_size
        self._server = f"{protocol} server at {address}"
        self._tls = tls
        certificates = Certificates(
            root_certificates, client_certificate, client_key, tls_server_name
        )
        self._transport = _connect(address, protocol, tls, certificates, headers or {})
        self._is_closed = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(requests_in_flight, "requests")

    def status(self) -> list[VersionStatus]:
        """Returns the versions of the model that the server knows, and the state of each.

        Raises:
            ServingError: the server gives no answer, or has no such model.
        """
        return self._ask(lambda timeout_s: self._transport.versions(self._model.name, timeout_s))

    def close(self) -> None:
        """Closes all connections and threads.

        Requests in flight are aborted over gRPC and finished over REST; other calls fail.
        """
        self._is_closed.set()
        self._transport.close()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _input_types(self, signature: str) -> Mapping[str, str]:
        signatures = self._ask(lambda timeout_s: self._transport.signatures(self._model, timeout_s))
        return signatures.get(signature, {})

    def _check_options(
        self, options: Mapping[str, Any], columns: Mapping[str, InputValues]
    ) -> None:
        pass  # only the server knows what it cannot keep, and says so in its answers

    def _run(
        self,
        signature: str,
        columns: Mapping[str, InputValues],
        read: Callable[[Answer, Mapping[str, InputValues]], list[Result]],
        details: bool,
    ) -> list[Result]:
        """Requests batches of a signature.

        Raises:
            ServingError: the server rejects a request, or gives no answer; none is sent after it.
        """
        rows = zip(*(column.values for column in columns.values()), strict=True)
        # As JSON has them; protocol buffers are smaller.
        sizes = [len(json.dumps(row, ensure_ascii=False).encode()) for row in rows]
        batches = batches_by_length(sizes, self.batch_size, _REQUEST_BYTES)
        has_ended = threading.Event()  # this call

        def predict(batch: list[int], deadline: float, retries: int) -> list[Result]:
            inputs = select_rows(columns, batch)
            try:
                outputs = self._request(
                    lambda timeout_s: self._transport.predict(
                        self._model, signature, inputs, timeout_s
                    ),
                    has_ended,
                    deadline,
                    retries,
                )
            except RequestError as failure:
                may_split = len(batch) > 1 and self._retries and _is_of_another_client(failure)
                if not may_split or has_ended.is_set() or time.monotonic() >= deadline:
                    raise
                middle = len(batch) // 2
                return [
                    row
                    for half in (batch[:middle], batch[middle:])
                    for row in predict(half, deadline, self._retries if len(half) == 1 else 0)
                ]
            return self._read(signature, read, outputs, inputs, len(batch))

        def answer(batch: list[int]) -> list[Result]:
            if has_ended.is_set():
                return []  # which nobody reads
            try:
                return predict(batch, time.monotonic() + self._timeout_s, self._retries)
            except BaseException:
                has_ended.set()
                raise

        self._check_open()
        try:
            futures = {self._threads.submit(answer, batch): batch for batch in batches}
        except RuntimeError:  # closed by another thread
            self._check_open()
            raise
        try:
            done, _ = concurrent.futures.wait(futures, return_when="FIRST_EXCEPTION")
        finally:
            has_ended.set()
            for future in futures:
                future.cancel()
        self._check_open()
        for future in done:
            try:
                future.result()
            except RequestError as error:
                raise self._explained(error, sorted(futures[future])) from error
        return in_row_order(batches, [future.result() for future in futures])

    def _read(
        self,
        signature: str,
        read: Callable[[Answer, Mapping[str, InputValues]], list[Result]],
        answer: Answer,
        inputs: Mapping[str, InputValues],
        count: int,
    ) -> list[Result]:
        """Returns the `count` rows of an answer; raises `ServingError` for another model's."""
        try:
            rows = read(answer, inputs)
        except InputError:  # the answer lacks what only some exports have
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError):
            rows = []
        if len(rows) != count:
            raise ServingError(
                f"the answer of signature {signature} of model {self._model.name!r} at the "
                f"{self._server} is not that of a translator for {count} sentences: it "
                f"has {', '.join(sorted(answer)) or 'nothing'}; is it one that `export` wrote?",
                "DATA_LOSS",
            )
        return rows

    def _ask(self, send: Callable[[float], Reply]) -> Reply:
        """Returns the answer to a request that has no sentences; raises `ServingError`."""
        deadline = time.monotonic() + self._timeout_s
        try:
            return self._request(send, threading.Event(), deadline, self._retries)
        except RequestError as error:
            self._check_open()
            raise self._explained(error) from error

    def _request(
        self,
        send: Callable[[float], Reply],
        has_ended: threading.Event,
        deadline: float,
        retries: int,
    ) -> Reply:
        """Returns the answer to a request, which is retried before the deadline.

        Args:
            send: sends the request; takes the seconds that are left for it.
            has_ended: set when nobody waits for the answer any more.
            deadline: on the clock of `time.monotonic`.
            retries: how often it may be sent again.

        Raises:
            RequestError: there is none.
        """
        longest_pause_s = _FIRST_PAUSE_S
        for retries_left in reversed(range(retries + 1)):
            self._check_open()
            try:
                return send(deadline - time.monotonic())
            except RequestError as error:
                failure = error
            is_transient = failure.code in _RETRYABLE or _is_of_another_client(failure)
            pause_s = longest_pause_s * random.uniform(0.5, 1.0)
            seconds_left = deadline - time.monotonic()
            failure.seconds = self._timeout_s - seconds_left
            in_time = pause_s < seconds_left
            if not (is_transient and retries_left and in_time) or has_ended.is_set():
                break
            if self._is_closed.wait(pause_s) or has_ended.is_set():
                break  # nobody waits any more
            longest_pause_s = min(2 * longest_pause_s, _MAX_PAUSE_S)
        raise failure

    def _explained(self, failure: RequestError, rows: Sequence[int] = ()) -> ServingError:
        """Returns an error with the reason why a request failed, and how to fix it."""
        details = textwrap.shorten(failure.details, 300) or failure.code
        security = "over TLS with these certificates" if self._tls else "without TLS"
        if details in (PORT_OF_GRPC, PORT_NOT_OF_GRPC):
            message = f"no answer from a {self._server} {security}: {details}"
        elif failure.code in _MESSAGES:
            message = _MESSAGES[failure.code].format(
                server=self._server, details=details, seconds=failure.seconds, security=security
            )
        elif _is_of_another_client(failure):
            message = (
                f"the {self._server} merges requests of this client with those of another one that "
                f"have a wrong type or shape, and rejects all of them: {details}"
            )
        elif cause := self._explain_model(failure.code):
            return ServingError(f"the {self._server} {cause}", failure.code)
        else:
            count = f"a request of {len(rows)} sentence{'s' * (len(rows) > 1)}" if rows else "this"
            message = f"the {self._server} rejects {count}: {details}"
        return ServingError(message, failure.code, rows)

    def _explain_model(self, code: str) -> str | None:
        """Returns the reason why the server cannot serve the model; None if it can."""
        name, version, _ = self._model
        try:
            versions = self._transport.versions(name, _STATUS_TIMEOUT_S)
        except RequestError as failure:
            if failure.code != "NOT_FOUND":
                return None
            return (
                f"has no model {name!r}; give the name in its models.config (--model), by default "
                "that of the export's folder"
            )
        if code != "NOT_FOUND" and any(status.state == "AVAILABLE" for status in versions):
            return None
        requested = "" if version is None else f" version {version} of"
        states = "; ".join(
            f"version {number} is {state}{error and f' ({textwrap.shorten(error, 200)})'}"
            for number, state, error in versions
        )
        return f"does not serve{requested} model {name!r}: {states}"

    def _check_open(self) -> None:
        if self._is_closed.is_set():
            raise InputError("the client is closed; make another one")


def _is_of_another_client(failure: RequestError) -> bool:
    """Whether the fault is in another client's request, which was merged with this one."""
    return any(message in failure.details for message in _FAILED_BATCH)


def _connect(
    address: str, protocol: str, tls: bool, certificates: Certificates, headers: Mapping[str, str]
) -> Transport:
    """Returns a connection; a server that is down shows at the first request only."""
    parts = re.fullmatch(r"(dns://[^/\s]*/)?\[?([\w.:%-]+)\]?:([0-9]+)", address)
    if parts is None or not 0 < int(parts[3]) < 65536:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, or over "
            f"gRPC dns:///host:port, got {address!r}"
        )
    host, port = f"[{parts[2]}]" if ":" in parts[2] else parts[2], int(parts[3])
    if not tls and any(certificates):
        raise InputError("certificates and tls_server_name need TLS; turn on tls, or remove them")
    is_resolved_here = parts[1] in (None, "dns:///")  # only then is localhost this machine
    headers = check_headers(headers, host if is_resolved_here else address, tls)
    connection = (host, port, certificates if tls else None, headers)
    if protocol == "rest":
        if parts[1]:
            raise InputError(f"the address {address} is for gRPC, and protocol is rest")
        with needs_extra("client"):
            from keras_transformer.client.rest import RestTransport
        return RestTransport(*connection)
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.client.grpc import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package {error.name}; run pip install '.[serving]' in the "
            "clone of keras_transformer, or use protocol rest"
        ) from error
    return GrpcTransport(*connection, resolver=parts[1] or "")
