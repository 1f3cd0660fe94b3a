"""What all layers have in common."""

from typing import Any

import keras


class Layer(keras.layers.Layer):
    """A Keras layer whose configuration Keras makes of the constructor's arguments.

    Keras does so where these are numbers, text or None; a dtype policy may be an object too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # This is what the configuration has; `__init__` gets the object.
        if isinstance(kwargs.get("dtype"), keras.DTypePolicy):
            kwargs["dtype"] = kwargs["dtype"].name
        return super().__new__(cls, *args, **kwargs)
