"""The state of layers that files keep beside their weights: LoRA, quantization, frozen weights.

By paths below the layer or model that is saved: "quantization", the configuration of each quantized
layer, "lora", rank and alpha of each layer with `enable_lora`, and "frozen", the weights that are
not trainable in a layer that is. Keras stores none of them for sublayers: its file would not load
after `quantize` or `enable_lora`, and would lose the optimizer's state if a part of a model is
frozen.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import InputError

_RESTORABLE_MODES = ("int8", "int4", "float8")  # the others need data to quantize with


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """Keras's Dense; its files keep the weights of `enable_lora` beside the kernel.

    Keras's own files have the merged kernel only, and reading them sets the others to 0, from which
    they cannot be trained any more. Here a file without these weights leaves them as they are, and
    a layer without them reads the merged kernel.
    """

    lora_enabled: bool

    def quantize(self, mode: Any = None, type_check: bool = True, **kwargs: Any) -> None:
        super().quantize(mode, type_check=False, **kwargs)  # this subclass computes the same

    def save_own_variables(self, store: Any) -> None:
        is_enabled = self.lora_enabled
        self.lora_enabled = False  # which would merge
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = is_enabled
        if is_enabled:
            store["lora_kernel_a"] = self.lora_kernel_a
            store["lora_kernel_b"] = self.lora_kernel_b
            store["lora_scale"] = np.float32(self.lora_alpha / self.lora_rank)

    def load_own_variables(self, store: Any) -> None:
        values = {name: np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118
        names = ("lora_kernel_a", "lora_kernel_b", "lora_scale")
        lora = {name: values.pop(name) for name in names if name in values}
        if not self.lora_enabled:
            if lora:
                values["0"] = self._merged(values["0"], *lora.values())
            super().load_own_variables(values)
            return
        matrices = self.lora_kernel_a, self.lora_kernel_b
        old = [ops.convert_to_numpy(matrix) for matrix in matrices]
        super().load_own_variables(values)  # sets the matrices to 0
        for name, matrix, value in zip(names, matrices, old, strict=False):
            matrix.assign(lora.get(name, value))

    def _merged(self, kernel: Any, a: Any, b: Any, scale: Any) -> Any:
        if self.quantization_mode is not None:
            raise InputError(
                f"{self.path}: the LoRA matrices of this file cannot be merged into a kernel of "
                f"{self.quantization_mode}; call enable_lora before reading it"
            )
        return kernel + scale * (a @ b)


def layer_states(parent: keras.layers.Layer) -> dict[str, Any]:
    """Returns the states of all layers of a model or a layer, for its configuration."""
    quantization, lora = {}, {}
    for path, layer in sublayers(parent).items():
        mode = getattr(layer, "quantization_mode", None)
        if mode not in (None, *_RESTORABLE_MODES):
            raise InputError(
                f"a model quantized to {mode} cannot be saved; save it before `quantize`, or "
                f"quantize it to one of {', '.join(_RESTORABLE_MODES)}"
            )
        if mode is not None:
            quantization[path] = keras.saving.serialize_keras_object(layer.quantization_config)
        if getattr(layer, "lora_enabled", False):
            lora[path] = {"rank": layer.lora_rank, "lora_alpha": layer.lora_alpha}
    weights = weights_by_path(parent) if parent.trainable else {}
    frozen = [path for path, weight in weights.items() if not weight.trainable]
    states = {"quantization": quantization, "lora": lora, "frozen": frozen}
    return {name: state for name, state in states.items() if state}


def restore_layer_states(parent: keras.layers.Layer, states: Mapping[str, Any]) -> None:
    """Prepares the layers of a new model or layer for the weights of the old one."""
    layers = sublayers(parent)
    for path, config in states.get("quantization", {}).items():
        layers[path].quantize(config=keras.saving.deserialize_keras_object(config))
    for path, options in states.get("lora", {}).items():
        layers[path].enable_lora(**options)
    weights = weights_by_path(parent)
    for path in states.get("frozen", []):
        weights[path].trainable = False


def sublayers(parent: keras.layers.Layer) -> dict[str, Any]:
    """Returns all layers below a model or a layer by path."""
    layers = parent._flatten_layers(include_self=False)
    return {_path_below(parent, layer.path): layer for layer in layers if layer.path is not None}


def weights_by_path(parent: keras.layers.Layer) -> dict[str, Any]:
    """Returns all weights of a model or a layer by path."""
    return {_path_below(parent, weight.path): weight for weight in parent.weights}


def _path_below(parent: keras.layers.Layer, path: str) -> str:
    """Returns a path without the parent's name and those of layers that it was built in."""
    return f"/{path}".partition(f"/{parent.name}/")[2] or path.partition("/")[2]
