"""The residual connection and normalization around every sub-layer (3.1, 5.4)."""

from typing import Any, Literal

import keras

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(Layer):
    """The residual connection around a sub-layer, with its normalization and dropout.

    "post" is the paper's LayerNorm(x + Dropout(Sublayer(x))); "pre" is
    x + Dropout(Sublayer(LayerNorm(x))), which trains deep stacks more easily and needs one
    more norm at the end of the stack.

    Usage:
        y = residual.enter(x)
        y = sublayer(y)
        x = residual(x, y)

    Args:
        norm_position: "post" or "pre".
        norm_form, norm_epsilon: see `LayerNormalization`.
        dropout: rate on the sub-layer's output.
    """

    def __init__(
        self,
        *,
        norm_position: Literal["post", "pre"] = "post",
        norm_form: Literal["variance", "sigma"] = "variance",
        norm_epsilon: float = 1e-6,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("norm_position", norm_position, ("post", "pre"))
        self.norm_position = norm_position
        self.norm = LayerNormalization(
            norm_epsilon, norm_form, name="norm", dtype=self.dtype_policy
        )
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...], *other_shapes: Any) -> None:
        if not self.norm.built:  # by `enter`
            self.norm.build(input_shape)

    def enter(self, x: Tensor) -> Tensor:
        """Returns the sub-layer's input for the stack's x [B, T, D]."""
        return self.norm(x) if self.norm_position == "pre" else x

    def call(self, x: Tensor, output: Tensor, training: bool | None = None) -> Tensor:
        """Returns the stack's next x [B, T, D] from x and the sub-layer's output."""
        x = x + self.dropout(output, training=training)
        return x if self.norm_position == "pre" else self.norm(x)
