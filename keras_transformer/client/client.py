"""A client of a model server that serves an exported translator.

Over REST it needs urllib3; over gRPC tensorflow-serving-api, and with it TensorFlow.
"""

import concurrent.futures
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import Self

from keras_transformer.client.transport import (
    Certificates,
    ModelName,
    RequestError,
    ServingError,
    Transport,
    VersionStatus,
    check_headers,
    explain,
)
from keras_transformer.errors import InputError
from keras_transformer.results import (
    InputValues,
    Score,
    Translation,
    batches_by_length,
    in_row_order,
    option_inputs,
    pair_inputs,
    read_scores,
    read_translations,
    text_input,
)

# Opens a connection to a model server.


def connect(
    address: str,
    protocol: str,
    retries: int,
    tls: bool,
    certificates: Certificates,
    headers: Mapping[str, str],
) -> Transport:
    """Returns a connection; what is wrong with the server shows at the first request.

    Args:
        address: "host:port", an IPv6 address in brackets.
        protocol: "grpc" or "rest".
        retries: retries of a request.
        tls: whether to use TLS.
        certificates: for TLS.
        headers: sent with each request.

    Raises:
        InputError: an argument is invalid, or a package is missing.
    """
    host, port = _split(address)
    if not tls and any(certificates):
        raise InputError("certificates need TLS; add tls=True, or leave them out")
    headers = check_headers(headers, host, tls)
    connection = (host, port, retries, certificates if tls else None, headers)
    if protocol == "rest":
        from keras_transformer.client.rest import RestTransport

        return RestTransport(*connection)
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.client.grpc import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package tensorflow-serving-api ({error}); install it with "
            "pip install tensorflow-serving-api, or use protocol rest"
        ) from error
    return GrpcTransport(*connection)


def _split(address: str) -> tuple[str, int]:
    """Returns host and port, an IPv6 address in brackets."""
    found = re.fullmatch(r"\[?([\w.:%-]+)\]?:(\d+)", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, "
            f"got {address!r}"
        )
    return (f"[{found[1]}]" if ":" in found[1] else found[1]), int(found[2])


Answer = TypeVar("Answer")
Row = TypeVar("Row")


