"""Errors that the person at the keyboard can mend.

Anything raised as `InputError` carries one line that says what was expected, what came and
how to mend it. The scripts print that line and exit with status 1; every other exception is
a defect of the program and keeps its traceback.
"""

from collections.abc import Sequence


class InputError(ValueError):
    """Input that cannot be used: a file, a flag, a configuration or a checkpoint."""


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises `InputError` unless an argument is one of those it may be."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_backend() -> None:
    """Raises `InputError` unless Keras runs on TensorFlow, which search and runs are written in."""
    import keras  # slow to import, which configurations need not wait for

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise InputError(
            "training runs, search and export need Keras's TensorFlow backend, got "
            f"{backend!r}; set KERAS_BACKEND=tensorflow"
        )
