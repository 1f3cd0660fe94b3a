"""The client of a model server: batches, retries, and what to do about requests that fail.

Over REST it needs urllib3; over gRPC tensorflow-serving-api, and with it TensorFlow.
"""

import concurrent.futures
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
    Certificates,
    ModelName,
    RequestError,
    ServingError,
    Transport,
    VersionStatus,
    check_headers,
)
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.results import (
    InputValues,
    Score,
    Translation,
    batches_by_length,
    in_row_order,
    in_words_of_texts,
    option_inputs,
    pair_inputs,
    read_alignments,
    read_scores,
    read_translations,
    text_input,
    warn_about_cut,
)

Answer = TypeVar("Answer")
Row = TypeVar("Row")

# The pause before a retry doubles from one to the next, minus up to half of it at random.
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 5.0
_RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")  # the server is starting, or its queue is full
# Another client's request of wrong rank fails all requests that share its batch.
_FAILED_BATCH = "padding is turned off"
_EXPLAIN_TIMEOUT_S = 5.0  # for requests that look for the cause of a failure
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


class Client:
    """Translates and scores sentences with a model server; thread-safe.

    Args:
        address: the server's "host:port". The stock server listens on port 8500 for gRPC and on
            8501 for REST.
        model: the name under which the server has the model.
        version: the version to use; None means the latest that is served.
        label: a label of a version, such as "canary", instead of its number.
        timeout_s: seconds for one request, retries and the pauses between them included.
        retries: how often a request is retried while the server is unreachable or overloaded,
            after pauses that double from 0.2 s up to 5 s. No other failure is retried.
        protocol: "grpc" or "rest".
        batch_size: sentences in one request, which are of similar length.
        requests_in_flight: requests that run concurrently.
        tls: whether to connect by TLS, which verifies the server's certificate and host name.
        root_certificates: a PEM file of the certificate authorities to trust; None means the
            system's over REST and those that come with gRPC.
        client_certificate: a PEM file with the client's certificate chain, for mutual TLS.
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
        for name, value, minimum in (
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("requests_in_flight", requests_in_flight, 1),
        ):
            if value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")
        if not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise InputError(f"timeout_s must be a number of seconds, got {timeout_s}")
        self._model = _model_name(model, version, label)
        self._timeout_s = timeout_s
        self._retries = retries
        self._batch_size = batch_size
        self._server = f"{protocol} server at {address}"
        self._tls = tls
        certificates = Certificates(root_certificates, client_certificate, client_key)
        self._transport = _connect(address, protocol, tls, certificates, headers or {})
        self._is_closed = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(requests_in_flight, "requests")

    def translate(self, sentences: Sequence[str], **options: Any) -> list[list[Translation]]:
        """Translates any number of sentences.

        Args:
            sentences: the sentences, in any order.
            **options: decoding options that differ from the exported ones, such as
                length_penalty, max_length, temperature or prefix; the model card lists them.
                Each is one value for all sentences or a sequence with one for each, where None
                means the exported one. A list of phrases is for all sentences, a list of such
                lists has those of each sentence.

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

        Warns if the model cuts translations that are longer than any that it can generate.

        Args:
            source: sentences.
            target: the translation of each.

        Raises:
            InputError: there are not as many of one as of the other, or they cannot be sent.
            ServingError: the server gives no answer.
        """
        scores = self._rows("score", pair_inputs(source, target), read_scores)
        warn_about_cut(scores)
        return scores

    def align(self, source: Sequence[str], target: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Returns the word alignment of each sentence with its translation; needs NumPy.

        See `BatchTranslator.align`; errors are those of `score`.
        """
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
        """Closes all connections and threads.

        Requests in flight are aborted over gRPC and finished over REST; other calls fail.
        """
        self._is_closed.set()
        self._transport.close()
        self._threads.shutdown(cancel_futures=True)

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
            answer = self._request(
                lambda timeout_s: self._transport.predict(
                    self._model, signature, inputs, timeout_s
                ),
                signature,
            )
            try:
                rows = read(answer)
            except (ArithmeticError, LookupError, TypeError, ValueError):
                rows = []
            if len(rows) != len(batch):
                raise ServingError(
                    f"the answer of signature {signature} of model {self._model.name!r} at the "
                    f"{self._server} is not that of a translator for {len(batch)} sentences: it "
                    f"has {', '.join(sorted(answer)) or 'nothing'}; is it one that `export` wrote?",
                    "DATA_LOSS",
                )
            return rows

        self._check_open()
        try:
            return in_row_order(batches, self._threads.map(predict, batches))
        except (concurrent.futures.CancelledError, RuntimeError):  # by `close`
            self._check_open()
            raise

    def _request(self, send: Callable[[float], Answer], signature: str | None = None) -> Answer:
        """Returns the answer to a request, retried within the timeout, or raises `ServingError`.

        Args:
            send: sends the request; takes the seconds that are left for it.
            signature: the one that the request names, if any.
        """
        start = time.monotonic()
        longest_pause_s = _FIRST_PAUSE_S
        for retries_left in reversed(range(self._retries + 1)):
            self._check_open()
            try:
                return send(self._timeout_s - (time.monotonic() - start))
            except RequestError as error:
                failure = error
            is_transient = failure.code in _RETRYABLE or _FAILED_BATCH in failure.details
            pause_s = longest_pause_s * random.uniform(0.5, 1.0)
            seconds = time.monotonic() - start
            if not (is_transient and retries_left and seconds + pause_s < self._timeout_s):
                break
            self._is_closed.wait(pause_s)
            longest_pause_s = min(2 * longest_pause_s, _MAX_PAUSE_S)
        self._check_open()
        raise ServingError(self._explain(failure, seconds, signature), failure.code) from failure

    def _explain(self, failure: RequestError, seconds: float, signature: str | None) -> str:
        """Returns in one line why a request failed after some seconds, and how to fix it.

        `signature` is the requested one; None where the request names none.
        """
        details = textwrap.shorten(failure.details, 300) or failure.code
        if failure.code in _MESSAGES:
            security = "over TLS with these certificates" if self._tls else "without TLS"
            return _MESSAGES[failure.code].format(
                server=self._server, details=details, seconds=seconds, security=security
            )
        cause = self._explain_model(failure.code, signature) or f"rejects this: {details}"
        return f"the {self._server} {cause}"

    def _explain_model(self, code: str, signature: str | None) -> str | None:
        """Returns what the server lacks of the requested model; None where it has all."""
        name, version, _ = self._model
        try:
            versions = self._transport.versions(name, _EXPLAIN_TIMEOUT_S)
            if code == "NOT_FOUND" or all(each.state != "AVAILABLE" for each in versions):
                requested = "" if version is None else f" version {version} of"
                states = "; ".join(
                    f"version {number} is {state}{error and f' ({textwrap.shorten(error, 200)})'}"
                    for number, state, error in versions
                )
                return f"does not serve{requested} model {name!r}: {states}"
            if signature is None:
                return None
            known = self._transport.signatures(self._model, _EXPLAIN_TIMEOUT_S)
        except RequestError as failure:
            if failure.code != "NOT_FOUND":
                return None
            return f"has no model {name!r}; give the name that it was started with"
        if signature in known:
            return None
        return (
            f"has model {name!r} without signature {signature}; it has {', '.join(sorted(known))}"
        )

    def _check_open(self) -> None:
        if self._is_closed.is_set():
            raise InputError("the client is closed; make another one")


