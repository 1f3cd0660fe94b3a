"""What the stacks of encoder and decoder share (3.1)."""

from typing import Any

from keras_transformer.layers.base import Layer
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.transformer_layer import TransformerLayer


class TransformerStack(Layer):
    """The base of `Encoder` and `Decoder`: N layers, and a last norm where norms stand before the
    sub-layers.

    Args:
        num_layers: N.
        **layer_options: see `TransformerLayer`.
    """

    layer_class: type[TransformerLayer]

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
        self.layers: list[Any] = [
            self.layer_class(**layer_options, name=f"layer_{index}", dtype=self.dtype_policy)
            for index in range(num_layers)
        ]
        self.final_norm = final_norm(layer_options, self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...], *other_shapes: Any) -> None:
        for layer in self.layers:
            layer.build(input_shape)
        if self.final_norm is not None:
            self.final_norm.build(input_shape)


def final_norm(layer_options: dict[str, Any], dtype: Any) -> LayerNormalization | None:
    """Returns the norm that ends a pre-norm stack, or None for a post-norm one."""
    if layer_options.get("norm_position", "post") == "post":
        return None
    epsilon = layer_options.get("norm_epsilon", 1e-6)
    form = layer_options.get("norm_form", "variance")
    return LayerNormalization(epsilon, form, name="final_norm", dtype=dtype)
