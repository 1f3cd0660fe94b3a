"""What every script shares: flags made from configurations, and one-line errors."""

import dataclasses
import inspect
import io
import itertools
import os
import pathlib
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags

from keras_transformer.config import JsonConfig
from keras_transformer.errors import InputError
from keras_transformer.host import keep_memory
from keras_transformer.tasks import Task, get_task, registered_tasks
from keras_transformer.text_files import iterate_lines

if TYPE_CHECKING:
    from keras_transformer.training import RunDirectory

flags.disclaim_key_flags()  # --help of a script lists the flags that it defines through here


def run(main: Callable[[list[str]], None]) -> None:
    """Parses the command line and runs a script's `main` with its positional arguments.

    An `InputError` becomes one line on standard error and exit status 1. Ctrl-C exits with 130;
    `main` may raise `KeyboardInterrupt` anew with a text to print.
    """
    name = os.path.basename(sys.argv[0])
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale
        main(_parse_flags(sys.argv))
        sys.stdout.flush()
    except InputError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt as error:
        print(f"\n{name}: {str(error) or 'interrupted'}", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        # Python would try once more at exit to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has gone
            sys.exit(1)
        place = f" {error.filename}" if error.filename else ""
        sys.exit(f"{name}: cannot read or write{place}: {error.strerror or error}")


def load_tensorflow(*, one_dnn: bool = True) -> bool:
    """Imports TensorFlow without the lines about the machine that it prints at start.

    Its errors are raised as exceptions too, so that nothing is lost with its log. Before that,
    malloc is set to keep memory (`keras_transformer.keep_memory`), and whether it does is returned.

    Args:
        one_dnn: whether it uses oneDNN on CPUs where the environment does not say. That prepares
            itself anew for every shape, and the shapes of decoding change from step to step:
            in float32 it takes a third longer with it.
    """
    keeps_memory = keep_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not one_dnn:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for a GPU, loudly where there is none
        except BaseException:
            sink.seek(0)
            os.write(saved, sink.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return keeps_memory


def define_flags(
    config: type[JsonConfig],
    names: Iterable[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration, with the help of its docstring.

    Args:
        config: a dataclass of `keras_transformer.config`.
        names: the fields to define; None means all.
        presets: named values that the defaults in the help texts are taken from.
    """
    help_texts = _attribute_help(config)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        if names is not None and field.name not in names:
            continue
        help_text = help_texts.get(field.name, "") + _default_help(field, presets or {})
        kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
        if typing.get_origin(field.type) is typing.Literal:
            flags.DEFINE_enum(field.name, None, kinds, help_text)
        elif bool in (field.type, *kinds):
            flags.DEFINE_boolean(field.name, None, help_text)
        elif int in (field.type, *kinds):
            flags.DEFINE_integer(field.name, None, help_text)
        elif float in (field.type, *kinds):
            flags.DEFINE_float(field.name, None, help_text)
        elif typing.get_origin(field.type) is tuple:
            flags.DEFINE_multi_string(field.name, None, help_text)
        else:
            flags.DEFINE_string(field.name, None, help_text)


def define_task_options() -> None:
    """Defines a flag for each option of each task."""
    for name in registered_tasks():
        options = get_task(name)
        new = {field.name for field in dataclasses.fields(options)} - set(flags.FLAGS)
        define_flags(options, new)


def given_task_options(task: type[Task]) -> dict[str, Any]:
    """Returns the options of a task that were given as flags.

    Raises:
        InputError: an option of another task was given.
    """
    given = given_flags(task)
    for other in registered_tasks():
        if foreign := sorted(given_flags(get_task(other)).keys() - given.keys()):
            raise InputError(
                f"--{foreign[0]} is an option of task {other}, and this is {task.name}; leave it "
                "out"
            )
    return given


def define_checkpoint_flag() -> "flags.FlagHolder[str]":
    """Defines --checkpoint, whose value `Checkpoints.find` understands."""
    return flags.DEFINE_string(
        "checkpoint",
        "auto",
        "Which checkpoint: average, latest, best (by the task's metric on the dev set), a step, or "
        "auto: the average where there is one, else the latest. Several, separated by commas, "
        "translate together.",
    )


def given_flags(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration that were given as flags."""
    values = flags.FLAGS.flag_values_dict()
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    return {name: values[name] for name in names if values.get(name) is not None}


def read_input(paths: list[str]) -> Iterator[str]:
    """Returns the lines of files, one file after the other, or of standard input.

    Raises:
        InputError: at once where a file does not exist; later where text is not UTF-8.
    """
    if not paths:
        return _standard_input()
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"the file {path} does not exist; name files, or give sentences on standard input"
            )
    return itertools.chain.from_iterable(map(iterate_lines, paths))


def find_checkpoints(run_dirs: str, checkpoints: str) -> "list[tuple[RunDirectory, str]]":
    """Returns runs and the full names of their checkpoints: one model each.

    Args:
        run_dirs: directories of runs, separated by commas.
        checkpoints: as --checkpoint takes them, of each run, separated by commas.

    Raises:
        InputError: there is no such run, or it has no checkpoint that `checkpoints` could mean. A
            step or average that is missing is reported when it is loaded.
    """
    from keras_transformer.training import RunDirectory

    found = []
    for path in run_dirs.split(","):
        run = RunDirectory(path)
        run.configs()  # tells where there is no run
        found += [(run, run.checkpoints().find(name)) for name in checkpoints.split(",")]
    return found


def load_translator(found: "Sequence[tuple[RunDirectory, str]]") -> "tuple[Any, Any, Any]":
    """Returns a model and its vocabularies: an ensemble of several checkpoints.

    Args:
        found: by `find_checkpoints`.

    Raises:
        InputError: a checkpoint is damaged, or the runs' vocabularies differ.
    """
    from keras_transformer.models import Ensemble

    runs = [run for run, _ in found]
    source, target = runs[0].vocabularies()
    for run in runs[1:]:
        if [each.fingerprint for each in run.vocabularies()] != [
            source.fingerprint,
            target.fingerprint,
        ]:
            raise InputError(
                f"the vocabularies of {run.path} and {runs[0].path} differ; an ensemble needs runs "
                "that were trained with the same --vocabulary"
            )
    models = [run.load_model(name) for run, name in found]
    return (models[0] if len(models) == 1 else Ensemble(models)), source, target


def refuse_arguments(arguments: list[str]) -> None:
    """Raises `InputError` where a script that takes flags only got something else."""
    if arguments:
        raise InputError(
            f"unexpected argument {arguments[0]!r}; all options are flags, as in --name=value"
        )


def check_output(path: pathlib.Path) -> None:
    """Raises `InputError`, before long work, where its result could not be written to a file."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} may not be written to; give another path")


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number} is not UTF-8: {error.reason}; convert it first"
            ) from error


def _parse_flags(argv: list[str]) -> list[str]:
    """Reads the flags and returns the positional arguments."""
    app.define_help_flags()
    try:
        arguments = flags.FLAGS(["--help" if each == "-h" else each for each in argv])[1:]
    except SystemExit:  # with 1, after --help
        sys.exit(0)
    except flags.Error as error:
        message = "; ".join(line.strip(" .") for line in str(error).splitlines() if line)
        missing = r"flag --\w+=None: Flag (--\w+) must have a value other than None"
        message = re.sub(missing, r"\1 must be given", message)
        raise InputError(f"{message}; --help lists the flags") from error
    for name in flags.FLAGS:
        if flags.FLAGS[name].present and flags.FLAGS[name].value == "":  # as in an unset variable
            raise InputError(f"--{name} is empty; give it a value, or leave it out")
    return arguments


def _attribute_help(config: type) -> dict[str, str]:
    """Returns the descriptions under "Attributes:" in the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        # As it stands in the source, or, from Python 3.13 on, without its indentation.
        docstring = inspect.cleandoc(vars(base).get("__doc__") or "")
        _, _, attributes = docstring.partition("Attributes:\n")
        for entry in re.split(r"\n    (?=\w)", "\n" + attributes.rstrip()):
            names, _, text = entry.strip().partition(": ")
            text = " ".join(text.split()).replace("; None means", ". Default:")
            for name in names.split(", "):
                found[name] = text[:1].upper() + text[1:]
    return found


def _default_help(field: dataclasses.Field[Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns what to say of a field's default: one, or one for each preset, or nothing."""
    values = {name: preset.get(field.name, field.default) for name, preset in presets.items()}
    if len(set(values.values())) > 1:
        return f" Default: {', '.join(f'{value} in {name}' for name, value in values.items())}."
    if field.default in (None, (), dataclasses.MISSING):
        return ""
    return f" Default: {field.default}."