def _model_name(name: str, version: int | None, label: str | None) -> ModelName:
    for field, text in (("model", name), ("label", label)):
        if text is not None and not isinstance(text, str):
            raise InputError(f"{field} must be text, got {text!r}")
    if version is not None and (not isinstance(version, int) or not 0 < version < 1 << 63):
        raise InputError(f"version must be a positive number of 64 bits, got {version!r}")
    if version is not None and label is not None:
        raise InputError(f"give version {version} or label {label!r}, not both")
    return ModelName(name, version, label)


def _connect(
    address: str,
    protocol: str,
    tls: bool,
    certificates: Certificates,
    headers: Mapping[str, str],
) -> Transport:
    """Returns a connection; a server that is down shows at the first request only."""
    found = re.fullmatch(r"\[?([\w.:%-]+)\]?:(\d+)", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, "
            f"got {address!r}"
        )
    host, port = f"[{found[1]}]" if ":" in found[1] else found[1], int(found[2])
    if not tls and any(certificates):
        raise InputError("certificates need TLS; add tls=True, or remove them")
    headers = check_headers(headers, host, tls)
    connection = (host, port, certificates if tls else None, headers)
    if protocol == "rest":
        with needs_extra("client"):
            from keras_transformer.client.rest import RestTransport
        return RestTransport(*connection)
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.client.grpc import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package {error.name}; pip install "
            "'keras_transformer[serving]', or use protocol rest"
        ) from error
    return GrpcTransport(*connection)
