"""The client of a model server: connect, translate, score. It needs no TensorFlow."""

import concurrent.futures
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Self

from keras_transformer.client.transport import Certificates, ServingError
from keras_transformer.errors import InputError, check_choice, check_unicode, needs_extra
from keras_transformer.files import local_path
from keras_transformer.outputs import Result
from keras_transformer.sentences import (
    Answer,
    Columns,
    SentenceTranslator,
    batches_by_length,
    in_row_order,
    select_rows,
)

if TYPE_CHECKING:
    from keras_transformer.client.grpc import GrpcTransport
    from keras_transformer.client.rest import RestTransport

Reply = TypeVar("Reply")  # to a request without sentences, too

_LOOPBACK = ("localhost:", "127.0.0.1:", "[::1]:")
# A model server takes more, but gRPC proxies take 4 MiB by default, and nginx 1 MiB over REST.
_REQUEST_BYTES = 1_000_000
# The pause before a retry doubles from one to the next, minus up to half of it at random.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
_RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")  # the server is starting, or its queue is full


class Client(SentenceTranslator):
    """Translates and scores sentences with a model server; thread-safe.

    Args:
        address: the server's "host:port". TensorFlow Serving listens on port 8500 for gRPC, on
            8501 for REST. Proxies are not used.
        model: the name under which the server has the model.
        version: the version to use; None means the latest that is served.
        timeout_s: seconds for a request, retries and the pauses between them included.
        retries: how often a request is retried while the server is unreachable or overloaded,
            after pauses that double from 0.2 s up to 5 s.
        protocol: "grpc" or "rest".
        batch_size: sentences in one request, which are of similar length. Requests have at most
            1 MB; a sentence that is longer goes alone.
        requests_in_flight: requests that run concurrently.
        tls: whether to connect by TLS, which verifies the server's certificate and host name.
        root_certificates: a PEM file of the certificate authorities to trust; None means the
            system's over REST and those that come with gRPC.
        client_certificate: a PEM file with the client's certificate chain, for mutual TLS.
        client_key: a PEM file with its private key, unencrypted.
        headers: HTTP headers, or gRPC metadata, of every request, such as
            {"authorization": "Bearer ..."}, which is sent by TLS or to this machine only.

    Raises:
        InputError: an argument is invalid, or a certificate does not exist.

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
        timeout_s: float = 60.0,
        retries: int = 4,
        protocol: str = "grpc",
        batch_size: int = 64,
        requests_in_flight: int = 4,
        tls: bool = False,
        root_certificates: str | os.PathLike[str] | None = None,
        client_certificate: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        check_choice("protocol", protocol, ("grpc", "rest"))
        sizes = {"batch_size": batch_size, "requests_in_flight": requests_in_flight}
        for name, value in (sizes | {"timeout_s": timeout_s}).items():
            if not value > 0:
                raise InputError(f"{name} must be positive, got {value}")
        if retries < 0:
            raise InputError(f"retries must not be negative, got {retries}")
        check_unicode("model", model)
        self._timeout_s = timeout_s
        self._retries = retries
        self.batch_size = batch_size
        self._server = f"{protocol} server at {address}"
        files = _find_files(tls, root_certificates, client_certificate, client_key)
        self._transport = _connect(protocol, address, model, version, files, headers or {})
        self._threads = concurrent.futures.ThreadPoolExecutor(requests_in_flight, "requests")

    def close(self) -> None:
        """Closes all connections and threads."""
        self._threads.shutdown(cancel_futures=True)
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _input_names(self, signature: str) -> Collection[str]:
        return self._request(self._transport.signatures).get(signature, ())

    def _run(
        self, signature: str, columns: Columns, read: Callable[[Answer], list[Result]]
    ) -> list[Result]:
        """Requests batches of a signature.

        Raises:
            ServingError: the server rejects a request, or gives no answer; the call ends then.
        """
        rows = zip(*columns.values(), strict=True)
        sizes = [sum(len(str(value).encode()) for value in row) for row in rows]
        batches = batches_by_length(sizes, self.batch_size, _REQUEST_BYTES)

        def answer(batch: Sequence[int]) -> list[Result]:
            inputs = select_rows(columns, batch)
            outputs = self._request(
                lambda timeout_s: self._transport.predict(signature, inputs, timeout_s), batch
            )
            try:
                results = read(outputs)
            except (ArithmeticError, LookupError, TypeError, ValueError):
                results = []
            if len(results) != len(batch):
                raise ServingError(
                    f"the {self._server} has another model: signature {signature} gives "
                    f"{', '.join(sorted(outputs))}, not translations of {len(batch)} sentences",
                    "DATA_LOSS",
                )
            return results

        futures = [self._threads.submit(answer, batch) for batch in batches]
        try:
            done, _ = concurrent.futures.wait(futures, return_when="FIRST_EXCEPTION")
            for future in done:
                future.result()  # raises the error of the call
            return in_row_order(batches, [future.result() for future in futures])
        finally:
            for future in futures:
                future.cancel()

    def _request(self, send: Callable[[float], Reply], rows: Sequence[int] = ()) -> Reply:
        """Returns the answer to a request, which is retried within the timeout.

        `send` takes the seconds that are left for it. Raises `ServingError`, with the sentences of
        the request, if there is no answer.
        """
        start = time.monotonic()
        for attempt in itertools.count():
            try:
                return send(self._timeout_s - (time.monotonic() - start))
            except ServingError as error:
                failure = error
            pause_s = min(_FIRST_PAUSE_S * 2**attempt, _MAX_PAUSE_S) * random.uniform(0.5, 1.0)
            seconds = time.monotonic() - start
            is_last = attempt >= self._retries or seconds + pause_s > self._timeout_s
            if failure.code not in _RETRYABLE or is_last:
                break
            time.sleep(pause_s)
        raise ServingError(
            f"{failure.code} from the {self._server} after {seconds:.1f} s: {str(failure)[:300]}",
            failure.code,
            sorted(rows),
        ) from failure


def _find_files(tls: bool, *files: str | os.PathLike[str] | None) -> Certificates | None:
    """Returns the paths of existing certificates, or None without TLS."""
    paths = Certificates(*(None if file is None else str(local_path(file)) for file in files))
    if not tls and any(paths):
        raise InputError("certificates need TLS; turn on tls, or remove them")
    if (paths.cert_file is None) != (paths.key_file is None):
        raise InputError("give client_certificate and client_key together, or neither")
    for path in filter(None, paths):
        if not os.path.isfile(path):
            raise InputError(f"there is no certificate {path}")
    return paths if tls else None


def _connect(
    protocol: str,
    address: str,
    model: str,
    version: int | None,
    certificates: Certificates | None,
    headers: Mapping[str, str],
) -> "GrpcTransport | RestTransport":
    """Returns a connection; a server that is down shows at the first request only."""
    if not re.fullmatch(r"(\[[\da-fA-F:]+\]|[\w.-]+):\d+", address, re.ASCII):
        raise InputError(
            "the address of a model server must be host:port, such as localhost:8500, got "
            f"{address!r}"
        )
    for name, value in headers.items():
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not re.fullmatch("[ -~]+", value):
            raise InputError(f"the header {name!r} must have a name and a value, in ASCII")
        is_clear = certificates is None and not address.startswith(_LOOPBACK)
        if name.lower() == "authorization" and is_clear:
            raise InputError(f"the header {name} would be sent to {address} in clear text; use TLS")
    headers = {name.lower(): value for name, value in headers.items()}
    with needs_extra("client"):
        if protocol == "rest":
            from keras_transformer.client.rest import RestTransport

            return RestTransport(address, model, version, certificates, headers)
        from keras_transformer.client.grpc import GrpcTransport

        return GrpcTransport(address, model, version, certificates, headers)
