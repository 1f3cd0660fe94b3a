"""Maps each configuration class to its model class."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from keras_transformer.config import ModelConfig, register_config
from keras_transformer.errors import InputError
from keras_transformer.models.seq2seq import Seq2SeqModel

Model = TypeVar("Model", bound=type[Seq2SeqModel])
_MODELS: dict[type[ModelConfig], type[Seq2SeqModel]] = {}


def register_architecture(config: type[ModelConfig]) -> Callable[[Model], Model]:
    """Returns a decorator that registers a model class for a configuration class.

    Runs, commands and Keras's model files then find both by `config.architecture` and the class's
    name.

    Raises:
        InputError: another configuration has the name of the architecture or of a preset.

    Example:
        >>> @register_architecture(RecurrentConfig)
        ... class RecurrentModel(Seq2SeqModel): ...
    """
    register_config(config)

    def register(model: Model) -> Model:
        _MODELS[config] = keras.saving.register_keras_serializable("keras_transformer")(model)
        return model

    return register


def build_model(config: ModelConfig, dtype: Any = None) -> Seq2SeqModel:
    """Returns a new model of the configuration's architecture.

    Args:
        config: of a registered architecture.
        dtype: name of a dtype policy, or the policy; None means Keras's default.

    Raises:
        InputError: no model is registered for the configuration.
    """
    model = _MODELS.get(type(config))
    if model is None:
        raise InputError(
            f"no model is registered for {type(config).__name__}; register one with "
            "register_architecture"
        )
    return model(config, dtype=dtype)
