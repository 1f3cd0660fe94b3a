"""The base class of all layers."""

from typing import Any

import keras


class Layer(keras.layers.Layer):
    """A Keras layer whose output has the shape of its first input, unless it says otherwise.

    Keras makes the configuration of a layer from its constructor's arguments where these are
    numbers, text or None; here a dtype policy may be an object too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # The configuration gets the policy's name; `__init__` gets the object.
        if isinstance(kwargs.get("dtype"), keras.DTypePolicy):
            kwargs["dtype"] = kwargs["dtype"].name
        return super().__new__(cls, *args, **kwargs)

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        """Returns a built Dense layer of this layer's dtype."""
        dense = keras.layers.Dense(units, name=name, dtype=self.dtype_policy, **options)
        dense.build(input_shape)
        return dense


def with_scores(result: Any) -> tuple[Any, ...]:
    """Returns an attention layer's output, and its weights: None where they were not asked for."""
    return result if isinstance(result, tuple) else (result, None)
