"""What the gRPC and REST transports have in common: their interface and their retry policy."""

import dataclasses
import os
import pathlib
import re
import ssl
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from keras_transformer.errors import InputError
from keras_transformer.results import InputValues

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


# Explains in one line why a request to a model server failed, and how to fix it.

# Of the requests that look for the cause.
_TIMEOUT_S = 5.0


class ServingError(InputError):
    """A model server gave no answer, or one that is not a translator's.

    Attributes:
        code: the name of a gRPC status, such as UNAVAILABLE, DEADLINE_EXCEEDED or NOT_FOUND.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def explain(
    failure: RequestError,
    seconds: float,
    server: str,
    tls: bool,
    model: ModelName,
    signature: str | None,
    transport: Transport,
) -> ServingError:
    """Returns the error to raise for a failed request.

    Args:
        failure: the failure of the last attempt.
        seconds: duration of all attempts.
        server: protocol and address of the server, for the message.
        tls: whether the connection uses TLS.
        model: the requested model.
        signature: the requested signature; None where the request names none.
        transport: for requests that look for the cause.
    """
    code = failure.code
    details = textwrap.shorten(failure.details, 300) or code
    times = {None: "", 1: "once "}.get(failure.attempts, f"{failure.attempts} times ")
    tried = f"tried {times}{'in' if times else 'for'} {seconds:.1f} s"
    security = "over TLS" if tls else "without TLS"
    messages = {
        "UNAVAILABLE": f"no answer from a {server}: {details}; {tried}. Is it running, and is "
        f"this the port of that protocol {security}{' with these certificates' if tls else ''}?",
        "RESOURCE_EXHAUSTED": f"the {server} has too much to do: {details}; {tried}. Send fewer "
        "requests at once, or try later",
        "DEADLINE_EXCEEDED": f"no answer from a {server} within the timeout; {tried}. Check that "
        "it is running. Raise the timeout (over REST that of the server too, "
        "--rest_api_timeout_in_ms), or send fewer sentences at once",
        "UNAUTHENTICATED": f"the {server} does not accept the credentials: {details}",
        "PERMISSION_DENIED": f"the {server} does not allow that with these credentials: {details}",
        "UNIMPLEMENTED": f"the {server} is no TensorFlow model server: {details}; give the address "
        f"of one, and the protocol that it speaks at this port {security}",
    }
    message = messages.get(code)
    if message is None:
        message = _explain_model(code, server, model, signature, transport)
    return ServingError(message or f"the {server} refuses: {details}", code)


def _explain_model(
    code: str, server: str, model: ModelName, signature: str | None, transport: Transport
) -> str | None:
    """Returns what is wrong with the requested model or signature; None where nothing is."""
    try:
        versions = transport.versions(model.name, _TIMEOUT_S)
        if code == "NOT_FOUND" or all(entry.state != "AVAILABLE" for entry in versions):
            requested = "" if model.version is None else f" version {model.version} of"
            states = "; ".join(map(_describe, versions))
            return f"the {server} does not serve{requested} model {model.name!r}: {states}"
        known = [] if signature is None else sorted(transport.signatures(model, _TIMEOUT_S))
    except RequestError as failure:
        if failure.code != "NOT_FOUND":
            return None
        return f"the {server} has no model {model.name!r}; give the name that it was started with"
    if signature is None or signature in known:
        return None
    return (
        f"model {model.name!r} at the {server} has no signature {signature}; it has "
        f"{', '.join(known)}"
    )


def _describe(entry: VersionStatus) -> str:
    reason = f" ({textwrap.shorten(entry.error, 200)})" if entry.error else ""
    return f"version {entry.version} is {entry.state}{reason}"


# TLS certificates and credentials that are sent as headers.

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Certificates(NamedTuple):
    """PEM files for TLS.

    Attributes:
        root_certificates: the certificate authorities to trust; None means the default ones.
        client_certificate: the certificate chain that identifies the client; None means none.
        client_key: its private key, not encrypted.
    """

    root_certificates: str | os.PathLike[str] | None = None
    client_certificate: str | os.PathLike[str] | None = None
    client_key: str | os.PathLike[str] | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the settings of a TLS client.

        Raises:
            InputError: a file cannot be read, or holds something else.
        """
        if (self.client_certificate is None) != (self.client_key is None):
            raise InputError("give client_certificate and client_key together, or neither")
        name, path = "root_certificates", self.root_certificates
        try:
            context = ssl.create_default_context(cafile=path)
            if self.client_certificate is not None:
                name, path = "client_certificate and client_key", self.client_certificate
                # Without a password OpenSSL would ask for that of an encrypted key.
                context.load_cert_chain(path, self.client_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = path if name == "root_certificates" else f"{path} and {self.client_key}"
            raise InputError(
                f"{name} must be PEM files, the key unencrypted; cannot use {files}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
        return context

    def contents(self) -> list[bytes | None]:
        """Returns what is in the files, in the order of the attributes."""
        return [None if path is None else pathlib.Path(path).read_bytes() for path in self]


def check_headers(headers: Mapping[str, str], host: str, tls: bool) -> dict[str, str]:
    """Returns headers with lower-case names, as gRPC wants its metadata.

    Raises:
        InputError: a header is malformed, or `authorization` would cross the network in clear text.
            The message does not contain the value.
    """
    checked = {}
    for name, value in headers.items():
        if not re.fullmatch(r"(?!grpc-)[a-z0-9_.-]+(?<!-bin)", str(name).lower()):
            raise InputError(
                f"the name of a header must be letters, digits and -, without grpc- in front and "
                f"-bin at the end, got {name!r}"
            )
        if not isinstance(value, str) or not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
            raise InputError(f"the value of the header {name} must be one line of ASCII text")
        checked[name.lower()] = value
    if "authorization" in checked and not tls and host not in _LOOPBACK:
        raise InputError(
            f"the header authorization would be sent to {host} in clear text; use TLS (tls=True)"
        )
    return checked
