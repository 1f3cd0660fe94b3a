"""The encoder: N layers of self-attention and feed-forward (3.1).

Shapes: B batch, S source length, D model dimension.
"""

from typing import Any

import keras

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.transformer_layer import TransformerLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    def call(self, x: Tensor, bias: Tensor | None = None, training: bool | None = None) -> Tensor:
        """Returns [B, S, D] for x [B, S, D]; the bias hides padding."""
        y = self.self_attention_residual.enter(x)
        y = self.self_attention(y, bias, training=training)
        x = self.self_attention_residual(x, y, training=training)
        y = self.feed_forward_residual.enter(x)
        y = self.feed_forward(y, training=training)
        return self.feed_forward_residual(x, y, training=training)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Layer):
    """A stack of `EncoderLayer`s, with a last norm where norms stand before the sub-layers.

    Args:
        num_layers: N.
        **layer_options: see `EncoderLayer`.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **layer_options: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.layers = [
            EncoderLayer(**layer_options, name=f"layer_{index}", dtype=self.dtype_policy)
            for index in range(num_layers)
        ]
        self.final_norm = final_norm(layer_options, self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        for layer in self.layers:
            layer.build(input_shape)
        if self.final_norm is not None:
            self.final_norm.build(input_shape)

    def call(self, x: Tensor, bias: Tensor | None = None, training: bool | None = None) -> Tensor:
        """Returns the memory [B, S, D] that a decoder attends to."""
        for layer in self.layers:
            x = layer(x, bias, training=training)
        return x if self.final_norm is None else self.final_norm(x)


def final_norm(layer_options: dict[str, Any], dtype: Any) -> LayerNormalization | None:
    """Returns the norm that ends a pre-norm stack, or None for a post-norm one."""
    if layer_options.get("norm_position", "post") == "post":
        return None
    epsilon = layer_options.get("norm_epsilon", 1e-6)
    form = layer_options.get("norm_form", "variance")
    return LayerNormalization(epsilon, form, name="final_norm", dtype=dtype)
