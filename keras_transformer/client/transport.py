"""What the gRPC and REST transports share: the model that they ask, and errors."""

from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.errors import InputError


class ServingError(InputError):
    """A model server gave no answer, or one that is not a translator's.

    Attributes:
        code: the name of a gRPC status, such as UNAVAILABLE, DEADLINE_EXCEEDED or NOT_FOUND.
        rows: the sentences of the request that failed, by their index in the call; none where it is
            not about sentences.
    """

    def __init__(self, message: str, code: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.rows = tuple(rows)


class RequestError(Exception):
    """A request failed with the name of a gRPC status, and details of the server or the network."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


class ModelName(NamedTuple):
    """A model on a server; the latest version if neither a version nor a label is given."""

    name: str
    version: int | None = None
    label: str | None = None


# Paths of PEM files for TLS: authorities to trust, the certificate chain of the client, its key.
Certificates = tuple[str | None, str | None, str | None]
