"""What a model's configuration says of its layers: which are quantized, which weights are frozen.

Keras stores neither for a subclassed model: its file would not load after `Model.quantize`, and
would lose the optimizer's state where a part of the model is not trainable.
"""

from typing import Any

import keras

from keras_transformer.errors import InputError

_MODES = ("int8", "int4", "float8")  # the others need data to quantize with


def layer_states(model: keras.Model) -> dict[str, Any]:
    """Returns what differs from layers as they are built, by paths below the model.

    "quantization" has the serialized quantization of each quantized layer, "frozen" the weights
    that are not trainable in a model that is.

    Raises:
        InputError: a layer's quantization cannot be restored.
    """
    weights = _weights(model) if model.trainable else {}
    frozen = [path for path, weight in weights.items() if not weight.trainable]
    states = {"quantization": _quantization_configs(model), "frozen": frozen}
    return {name: state for name, state in states.items() if state}


def restore_layer_states(model: keras.Model, states: dict[str, Any]) -> None:
    """Makes the layers of a new model those of `layer_states`, so that weights can be loaded."""
    layers = _layers(model)
    for path, config in states.get("quantization", {}).items():
        layers[path].quantize(config=keras.saving.deserialize_keras_object(config))
    weights = _weights(model)
    for path in states.get("frozen", []):
        weights[path].trainable = False


def _quantization_configs(model: keras.Model) -> dict[str, Any]:
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


def _layers(model: keras.Model) -> dict[str, Any]:
    layers = model._flatten_layers(include_self=False)
    return {layer.path.partition("/")[2]: layer for layer in layers if layer.path is not None}


def _weights(model: keras.Model) -> dict[str, Any]:
    return {weight.path.partition("/")[2]: weight for weight in model.weights}
