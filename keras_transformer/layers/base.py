"""The base class of all layers, and what several of them share."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import Tensor


class Layer(keras.layers.Layer):
    """A Keras layer whose output has the shape and the Keras mask of its first input.

    Keras makes a layer's configuration from the arguments of its constructor if they are numbers of
    Python, text or None; numbers of NumPy and dtype policies are converted here.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
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

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        options = ("return_attention_scores", "return_state", "return_steps")
        if any(kwargs.get(option) for option in options):
            return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traces `call`
        return super().compute_output_spec(*args, **kwargs)  # JAX cannot trace unknown lengths

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        """Returns a built Dense layer of this layer's dtype."""
        dense = keras.layers.Dense(units, name=name, dtype=self.dtype_policy, **options)
        dense.build(input_shape)
        return dense


def run_loop(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    x: Tensor,
    state: Any,
    mask: Tensor | None = None,
    backwards: bool = False,
) -> tuple[Tensor, Any]:
    """Runs a recurrence over whole sequences. (`ops.scan` has no gradient under TensorFlow's XLA.)

    Args:
        step: reads tokens [B, any]; returns their outputs and the next state.
        x: [B, T, any].
        state: before the first token, float32 at least.
        mask: bool [B, T], False at tokens that leave the state as it is; None for all True.
        backwards: whether to read from the end.

    Returns:
        The outputs [B, T, any], and the last state.
    """
    dtype = full_precision(keras.tree.flatten(state)[0].dtype)
    loop = keras.layers.RNN(
        _Cell(step, dtype),
        return_sequences=True,
        return_state=True,
        go_backwards=backwards,
        dtype=dtype,
        autocast=False,
    )
    outputs, state = loop(x, initial_state=[state], mask=mask)
    return ops.flip(outputs, axis=1) if backwards else outputs, state


class _Cell:
    state_size = 0  # unused: the state is given

    def __init__(self, step: Callable[[Tensor, Any], tuple[Tensor, Any]], dtype: str) -> None:
        self._step = step
        self.compute_dtype = dtype

    def call(self, x: Tensor, states: Any) -> tuple[Tensor, list[Any]]:
        output, state = self._step(x, states[0])
        return output, [state]

    __call__ = call


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

    def build(self, x_shape: tuple[int | None, ...], memory_shape: Any = None) -> None:
        parent: Any = super()
        parent.build(x_shape, memory_shape)

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], memory_shape: Any = None
    ) -> tuple[int | None, ...]:
        return tuple(x_shape)


def with_scores(result: Any) -> tuple[Any, ...]:
    """Returns a layer's output and what it returns beside it: in `call` its attention scores, None
    if they were not asked for; in `step` its KV cache or its attention scores.
    """
    return result if isinstance(result, tuple) else (result, None)
