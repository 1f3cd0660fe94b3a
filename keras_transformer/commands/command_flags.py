"""The flags of commands: made from the fields that configurations declare, grouped in --help."""

import dataclasses
import os
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import flags

from keras_transformer.config import (
    DataConfig,
    JsonConfig,
    ModelConfig,
    SearchConfig,
    TrainingConfig,
    architectures,
    check_options,
)
from keras_transformer.config.options import field_types
from keras_transformer.errors import InputError
from keras_transformer.files import local_paths
from keras_transformer.tasks import Task, get_task, registered_tasks

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

_HEADINGS = {DataConfig: "Data", TrainingConfig: "Training", SearchConfig: "Search"}
_DEFINE: dict[type, Callable[[str, None, str], Any]] = {
    bool: flags.DEFINE_boolean,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
# The flags under each heading of --help, in the order of their definition.
_groups: dict[str, list[str]] = {}


def define_flags(
    config: type[JsonConfig],
    names: Iterable[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration, or for some `names`.

    Help texts list the values that `presets` have.
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
        elif field.metadata.get("is_path"):
            define_path(field.name, help_text)
        else:
            _DEFINE[kind](field.name, None, help_text)
        if may_be_none:
            flags.FLAGS[field.name].parser = _NoneOr(flags.FLAGS[field.name].parser)
        if heading := _heading(config, field.name):
            _groups.setdefault(heading, []).append(field.name)


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
        parts = [f"{value} in {' and '.join(names)}" for value, names in having.items()]
        return f" Default: {', '.join(parts)}."
    if field.default is False or field.default in (None, (), dataclasses.MISSING):
        return ""
    return f" Default: {field.default}."


class _NoneOr(flags.ArgumentParser[Any]):
    """Takes what another parser takes, and "none", which unsets an option."""

    def __init__(self, parser: flags.ArgumentParser[Any]) -> None:
        self._parser = parser
        self.enum_values = getattr(parser, "enum_values", None)

    def parse(self, argument: Any) -> Any:
        return None if argument == "none" else self._parser.parse(argument)

    def flag_type(self) -> str:
        return self._parser.flag_type()


class _PathParser(flags.ArgumentParser[str]):
    def parse(self, argument: str) -> str:
        if not argument:  # as from an unset variable
            raise ValueError("a path must not be empty")
        return local_paths(argument)


def define_path(name: str, help: str, *, required: bool = False) -> Any:
    """Defines a flag for a path of this machine, or several separated by commas."""
    serializer: flags.ArgumentSerializer[str] = flags.ArgumentSerializer()
    return flags.DEFINE(_PathParser(), name, None, help, serializer=serializer, required=required)


def define_task_options() -> None:
    """Defines a flag for each option of each task."""
    for task in map(get_task, registered_tasks()):
        define_flags(task, set(task.fields_with()) - set(flags.FLAGS))


def define_model_flags() -> None:
    """Defines --run_dir, --model and --checkpoint of commands that read trained models."""
    define_path(
        "run_dir", "Directory of a training run. Several, separated by commas, form an ensemble."
    )
    flags.DEFINE_string(
        "model",
        None,
        "Instead of --run_dir, a model in the package, such as en-de; the folder or file of "
        "another toolkit's model; or its name on the Hugging Face Hub. Import settings are "
        "detected; use import_model to set them.",
    )
    flags.DEFINE_string(
        "checkpoint",
        "auto",
        "Checkpoint: average, latest, best (by the dev metric), a step, or auto (the average if "
        "there is one, else the latest). Several, separated by commas, form an ensemble.",
    )


def given_flags(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration that were given as flags."""
    names = [name for name in config.fields_with() if name in flags.FLAGS]
    return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}


def given_search() -> dict[str, Any]:
    """Returns the search options that were given; raises `InputError` for wrong values."""
    options = given_flags(SearchConfig)
    check_options(options)
    return options


def check_one_of(*names: str) -> None:
    """Raises `InputError` unless one of these flags is given, --checkpoint only with --run_dir."""
    models = [name for name in names if flags.FLAGS[name].value is not None]
    if len(models) != 1:
        raise InputError(f"give one of --{', --'.join(names)}")
    if models != ["run_dir"]:
        reject_given(["checkpoint"], f"cannot be combined with --{models[0]}")


def with_given_options(task: Task) -> Task:
    """Returns the task of a run with the options that were given as flags.

    Raises:
        InputError: an option is fixed, since the model has learned it.
    """
    options = given_flags(type(task))
    reject_given(
        options.keys() & {*task.fields_with(is_learned=True)}, "is fixed when a run is trained"
    )
    return task.replace(**options)


def reject_given(names: Iterable[str], reason: str) -> None:
    """Raises `InputError` if one of these flags was given: "--NAME REASON; remove it"."""
    for name in names:
        if flags.FLAGS[name].present:
            raise InputError(f"--{name} {reason}; remove it")


def flags_help(module: str) -> str:
    """Returns the help of a module's flags, those of configurations under their headings."""
    key_flags = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(module)]
    grouped = {name for names in _groups.values() for name in names}
    sections = {"Flags": [name for name in key_flags if name not in grouped], **_groups}
    blocks = []
    for heading, names in sections.items():
        shown = [_flag_help(flags.FLAGS[n]) for n in dict.fromkeys(names) if n in key_flags]
        if shown:
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
    """Parses the flags and returns the positional arguments; `InputError` for a wrong flag."""
    try:
        return flags.FLAGS(argv)[1:]
    except (flags.Error, UnicodeDecodeError) as error:
        message = " ".join(str(error).replace(os.linesep, "; ").split()).rstrip(" .")
        raise InputError(f"{message} (--help lists the flags)") from error
