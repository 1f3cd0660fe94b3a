"""The base class of all layers, and their Dense."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError


class Layer(keras.layers.Layer):
    """A Keras layer whose output has the shape and the Keras mask of its first input.

    Keras makes a layer's configuration from the arguments of its constructor if they are Python's
    numbers, text or None; here NumPy's numbers and the object of a dtype policy will do too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # The configuration gets plain numbers and the policy's name; `__init__` gets the objects.
        if isinstance(kwargs.get("dtype"), keras.DTypePolicy):
            kwargs["dtype"] = kwargs["dtype"].name
        args, kwargs = keras.tree.map_structure(
            lambda value: value.item() if isinstance(value, np.generic) else value, (args, kwargs)
        )
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns Keras's configuration, and the states of sublayers that files of weights need."""
        config, states = super().get_build_config(), layer_states(self)
        return config if config is None or not states else {**config, "layers": states}

    def build_from_config(self, config: dict[str, Any]) -> None:
        states = config.get("layers", {})
        super().build_from_config({key: config[key] for key in config if key != "layers"})
        restore_layer_states(self, states)

    def _post_build(self) -> None:
        super()._post_build()
        freeze_parts(self)

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        """Returns a built Dense layer of this layer's dtype."""
        dense = Dense(units, name=name, dtype=self.dtype_policy, **options)
        dense.build(input_shape)
        return dense


def freeze_parts(layer: keras.layers.Layer) -> None:
    """Freezes the layers and weights of a frozen layer, which it got after its constructor."""
    if not layer.trainable:
        for part in (*layer._flatten_layers(include_self=False), *layer.weights):
            part.trainable = False


def full_precision(dtype: Any) -> str:
    """Returns the dtype for sums and exponentials: float32, or float64 if that is the dtype."""
    result: str = keras.backend.result_type(dtype, "float32")
    return result


def softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis; a single key has all the weight.

    Keras warns of a single key; its weight has a gradient all the same: 0, and not none.
    """
    return 0.0 * scores + 1.0 if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


class ReadsMemory:
    """Base of layers that are called with x and a memory, and return the shape of x.

    Keras finds the shapes by the names of these arguments.
    """

    def build(
        self, x_shape: tuple[int | None, ...], memory_shape: tuple[int | None, ...] | None = None
    ) -> None:
        parent: Any = super()
        parent.build(x_shape, memory_shape)

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], memory_shape: Any = None
    ) -> tuple[int | None, ...]:
        return tuple(x_shape)


class ReturnsScores:
    """Base of layers whose `call` has `return_attention_scores`: what a functional model returns.

    Without it Keras would trace `call`, for which JAX needs to know the length.
    """

    compute_dtype: str

    def compute_output_spec(
        self, x: Tensor, *others: Any, return_attention_scores: bool = False, **options: Any
    ) -> Any:
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, *self.scores_spec(x, options.get("memory", others[0] if others else None))

    def scores_spec(self, x: Tensor, memory: Any) -> tuple[Any, ...]:
        """Returns the specifications of the scores that `call` returns beside its output."""
        raise NotImplementedError


def with_scores(result: Any) -> tuple[Any, ...]:
    """Returns a layer's output and its attention scores, or None if it was not asked for them."""
    return result if isinstance(result, tuple) else (result, None)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """Keras's Dense, whose files keep the weights of `enable_lora` beside the kernel.

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


# What a file must say of layers, by paths below the one that holds them: "quantization", the
# configuration of each quantized layer, "lora", rank and alpha of each layer with `enable_lora`,
# and "frozen", the weights that are not trainable in a layer that is. Keras stores none of them
# for sublayers: its file would not load after `quantize` or `enable_lora`, and would lose the
# optimizer's state if a part of a model is frozen.

_RESTORABLE_MODES = ("int8", "int4", "float8")  # the others need data to quantize with


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
