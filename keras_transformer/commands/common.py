"""What the commands share: loading TensorFlow and models, checks, and flags.

Flags are made from configurations, grouped in --help, and explained when wrong.
"""

import contextlib
import dataclasses
import difflib
import json
import os
import pathlib
import re
import sys
import tempfile
import textwrap
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer import __version__
from keras_transformer.config import (
    DataConfig,
    JsonConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    architectures,
)
from keras_transformer.errors import InputError, check_backend, needs_extra
from keras_transformer.files import local_paths
from keras_transformer.host import keep_freed_memory
from keras_transformer.paragraphs import SplitParagraphs
from keras_transformer.tasks import Task, get_task, registered_tasks
from keras_transformer.training.settings import given_options, task_options

if TYPE_CHECKING:
    from keras_transformer.training import RunDirectory

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

_HEADINGS = {DataConfig: "Data", TrainingConfig: "Training", SearchConfig: "Search"}
# The flags under each heading of --help, in the order of their definition.
_groups: dict[str, dict[str, None]] = {}


def load_tensorflow(*, one_dnn: bool = True, with_keras: bool = True) -> bool:
    """Imports TensorFlow without the lines about the machine that it prints at start.

    Its errors are raised as exceptions too, so that nothing is lost with its log. Before that,
    malloc is set to keep memory (see `keep_freed_memory`), and whether it does is returned.

    Args:
        one_dnn: whether it uses oneDNN on CPUs, unless the environment says. oneDNN sets up its
            kernels again for every shape, and the shapes of decoding change from step to step:
            decoding in float32 takes a third longer with it.
        with_keras: whether the command uses Keras, whose backend must then be TensorFlow.

    Raises:
        InputError: Keras has another backend.
    """
    if with_keras and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        check_backend()  # first, since PyTorch crashes when it is imported after TensorFlow
    keeps_memory = keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Otherwise a command takes all of a GPU's memory, and no other runs beside it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if not one_dnn:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for a GPU, loudly where there is none
        except Exception:
            sink.seek(0)
            os.write(saved, sink.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return keeps_memory


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
        run.configs()  # raises where there is no run
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


def report_truncated(
    groups: Iterable[list[str]],
    limit: int,
    num_tokens: Callable[[str], int],
    *,
    is_exact: bool = True,
    language: str | None = None,
) -> Iterator[list[str]]:
    """Yields groups of lines, and then reports on standard error how many the model cuts.

    Args:
        groups: lines of text.
        limit: tokens of a sentence that the model reads.
        num_tokens: returns the tokens of a line, or the fewest that it can have.
        is_exact: which of the two.
        language: if lines are translated sentence by sentence.
    """

    def is_longer(line: str) -> bool:
        if num_tokens(line) <= limit or language is None:
            return num_tokens(line) > limit
        return any(num_tokens(each) > limit for each in SplitParagraphs([line], language).sentences)

    total = longer = 0
    for lines in groups:
        total += len(lines)
        longer += sum(map(is_longer, lines))
        yield lines
    if longer:
        print(
            f"{'' if is_exact else 'At least '}{longer:,} of {total:,} lines have "
            f"{'sentences that have ' * (language is not None)}more than {limit} tokens "
            "(--max_source_length); the rest of them was not read.",
            file=sys.stderr,
        )


def load_matplotlib() -> None:
    """Imports matplotlib for drawing into files; raises `InputError` where it is not installed."""
    with needs_extra("plot"):
        import matplotlib
    matplotlib.use("Agg")  # needs no screen


def refuse_arguments(arguments: list[str]) -> None:
    """Raises `InputError` where a command that takes flags only got something else."""
    if arguments:
        raise InputError(
            f"unexpected argument {arguments[0]!r}; all options are flags, as in --name=value"
        )


def check_outputs(
    outputs: Sequence["flags.FlagHolder[Any]"],
    arguments: Sequence[str] = (),
    *,
    are_jobs: bool = False,
) -> None:
    """Raises `InputError`, before long work, where a result could not be written.

    Nor may it replace another result or what the command reads: every file that a flag or an
    argument names, the files of runs, and standard input.

    Args:
        outputs: flags that name the files to write, None for those that are not written.
        arguments: positional arguments.
        are_jobs: whether they are jobs of `part_file`, which write two more files.
    """
    read = {_identity(path): path for path in _read_paths(outputs, arguments) if path.exists()}
    if sys.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # it is no file
            read[_identity(sys.stdin.fileno())] = pathlib.Path("standard input")
    written: dict[str, str] = {}
    for holder in outputs:
        if not holder.value:
            continue
        path = pathlib.Path(holder.value)
        check_output(path)
        parts = [path, *(pathlib.Path(f"{path}.part{end}") for end in ("", ".json") if are_jobs)]
        for part in parts:
            if part.is_file() and _identity(part) in read:
                raise InputError(
                    f"{part} is read and would be replaced; give another path to write to"
                )
        other = written.setdefault(os.path.realpath(path), holder.name)
        if other != holder.name:
            raise InputError(f"--{other} and --{holder.name} are one file; give another path")


def check_output(path: pathlib.Path) -> None:
    """Raises `InputError` where a file could not be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} may not be written to; give another path")


def _identity(file: pathlib.Path | int) -> tuple[int, int]:
    """Returns what is the same for all names of a file."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _read_paths(
    outputs: Sequence["flags.FlagHolder[Any]"], arguments: Sequence[str]
) -> Iterator[pathlib.Path]:
    """Yields what the flags and arguments of the command name, and the files of its runs."""
    given = {name for name in flags.FLAGS if flags.FLAGS[name].present}
    values = [flags.FLAGS[name].value for name in given - {holder.name for holder in outputs}]
    for path in _paths_in([*arguments, *values]):
        yield path
        yield from _files_of_run(path)


