"""What gRPC and REST share: the requests that a model server answers, failures and retries."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

Answer = TypeVar("Answer")

# Failures that may be over a moment later: the server starts, or has too many requests waiting.
PASSING = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class ModelName(NamedTuple):
    """Which model of a server is meant; without version and label its latest version."""

    name: str
    version: int | None = None
    label: str | None = None


class VersionStatus(NamedTuple):
    """What has become of one version of a model.

    Attributes:
        version: its number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        error: why it could not be loaded; empty where there is nothing to complain of.
    """

    version: int
    state: str
    error: str


class Column(NamedTuple):
    """One input of a request: a value for each sentence, and their `tensorflow.DataType`."""

    values: list[Any]
    dtype: str = "DT_STRING"


class RequestError(Exception):
    """A request that got no answer.

    Attributes:
        code: the name of a gRPC status; UNIMPLEMENTED where the other side is no model server.
        details: the words of the server or of the network.
        attempts: how often it was tried.
        seconds: how long it was tried.
    """

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.attempts = 1
        self.seconds = 0.0


class Transport(Protocol):
    """A connection to a model server; a request without answer raises `RequestError`."""

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, Column], timeout_s: float
    ) -> Mapping[str, Any]:
        """Returns the outputs of a signature by name, as nested lists with text as str."""

    def signatures(self, model: ModelName, timeout_s: float) -> dict[str, dict[str, str]]:
        """Returns for each signature the `tensorflow.DataType` of each of its inputs."""

    def versions(self, name: str, timeout_s: float) -> list[VersionStatus]:
        """Returns the versions of a model that the server has or had."""

    def close(self) -> None:
        """Ends the connection, and with it the requests under way."""


def with_retries(
    request: Callable[[float], Answer],
    timeout_s: float,
    retries: int,
    is_closed: threading.Event,
) -> Answer:
    """Returns the answer to a request, which is repeated after a passing failure.

    Args:
        request: given the seconds that are left, returns the answer or raises `RequestError`.
        timeout_s: seconds for all attempts and the pauses between them. A pause that would
            last beyond them is not begun.
        retries: repetitions at most.
        is_closed: once set, there are no more repetitions.

    Raises:
        RequestError: of the last attempt.
    """
    start = time.monotonic()
    attempt = 0
    left = timeout_s
    while True:
        attempt += 1
        try:
            return request(left)
        except RequestError as failure:
            failure.attempts, failure.seconds = attempt, time.monotonic() - start
            pause = pause_s(attempt)
            may_pass = failure.code in PASSING and attempt <= retries
            if not may_pass or failure.seconds + pause >= timeout_s or is_closed.wait(pause):
                raise
            left = timeout_s - (time.monotonic() - start)
            if left <= 0:  # the pause was longer than it was to be
                raise


def pause_s(attempt: int) -> float:
    """Returns the seconds to wait after an attempt that failed, counted from 1.

    They double from one to the next, and half of them is random: clients that were turned away
    together do not come back together.
    """
    longest = min(_FIRST_PAUSE_S * 2 ** min(attempt - 1, 10), _LONGEST_PAUSE_S)
    return longest * random.uniform(0.5, 1.0)
