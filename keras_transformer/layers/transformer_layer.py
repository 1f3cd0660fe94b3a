"""One layer of an encoder or decoder: its sub-layers, each within a residual connection (3.1)."""

from typing import Any, Literal

from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer
from keras_transformer.layers.cross_attention import CrossAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.self_attention import SelfAttention
from keras_transformer.layers.separable_convolution import SeparableConvolutions


class TransformerLayer(Layer):
    """The sub-layers of `EncoderLayer` and, with cross-attention, of `DecoderLayer`.

    Args:
        num_heads, key_dim, value_dim, attention_dropout, attention_bias: see `SelfAttention`.
        attention_window, positions, max_relative_distance: of self-attention, see there.
        feed_forward_dim, feed_forward_dropout, activation: see `FeedForward`.
        transition: the last sub-layer, "feed_forward" or "separable_convolution".
        dropout, norm_position, norm_form, norm_epsilon: see `Residual`.
    """

    has_cross_attention = False

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        feed_forward_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        activation: str = "relu",
        attention_bias: bool = False,
        attention_window: int | None = None,
        positions: Literal["relative", "rotary"] | None = None,
        max_relative_distance: int = 16,
        transition: Literal["feed_forward", "separable_convolution"] = "feed_forward",
        norm_position: Literal["post", "pre"] = "post",
        norm_form: Literal["variance", "sigma"] = "variance",
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        residual = dict(
            norm_position=norm_position,
            norm_form=norm_form,
            norm_epsilon=norm_epsilon,
            dropout=dropout,
            dtype=dtype,
        )
        attention = dict(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            dropout=attention_dropout,
            use_bias=attention_bias,
            dtype=dtype,
        )
        self.self_attention = SelfAttention(
            **attention,
            window=attention_window,
            causal=self.has_cross_attention,
            positions=positions,
            max_relative_distance=max_relative_distance,
            name="self_attention",
        )
        self.self_attention_residual = Residual(**residual, name="self_attention_residual")
        if self.has_cross_attention:
            self.cross_attention = CrossAttention(**attention, name="cross_attention")
            self.cross_attention_residual = Residual(**residual, name="cross_attention_residual")
        check_choice("transition", transition, ("feed_forward", "separable_convolution"))
        transform = (feed_forward_dim, feed_forward_dropout, activation)
        self.feed_forward: Any
        if transition == "feed_forward":
            self.feed_forward = FeedForward(*transform, name="feed_forward", dtype=dtype)
        else:
            self.feed_forward = SeparableConvolutions(
                *transform, is_causal=self.has_cross_attention, name="feed_forward", dtype=dtype
            )
        self.feed_forward_residual = Residual(**residual, name="feed_forward_residual")

    def build(self, input_shape: tuple[int | None, ...], *other_shapes: Any) -> None:
        for name in ("self_attention", "cross_attention", "feed_forward"):
            for layer in (getattr(self, name, None), getattr(self, f"{name}_residual", None)):
                if layer is not None and not layer.built:  # by `project_memory`
                    layer.build(input_shape)