def _files_of_run(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the files of a run, and those that it was made of; none for another path."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    for pattern in ("*.json*", "*.model", "checkpoints/*", "tokens/**/*"):
        yield from folder.glob(pattern)
    yield from _paths_in([config])


def _paths_in(values: list[Any]) -> Iterator[pathlib.Path]:
    """Yields each text in values, lists and dictionaries as a path, and each part of a list."""
    remaining = list(values)
    while remaining:
        value = remaining.pop()
        if isinstance(value, str):
            yield from map(pathlib.Path, {value, *value.split(",")})
        elif isinstance(value, dict | list | tuple):
            remaining += value.values() if isinstance(value, dict) else value


def define_flags(
    config: type[JsonConfig],
    names: Iterable[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration.

    Args:
        config: a dataclass of `keras_transformer.config`, or a task.
        names: the fields to define. Default: all.
        presets: named values, whose defaults the help texts list.
    """
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        if names is not None and field.name not in names:
            continue
        help_text = field.metadata.get("help", "") + _default_help(field, presets or {})
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
        elif field.metadata.get("is_path"):
            define_path(field.name, None, help_text)
        else:
            flags.DEFINE_string(field.name, None, help_text)
        _groups.setdefault(_heading(config, field.name), {})[field.name] = None


def _heading(config: type[JsonConfig], name: str) -> str:
    """Returns the heading of --help under which a field stands."""
    if issubclass(config, Task):
        return f"Task {config.name}"
    if name in config.fields_with(of_vocabulary=True):
        return "Vocabulary"
    if not issubclass(config, ModelConfig):
        return next(heading for kind, heading in _HEADINGS.items() if issubclass(config, kind))
    having = [key for key, each in architectures().items() if name in each.__dataclass_fields__]
    if len(having) == len(architectures()):
        return "Model"
    return f"Model, architecture {' or '.join(having)}"


def _default_help(field: dataclasses.Field[Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the default of a field, or one for each preset, as a sentence."""
    having: dict[Any, list[str]] = {}
    for name, preset in presets.items():
        having.setdefault(preset.get(field.name, field.default), []).append(name)
    if len(having) > 1:
        having.pop(None, None)  # whose meaning the help text tells
        parts = [f"{value} in {' and '.join(names)}" for value, names in having.items()]
        return f" Default: {', '.join(parts)}."
    if field.default in (None, (), dataclasses.MISSING):
        return ""
    return f" Default: {field.default}."


def define_path(name: str, default: str | None, help: str, **options: Any) -> Any:
    """Defines a flag for a path of this machine, or several separated by commas.

    Takes the arguments of `flags.DEFINE_string` and returns the same holder.
    """
    serializer: flags.ArgumentSerializer[str] = flags.ArgumentSerializer()
    return flags.DEFINE(_PathParser(), name, default, help, serializer=serializer, **options)


class _PathParser(flags.ArgumentParser[str]):
    syntactic_help = "a path"

    def parse(self, argument: str) -> str:
        return local_paths(argument)


def define_task_options() -> None:
    """Defines a flag for each option of each task."""
    for name in registered_tasks():
        options = get_task(name)
        new = {field.name for field in dataclasses.fields(options)} - set(flags.FLAGS)
        define_flags(options, new)


def define_checkpoint_flag() -> "flags.FlagHolder[str]":
    """Defines --checkpoint, whose value `Checkpoints.find` understands."""
    return flags.DEFINE_string(
        "checkpoint",
        "auto",
        "Which checkpoint: average, latest, best (by the dev metric), a step, or auto: the average "
        "if there is one, else the latest. Several, separated by commas, form an ensemble.",
    )


def given_flags(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration that were given as flags."""
    return given_options(config, flags.FLAGS.flag_values_dict())


def flag_values(module: str, without: Collection[str]) -> dict[str, Any]:
    """Returns the values of a command's flags by their names, such as "--seed".

    Args:
        module: of the command.
        without: flags to leave out.
    """
    own = [each for each in flags.FLAGS.get_key_flags_for_module(module) if each.value is not None]
    return {f"--{each.name}": each.value for each in own if each.name not in without}


def given_task_options(task: type[Task]) -> dict[str, Any]:
    """Returns the options of a task that were given as flags; raises as `task_options` does."""
    return task_options(task, flags.FLAGS.flag_values_dict())


def define_standard_flags(program: str, module: str, description: str) -> None:
    """Defines --help and --version, which print and exit with status 0.

    Args:
        program: the name of the program.
        module: the module that defines its flags.
        description: what --help prints before the flags.
    """

    def show_help() -> None:
        print(f"{description}\n\n{_flags_help(module)}")

    def show_version() -> None:
        print(f"{program} {__version__}")

    flags.DEFINE_flag(_ActionFlag("help", "Show this help.", show_help, short_name="h"))
    flags.DEFINE_flag(_ActionFlag("version", "Show the version.", show_version))


class _ActionFlag(flags.BooleanFlag):
    """A flag that runs an action and exits."""

    def __init__(self, name: str, help: str, action: Any, short_name: str | None = None) -> None:
        super().__init__(name, False, help, short_name=short_name, allow_override=True)
        self._action = action

    def parse(self, argument: Any) -> None:
        if self._parse(argument):
            self._action()
            raise SystemExit(0)


def _flags_help(module: str) -> str:
    """Returns the help of a module's flags, those of configurations under their headings."""
    own = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(module)]
    grouped = {name for names in _groups.values() for name in names}
    sections = {"Flags": [name for name in own if name not in grouped], **_groups}
    blocks = []
    for heading, names in sections.items():
        if shown := [_flag_help(flags.FLAGS[name]) for name in names if name in own]:
            blocks.append("\n".join([f"{heading}:", *shown]))
    return "\n\n".join(blocks)


def _flag_help(flag: "flags.Flag[Any]") -> str:
    # absl puts the choices of a flag before its help text, and a remark on lists after it.
    text = (flag.help or "").partition(";\n")[0]
    if choices := getattr(flag.parser, "enum_values", None):
        text = f"{text.partition('>: ')[2]} One of {', '.join(choices)}."
    if flag.default_as_str not in (None, "'false'", "''") and "Default:" not in text:
        text += f" Default: {flag.default_as_str.strip(chr(39))}."
    name = f"[no]{flag.name}" if flag.boolean else flag.name
    lines = textwrap.wrap(f"--{name}: {text}", 98, subsequent_indent="    ", break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), "  ")


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the flags and returns the positional arguments.

    Raises:
        InputError: a flag is unknown, missing, empty or has a wrong value.
    """
    try:
        arguments = flags.FLAGS(argv)[1:]
    except flags.Error as error:
        raise InputError(f"{_explain(error)}; --help lists the flags") from error
    for name in flags.FLAGS:
        if flags.FLAGS[name].present and flags.FLAGS[name].value == "":  # as in an unset variable
            raise InputError(f"--{name} is empty; give it a value, or remove it")
    return arguments


def _explain(error: "flags.Error") -> str:
    """Returns an error of absl in plain words: which flag, what it takes, what it got."""
    if isinstance(error, flags.UnrecognizedFlagError):
        close = difflib.get_close_matches(error.flagname, flags.FLAGS, 1)
        return f"unknown flag --{error.flagname}" + "".join(f"; did you mean --{x}?" for x in close)
    # Neither the flags that are missing nor the one that is wrong are attributes of the exception.
    if missing := re.findall(r"Flag (--\w+) must have a value other than None", str(error)):
        return f"{' and '.join(missing)} must be given"
    if wrong := re.match(r"flag --(\w+)=(.*?): ", str(error), re.S):
        name, value = wrong.groups()
        if isinstance(error.__context__, InputError):  # of a parser of this package
            return f"--{name}: {error.__context__}"
        flag = flags.FLAGS[name]
        if choices := getattr(flag.parser, "enum_values", None):
            expected = f"one of {', '.join(choices)}"
        else:  # for example "a positive integer"
            expected = "true or false" if flag.boolean else flag.parser.syntactic_help
        return f"--{name} must be {expected}, got {value!r}"
    return "; ".join(line.strip(" .") for line in str(error).splitlines() if line)
