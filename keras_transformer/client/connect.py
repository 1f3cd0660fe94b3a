"""Opens a connection to a model server."""

from collections.abc import Mapping

from keras_transformer.client.credentials import Certificates, check_headers
from keras_transformer.client.transport import Transport
from keras_transformer.errors import InputError


def connect(
    address: str,
    protocol: str,
    retries: int,
    certificates: Certificates | None,
    headers: Mapping[str, str],
) -> Transport:
    """Returns a connection; what is wrong with the server shows at the first request.

    Args:
        address: "host:port", an IPv6 address in brackets.
        protocol: "grpc" or "rest".
        retries: retries of a request.
        certificates: for TLS; None means clear text.
        headers: sent with each request.

    Raises:
        InputError: an argument is invalid, or a package is missing.
    """
    host, port = _split(address)
    headers = check_headers(headers, host, certificates is not None)
    if protocol == "rest":
        from keras_transformer.client.rest_transport import RestTransport

        return RestTransport(host, port, retries, certificates, headers)
    if protocol != "grpc":
        raise InputError(f"protocol must be grpc or rest, got {protocol!r}")
    try:
        from keras_transformer.client.grpc_transport import GrpcTransport
    except ImportError as error:
        raise InputError(
            f"protocol grpc needs the package tensorflow-serving-api ({error}); install it with "
            "pip install tensorflow-serving-api, or use protocol rest"
        ) from error
    return GrpcTransport(host, port, retries, certificates, headers)


def _split(address: str) -> tuple[str, int]:
    """Returns host and port, an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise InputError(
            f"the address of a model server must be host:port, such as localhost:8500, "
            f"got {address!r}"
        )
    return (f"[{host}]" if ":" in host and not host.startswith("[") else host), int(port)
