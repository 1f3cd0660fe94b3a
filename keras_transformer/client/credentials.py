"""TLS certificates and credentials that are sent as headers."""

import os
import pathlib
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from keras_transformer.errors import InputError

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
