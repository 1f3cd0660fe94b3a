"""Flags made from the fields of configurations, with their help texts."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from absl import flags

from keras_transformer.config import JsonConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task, get_task, registered_tasks

flags.disclaim_key_flags()  # these are flags of the command that defines them through here


def define_flags(
    config: type[JsonConfig],
    names: Iterable[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Defines a flag for each field of a configuration.

    Args:
        config: a dataclass of `keras_transformer.config`.
        names: the fields to define; None means all.
        presets: named values that the defaults in the help texts are taken from.
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


def _default_help(field: dataclasses.Field[Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns what to say of a field's default: one, or one for each preset, or nothing."""
    values = {name: preset.get(field.name, field.default) for name, preset in presets.items()}
    if len(set(values.values())) > 1:
        return f" Default: {', '.join(f'{value} in {name}' for name, value in values.items())}."
    if field.default in (None, (), dataclasses.MISSING):
        return ""
    return f" Default: {field.default}."
