"""Layers quantized by Keras's `Model.quantize`: written to a model's configuration and restored.

Keras does not do so for a subclassed model, whose file then does not load.
"""

from typing import Any

import keras

from keras_transformer.errors import InputError

_MODES = ("int8", "int4", "float8")  # the others need data to quantize with


def quantization_configs(model: keras.Model) -> dict[str, Any]:
    """Returns the serialized quantization of each quantized layer by its path below the model.

    Raises:
        InputError: a layer's quantization cannot be restored.
    """
    configs = {}
    for path, layer in _layers(model).items():
        if mode := getattr(layer, "quantization_mode", None):
            if mode not in _MODES:
                raise InputError(
                    f"a model quantized to {mode} cannot be saved; save it before `quantize`, or "
                    f"quantize it to one of {', '.join(_MODES)}"
                )
            configs[path] = keras.saving.serialize_keras_object(layer.quantization_config)
    return configs


def restore_quantization(model: keras.Model, configs: dict[str, Any]) -> None:
    """Quantizes the layers of `quantization_configs`, so that their weights can be loaded."""
    layers = _layers(model)
    for path, config in configs.items():
        layers[path].quantize(config=keras.saving.deserialize_keras_object(config))


def _layers(model: keras.Model) -> dict[str, Any]:
    layers = model._flatten_layers(include_self=False)
    return {layer.path.partition("/")[2]: layer for layer in layers if layer.path is not None}
