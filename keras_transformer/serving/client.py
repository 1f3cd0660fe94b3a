"""A client of a model server that serves an exported translator.

Over REST it needs no more than typing-extensions; over gRPC tensorflow-serving-api, and with it
TensorFlow.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import Self

from keras_transformer.errors import InputError
from keras_transformer.serving.complaints import ServingError, explain
from keras_transformer.serving.options import option_columns, pair_columns, text_column
from keras_transformer.serving.translation import (
    Score,
    Translation,
    read_scores,
    read_translations,
)
from keras_transformer.serving.transport import (
    Column,
    ModelName,
    RequestError,
    Transport,
    VersionStatus,
    with_retries,
)

Answer = TypeVar("Answer")
Row = TypeVar("Row")


class Client:
    """Translates and scores sentences with a model server; threads may share it.

    Args:
        address: the server's "host:port". The stock server listens on port 8500 for gRPC and on
            8501 for REST.
        model: the name under which the server has the model.
        version: the version to ask; None means the latest that is served.
        label: a label of a version, such as "canary", in place of its number.
        timeout_s: seconds that one request may take, its repetitions included.
        retries: how often a request is repeated, after a pause that doubles each time, where the
            server cannot be reached or has too much to do. No other failure is repeated.
        protocol: "grpc" or "rest".
        batch_size: sentences in one request. They are batched with others of like length.
        requests_in_flight: requests under way at the same time.

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
        retries: int = 5,
        protocol: str = "grpc",
        batch_size: int = 64,
        requests_in_flight: int = 4,
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
        for name, text in (("model", model), ("label", label)):
            if text is not None and not isinstance(text, str):
                raise InputError(f"{name} must be text, got {text!r}")
        if version is not None and (not isinstance(version, int) or not 0 < version < 1 << 63):
            raise InputError(f"version must be a positive number of 64 bits, got {version!r}")
        if version is not None and label is not None:
            raise InputError(f"give version {version} or label {label!r}, not both")
        self._model = ModelName(model, version, label)
        self._timeout_s = timeout_s
        self._retries = retries
        self._batch_size = batch_size
        self._address = address
        self._protocol = protocol
        self._transport = _connect(address, protocol)
        self._is_closed = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(requests_in_flight, "requests")

    def translate(self, sentences: Sequence[str], **options: Any) -> list[list[Translation]]:
        """Translates any number of sentences.

        Args:
            sentences: the sentences, in any order.
            **options: settings of the search other than those exported, each one value for all
                sentences or a sequence with one for each, None for the exported one. The model
                says which there are: length_penalty, max_length, temperature, prefix, ...
                Several phrases of a sentence are a list, or text with a phrase on each line.

        Returns:
            For each sentence its translations, best first.

        Raises:
            InputError: a sentence or an option cannot be sent.
            ServingError: the server gives no answer.
        """
        columns = {"text": text_column("sentences", sentences)}
        if not options:
            return self._rows("serving_default", columns, read_translations)
        inputs = self._ask(lambda timeout_s: self._transport.signatures(self._model, timeout_s))
        known = inputs.get("translate_options", {})
        columns |= option_columns(options, known, len(columns["text"].values))
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
        return self._rows("score", pair_columns(source, target), read_scores)

    def align(self, source: Sequence[str], target: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Returns which words of sentences their translations are made from; needs NumPy.

        See `BatchTranslator.align`; errors are those of `score`.
        """
        from keras_transformer.serving.alignment import in_words_of_texts, read_alignments

        columns = pair_columns(source, target)
        found = self._rows("attention", columns, read_alignments)
        return in_words_of_texts(found, columns["source"].values, columns["target"].values)

    def status(self) -> list[VersionStatus]:
        """Returns the versions of the model that the server knows, and the state of each.

        Raises:
            ServingError: the server gives no answer, or has no such model.
        """
        return self._ask(lambda timeout_s: self._transport.versions(self._model.name, timeout_s))

    def close(self) -> None:
        """Ends the connection; requests under way fail."""
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _rows(
        self,
        signature: str,
        columns: Mapping[str, Column],
        read: Callable[[Mapping[str, Any]], list[Row]],
    ) -> list[Row]:
        """Returns what a signature answers for each row of its inputs, in their order."""
        texts = next(iter(columns.values())).values
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        size = self._batch_size
        batches = [order[first : first + size] for first in range(0, len(order), size)]

        def predict(batch: list[int]) -> list[Row]:
            inputs = {
                name: Column([column.values[index] for index in batch], column.dtype)
                for name, column in columns.items()
            }
            return self._predict(signature, inputs, len(batch), read)

        self._check_open()
        futures = [self._pool.submit(predict, batch) for batch in batches]
        rows: dict[int, Row] = {}
        try:
            for batch, future in zip(batches, futures, strict=True):
                rows.update(zip(batch, future.result(), strict=True))
        except concurrent.futures.CancelledError:
            self._check_open()
            raise
        finally:  # one that fails spares the others
            for future in futures:
                future.cancel()
        return [rows[index] for index in range(len(texts))]

    def _predict(
        self,
        signature: str,
        inputs: Mapping[str, Column],
        count: int,
        read: Callable[[Mapping[str, Any]], list[Row]],
    ) -> list[Row]:
        """Returns the rows of one answer, which must be as many as there are sentences."""
        answer = self._ask(
            lambda timeout_s: self._transport.predict(self._model, signature, inputs, timeout_s),
            signature,
        )
        try:
            rows = read(answer)
        except (KeyError, TypeError, ValueError):
            rows = []
        if len(rows) != count:
            raise ServingError(
                f"the answer of signature {signature} of model {self._model.name!r} at "
                f"{self._address} is not that of a translator for {count} sentences: it has "
                f"{', '.join(sorted(answer)) or 'nothing'}; is it one that `export` wrote?",
                "DATA_LOSS",
            )
        return rows

    def _ask(self, request: Callable[[float], Answer], signature: str | None = None) -> Answer:
        """Returns the answer to a request, or says in one line why there is none."""
        self._check_open()
        try:
            return with_retries(request, self._timeout_s, self._retries, self._is_closed)
        except RequestError as failure:
            self._check_open()
            place = f"{self._protocol} server at {self._address}"
            raise explain(failure, place, self._model, signature, self._transport) from failure

    def _check_open(self) -> None:
        if self._is_closed.is_set():
            raise InputError("the client is closed; make another one")


def _connect(address: str, protocol: str) -> Transport:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, "
            f"got {address!r}"
        )
    host = host.removeprefix("[").removesuffix("]")  # around an IPv6 address
    if protocol == "rest":
        from keras_transformer.serving.rest_transport import RestTransport

        return RestTransport(host, int(port))
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.serving.grpc_transport import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package tensorflow-serving-api ({error}); install it with "
            "pip install tensorflow-serving-api, or use protocol rest"
        ) from error
    return GrpcTransport(host, int(port))
