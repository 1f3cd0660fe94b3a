"""What the gRPC and REST transports have in common: their interface and their retry policy."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from keras_transformer.client.inputs import InputValues
from keras_transformer.errors import InputError

# Failures that may be transient: the server is starting up, or its queue is full.
RETRYABLE = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")

# From one retry to the next the pause doubles; over REST it begins with the second one.
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0


@dataclasses.dataclass(frozen=True)
class ModelName:
    """A model on a server; without version and label its latest version."""

    name: str
    version: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        for field, text in (("model", self.name), ("label", self.label)):
            if text is not None and not isinstance(text, str):
                raise InputError(f"{field} must be text, got {text!r}")
        version = self.version
        if version is not None and (not isinstance(version, int) or not 0 < version < 1 << 63):
            raise InputError(f"version must be a positive number of 64 bits, got {version!r}")
        if version is not None and self.label is not None:
            raise InputError(f"give version {version} or label {self.label!r}, not both")


class VersionStatus(NamedTuple):
    """The state of one version of a model.

    Attributes:
        version: its number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        error: why it could not be loaded, or empty.
    """

    version: int
    state: str
    error: str


class RequestError(Exception):
    """A request failed.

    Attributes:
        code: the name of a gRPC status; UNIMPLEMENTED where the peer is no model server.
        details: the message of the server or of the network stack.
        attempts: how often the request was sent; None where that is unknown.
    """

    def __init__(self, code: str, details: str, attempts: int | None = None) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.attempts = attempts


class Transport(Protocol):
    """A connection to a model server; thread-safe.

    It retries requests that fail with a code in `RETRYABLE`, all attempts within `timeout_s`.
    Every method but `close` raises `RequestError`.
    """

    def predict(
        self, model: ModelName, signature: str, inputs: Mapping[str, InputValues], timeout_s: float
    ) -> Mapping[str, Any]:
        """Returns the outputs of a signature by name, as nested lists with text as str."""

    def signatures(self, model: ModelName, timeout_s: float) -> dict[str, dict[str, str]]:
        """Returns for each signature the `tensorflow.DataType` of each of its inputs."""

    def versions(self, name: str, timeout_s: float) -> list[VersionStatus]:
        """Returns the versions of a model, unloaded ones included."""

    def close(self) -> None:
        """Closes the connection and aborts requests in flight."""