class Client:
    """Translates and scores sentences with a model server; thread-safe.

    Args:
        address: the server's "host:port". The stock server listens on port 8500 for gRPC and on
            8501 for REST.
        model: the name under which the server has the model.
        version: the version to use; None means the latest that is served.
        label: a label of a version, such as "canary", in place of its number.
        timeout_s: seconds for one request, retries and the pauses between them included.
        retries: how often a request is retried, after pauses that double, where the server is
            unreachable or overloaded (over REST the first time at once). No other failure is
            retried. gRPC allows 4 at most.
        protocol: "grpc" or "rest".
        batch_size: sentences in one request. They are batched with others of similar length.
        requests_in_flight: requests that run concurrently.
        tls: whether to connect by TLS, and verify the server's certificate and host name.
        root_certificates: a PEM file of the certificate authorities to trust; None means the
            system's over REST and those that come with gRPC.
        client_certificate: a PEM file with the certificate chain that the client identifies
            itself with (mutual TLS).
        client_key: a PEM file with its private key, unencrypted.
        headers: HTTP headers, or gRPC metadata, of every request, such as
            {"authorization": "Bearer ..."}, which is sent by TLS or to this machine only; others
            may cross the network in clear text.

    Raises:
        InputError: an argument is invalid, or a certificate cannot be read.

    Example:
        >>> with Client("localhost:8500", model="mine") as client:
        ...     client.translate(["two hundred"])[0][0].text
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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        for name, value, least in (
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("requests_in_flight", requests_in_flight, 1),
        ):
            if value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise InputError(f"timeout_s must be a number of seconds, got {timeout_s}")
        self._model = ModelName(model, version, label)
        self._timeout_s = timeout_s
        self._batch_size = batch_size
        self._server = f"{protocol} server at {address}"
        self._tls = tls
        certificates = Certificates(root_certificates, client_certificate, client_key)
        self._transport = connect(address, protocol, retries, tls, certificates, headers or {})
        self._is_closed = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(requests_in_flight, "requests")

    def translate(self, sentences: Sequence[str], **options: Any) -> list[list[Translation]]:
        """Translates any number of sentences.

        Args:
            sentences: the sentences, in any order.
            **options: decoding options that differ from the exported ones, such as
                length_penalty, max_length, temperature or prefix; the model card lists them.
                Each is one value for all sentences or a sequence with one for each, where None
                means the exported one. Several phrases of a sentence are a list, or text with a
                phrase on each line.

        Returns:
            For each sentence its translations, best first.

        Raises:
            InputError: a sentence or an option cannot be sent.
            ServingError: the server gives no answer.
        """
        columns = {"text": text_input("sentences", sentences)}
        if not options:
            return self._rows("serving_default", columns, read_translations)
        inputs = self._request(lambda timeout_s: self._transport.signatures(self._model, timeout_s))
        known = inputs.get("translate_options", {})
        columns |= option_inputs(options, known, len(columns["text"].values))
        return self._rows("translate_options", columns, read_translations)

    def score(self, source: Sequence[str], target: Sequence[str]) -> list[Score]:
        """Returns how probable the model finds given translations.

        Args:
            source: sentences.
            target: the translation of each.

        Raises:
            InputError: there are not as many of one as of the other, or they cannot be sent.
            ServingError: the server gives no answer.
        """
        return self._rows("score", pair_inputs(source, target), read_scores)

    def align(self, source: Sequence[str], target: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Returns the word alignment of each sentence with its translation; needs NumPy.

        See `BatchTranslator.align`; errors are those of `score`.
        """
        from keras_transformer.results import in_words_of_texts, read_alignments

        columns = pair_inputs(source, target)
        found = self._rows("attention", columns, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def status(self) -> list[VersionStatus]:
        """Returns the versions of the model that the server knows, and the state of each.

        Raises:
            ServingError: the server gives no answer, or has no such model.
        """
        return self._request(
            lambda timeout_s: self._transport.versions(self._model.name, timeout_s)
        )

    def close(self) -> None:
        """Closes all connections and threads; calls that run in other threads fail at once."""
        self._is_closed.set()
        self._transport.close()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _rows(
        self,
        signature: str,
        columns: Mapping[str, InputValues],
        read: Callable[[Mapping[str, Any]], list[Row]],
    ) -> list[Row]:
        """Returns the outputs of a signature for each row of its inputs, in their order."""
        texts = next(iter(columns.values())).values
        batches = batches_by_length([len(text) for text in texts], self._batch_size)

        def predict(batch: list[int]) -> list[Row]:
            inputs = {
                name: InputValues([column.values[index] for index in batch], column.dtype)
                for name, column in columns.items()
            }
            return self._predict(signature, inputs, len(batch), read)

        futures: list[concurrent.futures.Future[list[Row]]] = []
        try:
            self._check_open()
            futures.extend(self._pool.submit(predict, batch) for batch in batches)
            return in_row_order(batches, (future.result() for future in futures))
        except (concurrent.futures.CancelledError, RuntimeError):  # by `close`
            self._check_open()
            raise
        finally:  # after a failure the other requests are not needed
            for future in futures:
                future.cancel()

    def _predict(
        self,
        signature: str,
        inputs: Mapping[str, InputValues],
        count: int,
        read: Callable[[Mapping[str, Any]], list[Row]],
    ) -> list[Row]:
        """Returns the rows of one answer, which must be `count`."""
        answer = self._request(
            lambda timeout_s: self._transport.predict(self._model, signature, inputs, timeout_s),
            signature,
        )
        try:
            rows = read(answer)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            rows = []
        if len(rows) != count:
            raise ServingError(
                f"the answer of signature {signature} of model {self._model.name!r} at the "
                f"{self._server} is not that of a translator for {count} sentences: it has "
                f"{', '.join(sorted(answer)) or 'nothing'}; is it one that `export` wrote?",
                "DATA_LOSS",
            )
        return rows

    def _request(self, send: Callable[[float], Answer], signature: str | None = None) -> Answer:
        """Returns the answer to a request, or raises `ServingError`."""
        self._check_open()
        start = time.monotonic()
        try:
            return send(self._timeout_s)
        except RequestError as failure:
            self._check_open()
            seconds = time.monotonic() - start
            request = (self._server, self._tls, self._model, signature)
            error = explain(failure, seconds, *request, self._transport)
            self._check_open()
            raise error from failure

    def _check_open(self) -> None:
        if self._is_closed.is_set():
            raise InputError("the client is closed; make another one")
