"""Explains in one line why a request to a model server failed, and how to fix it."""

import textwrap

from keras_transformer.client.transport import (
    ModelName,
    RequestError,
    Transport,
    VersionStatus,
)
from keras_transformer.errors import InputError

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
