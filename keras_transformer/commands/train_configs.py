"""The configurations that the flags of train ask for: of a new run, or of a run with changes."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import config_flags
from keras_transformer.config import (
    TRAINING_PRESETS,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    architectures,
)
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task, get_task, registered_tasks

if TYPE_CHECKING:
    from keras_transformer.training import RunConfigs

flags.disclaim_key_flags()  # these are flags of the command that defines them through here


def define_flags() -> None:
    """Defines a flag for each field of the configurations, and the presets that set several."""
    flags.DEFINE_enum(
        "preset",
        "tiny",
        sorted(ModelConfig.presets(), key=lambda name: "-" in name),  # plain names first
        "Model and training settings, which other flags change.",
    )
    flags.DEFINE_enum(
        "architecture", None, list(architectures()), "Kind of model. Default: that of --preset."
    )
    flags.DEFINE_enum("task", "translation", registered_tasks(), "What the model is trained for.")
    # The help of a field that several have gives the defaults in the presets of the first one.
    default = flags.FLAGS["preset"].default
    for config in sorted(architectures().values(), key=lambda each: default not in each.presets()):
        names = {name for name in config.__dataclass_fields__ if not _is_vocabulary_size(name)}
        config_flags.define_flags(config, names - set(flags.FLAGS), config.presets())
    config_flags.define_flags(DataConfig)
    config_flags.define_task_options()
    config_flags.define_flags(TrainingConfig, presets=TRAINING_PRESETS)


def names_data() -> bool:
    """Whether any data is named."""
    is_data = re.compile("dataset|.*_file|.*_source|.*_target")
    return any(map(is_data.fullmatch, config_flags.given_flags(DataConfig)))


def new_configs() -> tuple[ModelConfig, DataConfig, TrainingConfig, Task]:
    """Returns the configurations of a new run, as if its vocabularies had the sizes asked for.

    Raises:
        InputError: a value is out of range, or does not go with another.
    """
    options = get_task(flags.FLAGS.task)
    task = options(**config_flags.given_task_options(options))
    data, training = data_config(task), training_config(task)
    _refuse_freeze(training.freeze)
    return model_config(data, data.vocabulary_size, data.vocabulary_size), data, training, task


def data_config(task: Task, changes: Mapping[str, Any] | None = None) -> DataConfig:
    """Returns the data of a new run, by its flags and with some other defaults."""
    values = {**task.default_data, **({} if names_data() else task.built_in_data)}
    values |= {**(changes or {}), **config_flags.given_flags(DataConfig)}
    data = DataConfig(**values)
    task.check_data(data)
    return data


def training_config(task: Task, changes: Mapping[str, Any] | None = None) -> TrainingConfig:
    """Returns the training of a new run, by its flags and with some other defaults."""
    values = {**_where_no_preset_is_named(task.default_training), **(changes or {})}
    values |= config_flags.given_flags(TrainingConfig)
    training = TrainingConfig.preset(flags.FLAGS.preset, **values)
    if training.stop_metric is not None:
        task.find_metric(training.stop_metric)
    return training


def model_config(data: DataConfig, source_size: int, target_size: int) -> ModelConfig:
    """Returns the model of a new run whose vocabularies have these sizes."""
    defaults = _where_no_preset_is_named(get_task(flags.FLAGS.task).default_model)
    values = {**defaults, **given_model_values(), "vocabulary_size": source_size}
    if not data.shares_vocabulary:
        values["target_vocabulary_size"] = target_size
        values.setdefault("share_embeddings", "target")
    architecture = flags.FLAGS.architecture
    config = ModelConfig if architecture is None else architectures()[architecture]
    if not config.presets():  # one of the user's own may have none
        _check_flags_of(config)
        return config(**values)
    _check_flags_of(type(config.preset(flags.FLAGS.preset, vocabulary_size=source_size)))
    return config.preset(flags.FLAGS.preset, **values)


def _check_flags_of(config: type[ModelConfig]) -> None:
    """Raises `InputError` for a flag that only other architectures have."""
    fields = {each: each.__dataclass_fields__ for each in architectures().values()}
    for name in given_model_values():
        if name not in fields[config]:
            others = [each.architecture for each in fields if name in fields[each]]
            raise InputError(
                f"--{name} is a setting of architecture {' and '.join(others)}, and this run's is "
                f"{config.architecture}; leave it out, or give a new run another --architecture"
            )


def given_model_values() -> dict[str, Any]:
    """Returns the fields of any model that were given as flags."""
    values: dict[str, Any] = {}
    for config in architectures().values():
        values |= config_flags.given_flags(config)
    # A flag of that name is the size that is asked for; a vocabulary may come out smaller.
    return {name: value for name, value in values.items() if not _is_vocabulary_size(name)}


def changed_configs(configs: "RunConfigs") -> "RunConfigs":
    """Returns the configurations of a run with the values of the flags that are given.

    Raises:
        InputError: a value is out of range, or does not go with another, or the run has another
            architecture or task.
    """
    model, training, task = configs.model, configs.training, configs.task
    for name, value in (("architecture", model.architecture), ("task", task.name)):
        if flags.FLAGS[name].present and flags.FLAGS[name].value != value:
            raise InputError(
                f"{name} is {value} in {flags.FLAGS.run_dir}, and --{name}="
                f"{flags.FLAGS[name].value} was given; leave it out, or give another --run_dir"
            )
    _check_flags_of(type(model))
    model_values, training_values = given_model_values(), config_flags.given_flags(TrainingConfig)
    if "start_from" not in configs.origin:
        _refuse_freeze(training_values.get("freeze"))
    if flags.FLAGS["preset"].present:
        name = type(model).preset_name(flags.FLAGS.preset)
        if "start_from" not in configs.origin:  # whose model is another run's
            model_values = {**type(model).presets()[name]} | model_values
        training_values = TRAINING_PRESETS[name.rpartition("-")[2]] | training_values
    return configs._replace(
        model=model.replace(**model_values),
        data=configs.corpora.replace(**config_flags.given_flags(DataConfig)),
        training=training.replace(**training_values),
        task=task.replace(**config_flags.given_task_options(type(task))),
    )


def _refuse_freeze(freeze: str | None) -> None:
    if freeze is not None:
        raise InputError("--freeze would keep random weights; give --start_from too")


def _where_no_preset_is_named(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if flags.FLAGS["preset"].present else values


def _is_vocabulary_size(name: str) -> bool:
    return name.endswith("vocabulary_size")
