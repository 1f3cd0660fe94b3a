"""Opens a connection to a model server."""

import re
from collections.abc import Mapping

from keras_transformer.client.credentials import Certificates, check_headers
from keras_transformer.client.transport import Transport
from keras_transformer.errors import InputError


def connect(
    address: str,
    protocol: str,
    retries: int,
    tls: bool,
    certificates: Certificates,
    headers: Mapping[str, str],
) -> Transport:
    """Returns a connection; what is wrong with the server shows at the first request.

    Args:
        address: "host:port", an IPv6 address in brackets.
        protocol: "grpc" or "rest".
        retries: retries of a request.
        tls: whether to use TLS.
        certificates: for TLS.
        headers: sent with each request.

    Raises:
        InputError: an argument is invalid, or a package is missing.
    """
    host, port = _split(address)
    if not tls and any(certificates):
        raise InputError("certificates need TLS; add tls=True, or leave them out")
    headers = check_headers(headers, host, tls)
    connection = (host, port, retries, certificates if tls else None, headers)
    if protocol == "rest":
        from keras_transformer.client.rest_transport import RestTransport

        return RestTransport(*connection)
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.client.grpc_transport import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package tensorflow-serving-api ({error}); install it with "
            "pip install tensorflow-serving-api, or use protocol rest"
        ) from error
    return GrpcTransport(*connection)


def _split(address: str) -> tuple[str, int]:
    """Returns host and port, an IPv6 address in brackets."""
    found = re.fullmatch(r"\[?([\w.:%-]+)\]?:(\d+)", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, "
            f"got {address!r}"
        )
    return (f"[{found[1]}]" if ":" in found[1] else found[1]), int(found[2])
