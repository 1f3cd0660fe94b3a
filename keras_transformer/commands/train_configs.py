"""The configurations that the flags of train ask for: of a new run, or of a run with changes."""

import re
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
from keras_transformer.errors import InputError, check_choice
from keras_transformer.tasks import Task, get_task, registered_tasks

if TYPE_CHECKING:
    from keras_transformer.training import RunConfigs

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

# What is trained on where no data is named: small, built in, and few tokens are enough for it.
_DEFAULT_DATA = {"dataset": "number_names/en-de", "vocabulary_size": 200}


def define_flags() -> None:
    """Defines a flag for each field of the configurations, and the presets that set several."""
    flags.DEFINE_enum(
        "preset",
        "tiny",
        list(ModelConfig.presets()),
        "Model and training settings, which other flags change.",
    )
    flags.DEFINE_enum(
        "architecture", None, list(architectures()), "Kind of model. Default: that of --preset."
    )
    flags.DEFINE_enum("task", "translation", registered_tasks(), "What the model is trained for.")
    for config in architectures().values():
        names = {name for name in config.__dataclass_fields__ if not _is_vocabulary_size(name)}
        config_flags.define_flags(config, names - set(flags.FLAGS), config.presets())
    config_flags.define_flags(DataConfig)
    config_flags.define_task_options()
    config_flags.define_flags(TrainingConfig, presets=TRAINING_PRESETS)


def names_data() -> bool:
    """Whether any data is named."""
    is_data = re.compile("dataset|train_tsv|.*_source|.*_target")
    return any(map(is_data.fullmatch, config_flags.given_flags(DataConfig)))


def new_configs() -> tuple[ModelConfig, DataConfig, TrainingConfig, Task]:
    """Returns the configurations of a new run, as if its vocabularies had the sizes asked for.

    Raises:
        InputError: a value is out of range, or does not go with another.
    """
    values: dict[str, Any] = {} if names_data() else _DEFAULT_DATA
    data = DataConfig(**values | config_flags.given_flags(DataConfig))
    training = TrainingConfig.preset(flags.FLAGS.preset, **config_flags.given_flags(TrainingConfig))
    options = get_task(flags.FLAGS.task)
    task = options(**config_flags.given_task_options(options))
    if training.stop_metric is not None:
        task.find_metric(training.stop_metric)
    return model_config(data, data.vocabulary_size, data.vocabulary_size), data, training, task


def model_config(data: DataConfig, source_size: int, target_size: int) -> ModelConfig:
    """Returns the model of a new run whose vocabularies have these sizes."""
    values = _given_model_values() | {"vocabulary_size": source_size}
    if not data.share_vocabulary or data.target_vocabulary is not None:
        values["target_vocabulary_size"] = target_size
        values.setdefault("share_embeddings", "target")
    architecture = flags.FLAGS.architecture
    config = ModelConfig if architecture is None else architectures()[architecture]
    return config.preset(flags.FLAGS.preset, **values)


def changed_configs(configs: "RunConfigs") -> "RunConfigs":
    """Returns the configurations of a run with the values of the flags that are given.

    Raises:
        InputError: a value is out of range, or does not go with another, or the run has another
            architecture or task.
    """
    model, data, training, task = configs
    for name, value in (("architecture", model.architecture), ("task", task.name)):
        if flags.FLAGS[name].present and flags.FLAGS[name].value != value:
            raise InputError(
                f"{name} is {value} in {flags.FLAGS.run_dir}, and --{name}="
                f"{flags.FLAGS[name].value} was given; leave it out, or give another --run_dir"
            )
    model_values, training_values = _given_model_values(), config_flags.given_flags(TrainingConfig)
    if flags.FLAGS["preset"].present:
        preset, presets = flags.FLAGS.preset, type(model).presets()
        own_name = f"{model.architecture}-{preset}"
        name = own_name if own_name in presets else preset
        check_choice("preset", name, tuple(presets))
        model_values = {**presets[name]} | model_values
        training_values = TRAINING_PRESETS[name.rpartition("-")[2]] | training_values
    return type(configs)(
        model.replace(**model_values),
        data.replace(**config_flags.given_flags(DataConfig)),
        training.replace(**training_values),
        task.replace(**config_flags.given_task_options(type(task))),
    )


def _given_model_values() -> dict[str, Any]:
    """Returns the fields of any model that were given as flags."""
    values: dict[str, Any] = {}
    for config in architectures().values():
        values |= config_flags.given_flags(config)
    # A flag of that name is the size that is asked for; a vocabulary may come out smaller.
    return {name: value for name, value in values.items() if not _is_vocabulary_size(name)}


def _is_vocabulary_size(name: str) -> bool:
    return name.endswith("vocabulary_size")
