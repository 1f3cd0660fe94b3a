"""Says in one line why a model server gave no answer, and what to do about it."""

import textwrap

from keras_transformer.errors import InputError
from keras_transformer.serving.transport import (
    ModelName,
    RequestError,
    Transport,
    VersionStatus,
)

# For the questions that find out what is wrong.
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
    server: str,
    model: ModelName,
    signature: str | None,
    transport: Transport,
) -> ServingError:
    """Returns the error to raise for a failure.

    Args:
        failure: what happened last.
        server: what to call the server.
        model: the model that was asked.
        signature: the signature that was asked; None for questions about the model.
        transport: to ask the server what it has.
    """
    code = failure.code
    details = textwrap.shorten(failure.details, 300) or code
    times = "once" if failure.attempts == 1 else f"{failure.attempts} times"
    tried = f"tried {times} in {failure.seconds:.1f} s"
    messages = {
        "UNAVAILABLE": f"no answer from a {server}: {details}; {tried}. Is it running, and is "
        "this the port of that protocol?",
        "RESOURCE_EXHAUSTED": f"the {server} has too much to do: {details}; {tried}. Send fewer "
        "requests at once, or try later",
        "DEADLINE_EXCEEDED": f"no answer from a {server} within the timeout; {tried}. Raise the "
        "timeout (over REST that of the server too, --rest_api_timeout_in_ms), or send fewer "
        "sentences at once",
        "UNIMPLEMENTED": f"no model server of TensorFlow is the {server}: {details}; give its "
        "address, and the protocol that it speaks at this port",
    }
    message = messages.get(code)
    if message is None:
        message = _about_the_model(code, server, model, signature, transport)
    return ServingError(message or f"the {server} refuses: {details}", code)


def _about_the_model(
    code: str, server: str, model: ModelName, signature: str | None, transport: Transport
) -> str | None:
    """Returns what is wrong with the model or signature asked for; None where nothing is."""
    try:
        versions = transport.versions(model.name, _TIMEOUT_S)
        if code == "NOT_FOUND" or all(entry.state != "AVAILABLE" for entry in versions):
            asked = "" if model.version is None else f" version {model.version} of"
            states = "; ".join(map(_state_of, versions))
            return f"the {server} does not serve{asked} model {model.name!r}: {states}"
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


def _state_of(entry: VersionStatus) -> str:
    """Returns the state of a version in words."""
    reason = f" ({textwrap.shorten(entry.error, 200)})" if entry.error else ""
    return f"version {entry.version} is {entry.state}{reason}"
