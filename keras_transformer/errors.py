"""Errors that the user can fix.

The commands print the one line of an `InputError` and exit with status 1; any other exception is a
bug and keeps its traceback.
"""

import contextlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any


class InputError(ValueError):
    """Input that cannot be used: a file, a flag, a configuration or a checkpoint.

    Args:
        message: one line. Unprintable characters, such as line ends or terminal escape sequences in
            names taken from files, are escaped.
    """

    _keras_call_info_injected = True  # Keras adds no lines of arguments to it

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


class NotRegisteredError(InputError):
    """An unknown architecture or task: the module that registers it has not been imported."""


class BatchesInProgressError(KeyboardInterrupt):
    """Ctrl-C while threads compute batches; the process would not end before they do."""


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises `InputError` unless an argument is one of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_unicode(name: str, text: str) -> None:
    """Raises `InputError` for text with a lone surrogate, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} must be Unicode, got a lone surrogate in {text[:40]!r}"
        ) from error


def check_sentences(name: str, texts: Any) -> None:
    """Raises `InputError` for one text, a dictionary, a set or a table in place of a list."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{name} must be a list of sentences, got one: {texts[:40]!r}")
    is_list = isinstance(texts, Iterable) and not isinstance(texts, Mapping | Set)
    if not is_list or hasattr(texts, "columns"):
        raise InputError(f"{name} must be a list of sentences, got a {type(texts).__name__}")


def as_text(text: str | bytes, name: str = "text") -> str:
    """Decodes text in UTF-8, as TensorFlow returns it; `name` is for errors.

    Raises:
        InputError: the bytes are not UTF-8, or it is no text, such as None or the NaN of a table.
    """
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes):
        raise InputError(f"{name} must be a string, got {text!r}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} must be UTF-8, got {text[:40]!r}") from error


def one_line(error: BaseException | str) -> str:
    """Returns an error's message on one line, without the name of a TensorFlow operation."""
    return textwrap.shorten(str(error).rpartition("}} ")[2], 200)


def check_backend() -> None:
    """Raises `InputError` unless Keras runs on TensorFlow, which search and runs need."""
    import keras  # slow to import, which configurations need not wait for

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise InputError(
            f"this needs Keras's TensorFlow backend, got {backend!r}; set KERAS_BACKEND=tensorflow"
        )


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raises `InputError` that names the extra to install if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"this needs the package {error.name}; run pip install '.[{extra}]' in the clone of "
            "keras_transformer"
        ) from error


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Raises `InputError` if the block cannot write `what`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {what} ({error.strerror}); free some space, or give another path"
        ) from error
