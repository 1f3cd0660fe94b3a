"""What every script shares: flags made from configurations, and one-line errors."""

import dataclasses
import os
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable
from typing import Any

from absl import app, flags, logging

from keras_transformer.config import JsonConfig
from keras_transformer.errors import InputError


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a script's `main` with parsed flags and the positional arguments.

    An `InputError` becomes one line on standard error and exit status 1; Ctrl-C exits with 130.
    """
    name = os.path.basename(sys.argv[0])

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        try:
            load_tensorflow()
            main(argv[1:])
            sys.stdout.flush()
        except InputError as error:
            sys.exit(f"{name}: {error}")
        except KeyboardInterrupt:
            print(f"\n{name}: interrupted", file=sys.stderr)
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output, such as `head`, has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            place = f" {error.filename}" if error.filename else ""
            sys.exit(f"{name}: cannot read or write{place}: {error.strerror or error}")

    app.run(guarded)


def load_tensorflow() -> None:
    """Imports TensorFlow without the lines about the machine that it prints at start."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            sink.seek(0)
            os.write(saved, sink.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def define_flags(config: type[JsonConfig], names: Iterable[str] | None = None) -> None:
    """Defines a flag for each field of a configuration, with the help of its docstring.

    Args:
        config: a dataclass of `keras_transformer.config`.
        names: the fields to define; None means all.
    """
    help_texts = _attribute_help(config)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        if names is not None and field.name not in names:
            continue
        help_text = help_texts[field.name]
        if field.default not in (None, dataclasses.MISSING):
            help_text += f" Default: {field.default}."
        kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
        if typing.get_origin(field.type) is typing.Literal:
            flags.DEFINE_enum(field.name, None, kinds, help_text)
        elif bool in (field.type, *kinds):
            flags.DEFINE_boolean(field.name, None, help_text)
        elif int in (field.type, *kinds):
            flags.DEFINE_integer(field.name, None, help_text)
        elif float in (field.type, *kinds):
            flags.DEFINE_float(field.name, None, help_text)
        else:
            flags.DEFINE_string(field.name, None, help_text)


def given_flags(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration that were given as flags."""
    values = flags.FLAGS.flag_values_dict()
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    return {name: values[name] for name in names if values.get(name) is not None}


def refuse_arguments(arguments: list[str]) -> None:
    """Raises `InputError` where a script that takes flags only got something else."""
    if arguments:
        raise InputError(
            f"unexpected argument {arguments[0]!r}; all options are flags, as in --name=value"
        )


def _attribute_help(config: type) -> dict[str, str]:
    """Returns the descriptions under "Attributes:" in a docstring, by name."""
    _, _, attributes = (config.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n        (?=\w)", "\n" + attributes.rstrip()):
        names, _, text = entry.strip().partition(": ")
        for name in names.split(", "):
            text = " ".join(text.split())
            found[name] = text[:1].upper() + text[1:]
    return found
