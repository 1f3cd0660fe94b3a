"""The flags of commands: made from configurations, grouped in --help, and explained when wrong."""

import dataclasses
import difflib
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from keras_transformer.config import (
    DataConfig,
    JsonConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    architectures,
)
from keras_transformer.config.options import field_types
from keras_transformer.errors import InputError
from keras_transformer.files import local_paths
from keras_transformer.tasks import Task, get_task, registered_tasks
from keras_transformer.version import __version__

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

_HEADINGS = {DataConfig: "Data", TrainingConfig: "Training", SearchConfig: "Search"}
# The flags under each heading of --help, in the order of their definition.
_groups: dict[str, dict[str, None]] = {}
_required: list["flags.Flag[Any]"] = []


def define_flags(
    config: type[JsonConfig],
    names: Iterable[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration.

    Args:
        config: a dataclass of fields made by `option`, or a task.
        names: the fields to define. Default: all.
        presets: named values, whose defaults the help texts list.
    """
    types = field_types(config)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        if names is not None and field.name not in names:
            continue
        help_text = field.metadata.get("help", "") + _default_help(field, presets or {})
        may_be_none = type(None) in typing.get_args(types[field.name])
        kind = typing.get_args(types[field.name])[0] if may_be_none else types[field.name]
        if typing.get_origin(kind) is typing.Literal:
            flags.DEFINE_enum(field.name, None, typing.get_args(kind), help_text)
        elif typing.get_origin(kind) is tuple:
            flags.DEFINE_multi_string(field.name, None, help_text)
        elif kind is bool:
            flags.DEFINE_boolean(field.name, None, help_text)
        elif kind is int:
            flags.DEFINE_integer(field.name, None, help_text)
        elif kind is float:
            flags.DEFINE_float(field.name, None, help_text)
        elif field.metadata.get("is_path"):
            define_path(field.name, None, help_text)
        else:
            flags.DEFINE_string(field.name, None, help_text)
        flag = flags.FLAGS[field.name]
        flag.parser = _FlagParser(flag, may_be_none=may_be_none)
        if heading := _heading(config, field.name):
            _groups.setdefault(heading, {})[field.name] = None


def _heading(config: type[JsonConfig], name: str) -> str:
    """Returns the heading of --help under which a field stands; none if it is the command's own."""
    if issubclass(config, Task):
        return f"Task {config.name}"
    if name in config.fields_with(for_vocabulary=True):
        return "Vocabulary"
    if not issubclass(config, ModelConfig):
        return next((text for kind, text in _HEADINGS.items() if issubclass(config, kind)), "")
    having = [key for key, kind in architectures().items() if name in kind.__dataclass_fields__]
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
        parts = [
            f"{value} in {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]}"
            for value, names in having.items()
        ]
        return f" Default: {', '.join(parts)}."
    if field.default is False or field.default in (None, (), dataclasses.MISSING):
        return ""
    return f" Default: {field.default}."


def define_path(name: str, default: str | None, help: str, *, required: bool = False) -> Any:
    """Defines a flag for a path of this machine, or several separated by commas.

    Takes the arguments of `flags.DEFINE_string` and returns the same holder.
    """
    serializer: flags.ArgumentSerializer[str] = flags.ArgumentSerializer()
    holder = flags.DEFINE(_PathParser(), name, default, help, serializer=serializer)
    return require(holder) if required else holder


def require(holder: "flags.FlagHolder[Any]") -> Any:
    """Makes a flag one that must be given."""
    _required.append(flags.FLAGS[holder.name])
    return holder


class _PathParser(flags.ArgumentParser[str]):
    syntactic_help = "a path"

    def parse(self, argument: str) -> str:
        return local_paths(argument)


class _FlagParser(flags.ArgumentParser[Any]):
    """The parser of a flag, with errors that name the flag, what it takes and what it got.

    Attributes:
        enum_values: the choices of the flag, if it has any.
    """

    def __init__(self, flag: "flags.Flag[Any]", *, may_be_none: bool = False) -> None:
        self._name, self._parser = flag.name, flag.parser
        self._may_be_none = may_be_none  # whether "none" unsets the option
        self.syntactic_help = "true or false" if flag.boolean else flag.parser.syntactic_help
        self.enum_values: Sequence[str] | None = getattr(flag.parser, "enum_values", None)

    def parse(self, argument: Any) -> Any:
        if self._may_be_none and argument == "none":
            return None
        try:
            return self._parser.parse(argument)
        except InputError as error:
            raise InputError(f"--{self._name}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:
            choices = self.enum_values and f"one of {', '.join(self.enum_values)}"
            expected = choices or self.syntactic_help  # such as "a positive integer"
            raise InputError(f"--{self._name} must be {expected}, got {argument!r}") from error

    def flag_type(self) -> str:
        return self._parser.flag_type()


def define_task_options() -> None:
    """Defines a flag for each option of each task."""
    for name in registered_tasks():
        options = get_task(name)
        new = {field.name for field in dataclasses.fields(options)} - set(flags.FLAGS)
        define_flags(options, new)


def define_run_dirs_flag() -> "flags.FlagHolder[str]":
    """Defines --run_dir of commands that read runs."""
    return define_path(
        "run_dir",
        None,
        "Directory of a training run. Several, separated by commas, form an ensemble.",
    )


def define_model_flag() -> "flags.FlagHolder[str | None]":
    """Defines --model of commands that also read models that are no runs."""
    return flags.DEFINE_string(
        "model",
        None,
        "Instead of --run_dir, a model in the package, such as en-de; the folder or file of "
        "another toolkit's model; or its name on the Hugging Face Hub. Import settings are "
        "detected; use import_model to set them.",
    )


def define_checkpoint_flag() -> "flags.FlagHolder[str]":
    """Defines --checkpoint, whose value `Checkpoints.find` understands."""
    return flags.DEFINE_string(
        "checkpoint",
        "auto",
        "Checkpoint: average, latest, best (by the dev metric), a step, or auto (the average if "
        "there is one, else the latest). Several, separated by commas, form an ensemble.",
    )


def given_flags(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration that were given as flags."""
    names = [name for name in config.fields_with() if name in flags.FLAGS]
    return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}


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
    key_flags = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(module)]
    grouped = {name for names in _groups.values() for name in names}
    sections = {"Flags": [name for name in key_flags if name not in grouped], **_groups}
    blocks = []
    for heading, names in sections.items():
        if shown := [_flag_help(flags.FLAGS[name]) for name in names if name in key_flags]:
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
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if not isinstance(flag.parser, _FlagParser):
            flag.parser = _FlagParser(flag)
    try:
        arguments = flags.FLAGS(argv)[1:]
    except flags.Error as error:
        raise InputError(f"{_explain(error)}; --help lists the flags") from error
    for name in flags.FLAGS:
        is_empty = flags.FLAGS[name].present and flags.FLAGS[name].value == ""
        if is_empty and name != "compile_cache":  # as in an unset variable; an empty cache is off
            raise InputError(f"--{name} is empty; give it a value, or remove it")
    defined = [flags.FLAGS[name] for name in flags.FLAGS]
    if missing := [f"--{flag.name}" for flag in _required if flag in defined and not flag.value]:
        raise InputError(f"{' and '.join(missing)} must be given; --help lists the flags")
    return arguments


def _explain(error: "flags.Error") -> str:
    """Returns an error of absl in plain words."""
    if isinstance(error, flags.UnrecognizedFlagError):
        close = difflib.get_close_matches(error.flagname, flags.FLAGS, 1)
        return f"unknown flag --{error.flagname}" + "".join(f"; did you mean --{x}?" for x in close)
    if isinstance(error.__context__, InputError):  # of a parser
        return str(error.__context__)
    return "; ".join(line.strip(" .") for line in str(error).splitlines() if line)
