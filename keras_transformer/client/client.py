"""The clients of a model server: one that blocks, and one for asyncio.

Over REST they need urllib3; over gRPC tensorflow-serving-api, and with it TensorFlow.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Sequence
from typing import Any, Literal, overload

from typing_extensions import Self

from keras_transformer.client.calls import Answer, Call, Calls
from keras_transformer.client.transport import VersionStatus
from keras_transformer.results import DetailedTranslation, Score, Translation, warn_about_cut


class Client(Calls):
    """Translates and scores sentences with a model server; thread-safe.

    Args:
        address: the server's "host:port". The stock server listens on port 8500 for gRPC and on
            8501 for REST. Over gRPC, "dns:///host:port" sends requests to all addresses of the
            host in turn.
        model: the name under which the server has the model.
        version: the version to use; None means the latest that is served.
        label: a label of a version, such as "canary", instead of its number.
        timeout_s: seconds for one request, retries and the pauses between them included.
        retries: how often a request is retried while the server is unreachable or overloaded,
            after pauses that double from 0.2 s up to 5 s. No other failure is retried.
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
        keep_alive_s: seconds after which a gRPC connection without traffic is tested by a ping, so
            that firewalls keep it and a dead one is noticed; None for no pings. Servers must permit
            such pings, or they close the connection.
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

    @overload
    def translate(
        self, sentences: Sequence[str], *, details: Literal[False] = ..., **options: Any
    ) -> list[list[Translation]]: ...

    @overload
    def translate(
        self, sentences: Sequence[str], *, details: Literal[True], **options: Any
    ) -> list[list[DetailedTranslation]]: ...

    def translate(self, sentences: Sequence[str], *, details: bool = False, **options: Any) -> Any:
        """Translates any number of sentences.

        Args:
            sentences: the sentences, in any order.
            details: whether to return each translation as a `DetailedTranslation`; the model must
                have been exported with them, and it needs NumPy.
            **options: decoding options that differ from the exported ones, such as
                length_penalty, max_length, temperature or prefix; the model card lists them.
                Each is one value for all sentences or a sequence with one for each, where None
                means the exported one. A list of phrases is for all sentences, a list of such
                lists has those of each sentence.

        Returns:
            For each sentence its translations, best first.

        Raises:
            InputError: a sentence or an option cannot be sent, or the model has no details.
            FailedRowsError: the server rejects some sentences. A request that it rejects is sent
                again in halves until the sentence is found; the error has the translations of the
                others.
            ServingError: the server gives no answer.
        """
        return self._wait(self._translate(sentences, details, options))

    def score(self, source: Sequence[str], target: Sequence[str]) -> list[Score]:
        """Returns how probable the model finds given translations.

        Warns if the model cuts translations that are longer than any that it can generate.

        Args:
            source: sentences.
            target: the translation of each.

        Raises:
            InputError: there are not as many of one as of the other, or they cannot be sent.
            ServingError: as in `translate`.
        """
        scores = self._wait(self._score(source, target))
        warn_about_cut(scores)
        return scores

    def align(self, source: Sequence[str], target: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Returns the word alignment of each sentence with its translation; needs NumPy.

        See `BatchTranslator.align`; errors are those of `score`.
        """
        return self._wait(self._align(source, target))

    def status(self) -> list[VersionStatus]:
        """Returns the versions of the model that the server knows, and the state of each.

        Raises:
            ServingError: the server gives no answer, or has no such model.
        """
        return self._status()

    def close(self) -> None:
        """Closes all connections and threads.

        Requests in flight are aborted over gRPC and finished over REST; other calls fail.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self, call: Call[Answer]) -> Answer:
        """Runs a call until it returns."""
        try:
            with contextlib.closing(call):
                futures = next(call)
                while True:
                    futures = call.send([future.result() for future in futures])
        except StopIteration as end:
            return end.value
        except (concurrent.futures.CancelledError, RuntimeError):  # by `close`
            self._check_open()
            raise


class AsyncClient(Calls):
    """The methods of `Client` as coroutines; arguments, results and errors are the same.

    Any number of coroutines may wait; `requests_in_flight` is the number of requests that run
    concurrently, each in a thread. A coroutine that is cancelled sends no further requests.

    Example:
        >>> async with AsyncClient("localhost:8500", model="mine") as client:
        ...     results = await asyncio.gather(
        ...         client.translate(["two hundred"]), client.translate(["three"])
        ...     )
    """

    @overload
    async def translate(
        self, sentences: Sequence[str], *, details: Literal[False] = ..., **options: Any
    ) -> list[list[Translation]]: ...

    @overload
    async def translate(
        self, sentences: Sequence[str], *, details: Literal[True], **options: Any
    ) -> list[list[DetailedTranslation]]: ...

    async def translate(
        self, sentences: Sequence[str], *, details: bool = False, **options: Any
    ) -> Any:
        """See `Client.translate`."""
        return await self._wait(self._translate(sentences, details, options))

    async def score(self, source: Sequence[str], target: Sequence[str]) -> list[Score]:
        """See `Client.score`."""
        scores = await self._wait(self._score(source, target))
        warn_about_cut(scores)
        return scores

    async def align(
        self, source: Sequence[str], target: Sequence[str]
    ) -> list[list[tuple[int, int]]]:
        """See `Client.align`."""
        return await self._wait(self._align(source, target))

    async def status(self) -> list[VersionStatus]:
        """See `Client.status`."""
        return await asyncio.wrap_future(self._submit(self._status))

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _wait(self, call: Call[Answer]) -> Answer:
        """Runs a call until it returns."""
        try:
            with contextlib.closing(call):
                futures = next(call)
                while True:
                    futures = call.send(await asyncio.gather(*map(asyncio.wrap_future, futures)))
        except StopIteration as end:
            return end.value
        except (asyncio.CancelledError, RuntimeError):  # maybe by `close`
            self._check_open()
            raise
