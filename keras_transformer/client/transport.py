"""What the gRPC and REST transports share: their interface, errors, TLS and headers."""

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from keras_transformer.errors import InputError
from keras_transformer.files import local_path
from keras_transformer.sentences import InputValues

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# Details of failures at the port of the other protocol.
PORT_OF_GRPC = "this port speaks gRPC; use protocol grpc (--protocol=grpc)"
PORT_NOT_OF_GRPC = "this port does not speak gRPC; for the port of REST use --protocol=rest"


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


class ModelName(NamedTuple):
    """A model on a server; the latest version if neither a version nor a label is given."""

    name: str
    version: int | None = None
    label: str | None = None


class RequestError(Exception):
    """A request failed.

    Attributes:
        code: the name of a gRPC status; UNIMPLEMENTED where the peer is not a model server.
        details: the message of the server or of the network stack.
        seconds: how long it was tried.
    """

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details
        self.seconds = 0.0


class Transport(Protocol):
    """A connection to a model server; thread-safe.

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
        """Closes the connection."""


class Certificates(NamedTuple):
    """PEM files for TLS, and whom to expect.

    Attributes:
        root_certificates: the certificate authorities to trust; None means the default ones.
        client_certificate: the certificate chain that identifies the client; None means none.
        client_key: its private key, not encrypted.
        server_name: the name that the server's certificate must have; None means the host.
    """

    root_certificates: str | os.PathLike[str] | None = None
    client_certificate: str | os.PathLike[str] | None = None
    client_key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the settings of a TLS client.

        Raises:
            InputError: a file cannot be read, or holds something else.
        """
        if (self.client_certificate is None) != (self.client_key is None):
            raise InputError("give client_certificate and client_key together, or neither")
        root, certificate, key = (path and local_path(path) for path in self[:3])
        name, files = "root_certificates", f"{root}"
        try:
            context = ssl.create_default_context(cafile=root)
            if certificate is not None:
                name, files = "client_certificate and client_key", f"{certificate} and {key}"
                # Without a password OpenSSL would ask for that of an encrypted key.
                context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InputError(
                f"{name} must be PEM files, the key unencrypted; cannot use {files}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
        return context

    def contents(self) -> list[bytes | None]:
        """Returns the contents of the files, in the order of the attributes."""
        files = (self.root_certificates, self.client_certificate, self.client_key)
        return [None if path is None else local_path(path).read_bytes() for path in files]


def check_headers(headers: Mapping[str, str], host: str, tls: bool) -> dict[str, str]:
    """Returns headers with lower-case names, which gRPC requires of its metadata.

    Raises:
        InputError: a header is malformed, or `authorization` would cross the network in clear text.
            The message does not contain the value.
    """
    checked = {}
    for name, value in headers.items():
        if not re.fullmatch(r"(?!grpc-)[a-z0-9_.-]+(?<!-bin)", str(name).lower()):
            raise InputError(
                f"the name of a header must consist of letters, digits and '-', must not begin "
                f"with grpc- or end with -bin, got {name!r}"
            )
        if not isinstance(value, str) or not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
            raise InputError(f"the value of the header {name} must be one line of ASCII text")
        checked[name.lower()] = value
    if "authorization" in checked and not tls and host not in LOOPBACK:
        raise InputError(
            f"the header authorization would be sent to {host} in clear text; use TLS: turn on tls"
        )
    return checked
