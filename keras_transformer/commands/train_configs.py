"""The configurations that the flags of train ask for: of a new run, or of a run with changes."""

import re
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import config_flags
from keras_transformer.config import (
    PRESETS,
    TRAINING_PRESETS,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)

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
        list(PRESETS),
        "Model and training settings, which other flags change.",
    )
    names = {name for name in ModelConfig.__dataclass_fields__ if not _is_vocabulary_size(name)}
    config_flags.define_flags(ModelConfig, names, PRESETS)
    config_flags.define_flags(DataConfig)
    config_flags.define_flags(TrainingConfig, presets=TRAINING_PRESETS)


def names_data() -> bool:
    """Whether any data is named."""
    is_data = re.compile("dataset|train_tsv|.*_source|.*_target")
    return any(map(is_data.fullmatch, config_flags.given_flags(DataConfig)))


def new_configs() -> tuple[ModelConfig, DataConfig, TrainingConfig]:
    """Returns the configurations of a new run, as if its vocabularies had the sizes asked for.

    Raises:
        InputError: a value is out of range, or does not go with another.
    """
    values: dict[str, Any] = {} if names_data() else _DEFAULT_DATA
    data = DataConfig(**values | config_flags.given_flags(DataConfig))
    training = TrainingConfig.preset(flags.FLAGS.preset, **config_flags.given_flags(TrainingConfig))
    return model_config(data, data.vocabulary_size, data.vocabulary_size), data, training


def model_config(data: DataConfig, source_size: int, target_size: int) -> ModelConfig:
    """Returns the model of a new run whose vocabularies have these sizes."""
    values = _given_model_values() | {"vocabulary_size": source_size}
    if not data.share_vocabulary or data.target_vocabulary is not None:
        values["target_vocabulary_size"] = target_size
        values.setdefault("share_embeddings", "target")
    return ModelConfig.preset(flags.FLAGS.preset, **values)


def changed_configs(configs: "RunConfigs") -> "RunConfigs":
    """Returns the configurations of a run with the values of the flags that are given.

    Raises:
        InputError: a value is out of range, or does not go with another.
    """
    model, data, training = configs
    model_values, training_values = _given_model_values(), config_flags.given_flags(TrainingConfig)
    if flags.FLAGS["preset"].present:
        name = flags.FLAGS.preset
        model_values = PRESETS[name] | model_values
        training_values = TRAINING_PRESETS[name] | training_values
    return type(configs)(
        model.replace(**model_values),
        data.replace(**config_flags.given_flags(DataConfig)),
        training.replace(**training_values),
    )


def _given_model_values() -> dict[str, Any]:
    """Returns the fields of any model that were given as flags."""
    values = config_flags.given_flags(ModelConfig)
    # A flag of that name is the size that is asked for; a vocabulary may come out smaller.
    return {name: value for name, value in values.items() if not _is_vocabulary_size(name)}


def _is_vocabulary_size(name: str) -> bool:
    return name.endswith("vocabulary_size")
