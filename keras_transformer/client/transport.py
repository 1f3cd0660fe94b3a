"""What the gRPC and REST transports share: certificates, and the error of a request."""

from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.errors import InputError


class ServingError(InputError):
    """A model server rejected a request, or gave no answer, or not that of a translator.

    Attributes:
        code: the name of a gRPC status, such as UNAVAILABLE, DEADLINE_EXCEEDED or NOT_FOUND.
        rows: the sentences of the request that failed, by their index in the call; none where it is
            not about sentences.
    """

    def __init__(self, message: str, code: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.rows = tuple(rows)


class Certificates(NamedTuple):
    """Paths of PEM files for TLS: authorities to trust, and the client's chain and key."""

    ca_certs: str | None
    cert_file: str | None
    key_file: str | None
