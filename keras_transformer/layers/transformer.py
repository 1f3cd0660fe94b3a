"""The encoder: N layers of self-attention and feed-forward (3.1).

Shapes: B batch, S source length, D model dimension.
"""

from collections.abc import Callable
from typing import Any, Literal

import keras

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.attention import CrossAttention, KeysValues, SelfAttention
from keras_transformer.layers.base import Dropout, Layer, with_scores
from keras_transformer.layers.feed_forward import FeedForward, SeparableConvolutions
from keras_transformer.layers.normalization import LayerNormalization

# The residual connection and normalization around every sub-layer (3.1, 5.4).


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


# One layer of an encoder or decoder: its sub-layers, each within a residual connection (3.1).


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


# What the stacks of encoder and decoder share (3.1).


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        is_real: Tensor | None = None,
    ) -> Any:
        """Returns [B, S, D] for x [B, S, D]; the bias hides padding.

        With `return_attention_scores` the weights [B, H, S, S] are returned too. The mask `is_real`
        [B, S] hides padding from a transition by convolutions.
        """
        y = self.self_attention_residual.enter(x)
        options = dict(training=training, return_attention_scores=return_attention_scores)
        y, weights = with_scores(self.self_attention(y, bias, **options))
        x = self.self_attention_residual(x, y, training=training)
        y = self.feed_forward_residual.enter(x)
        mask = {} if is_real is None else {"is_real": is_real}
        y = self.feed_forward(y, training=training, **mask)
        x = self.feed_forward_residual(x, y, training=training)
        return (x, weights) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TransformerStack):
    """A stack of `EncoderLayer`s.

    Args: see `TransformerStack`.
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns the memory [B, S, D] that a decoder attends to.

        With `return_attention_scores` each layer's weights [B, H, S, S] are returned too.
        """
        scores = []
        options = dict(training=training, return_attention_scores=return_attention_scores)
        for layer in self.layers:
            x, weights = with_scores(layer(x, bias, **options))
            scores.append(weights)
        x = x if self.final_norm is None else self.final_norm(x)
        return (x, scores) if return_attention_scores else x


# The decoder: N layers of self-attention, cross-attention and feed-forward (3.1).
#
# `call` reads whole sequences, as in training; `step` reads one token of each hypothesis. Both
# run the same sub-layers; only attention differs.
#
# Shapes: B batch, T target length, S source length, D model dimension, W hypotheses a sentence.


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(TransformerLayer):
    """Self-attention, cross-attention, feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    has_cross_attention = True

    def call(
        self,
        x: Tensor,
        memory: Tensor | KeysValues,
        self_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory: the encoder's output [B, S, D], or its keys and values as projected by
                `cross_attention.project_memory`.
            self_bias: [..., T, T] bias of self-attention; a decoder gives `causal_bias(T)`, or
                None where a window is causal by itself.
            memory_bias: [..., T, S] bias of cross-attention, such as `padding_bias(source)`.
            training: whether dropout is on.
            return_attention_scores: whether to return the weights too.

        Returns:
            [B, T, D]; or that, the weights of self-attention [B, H, T, T], and those of
            cross-attention [B, H, T, S].
        """
        if not isinstance(memory, KeysValues):
            memory = self.cross_attention.project_memory(memory)
        options = dict(training=training, return_attention_scores=return_attention_scores)
        x, self_weights, cross_weights, _ = self._run(
            x,
            lambda y: with_scores(self.self_attention(y, self_bias, **options)),
            lambda y: with_scores(self.cross_attention(y, memory, memory_bias, **options)),
            training,
        )
        return (x, self_weights, cross_weights) if return_attention_scores else x

    def step(
        self,
        x: Tensor,
        memory: KeysValues,
        memory_bias: Tensor | None,
        kv_cache: KeysValues,
        time: Tensor,
        self_bias: Tensor,
        windows: Any = None,
    ) -> tuple[Tensor, KeysValues, Tensor, Any]:
        """Reads the new tokens x [B * W, D] of W hypotheses; arguments as in `SelfAttention.step`.

        `windows` is what a transition by convolutions remembers.

        Returns:
            [B * W, D], the KV cache with the new tokens added, the tokens' attention to the
            memory, [B, H, W, S], and the next windows.
        """
        num_hypotheses = self_bias.shape[2]
        return self._run(
            x,
            lambda y: self.self_attention.step(y, kv_cache, time, self_bias),
            lambda y: self.cross_attention.step(y, memory, memory_bias, num_hypotheses),
            False,
            None if windows is None else lambda y: self.feed_forward.step(y, windows),
        )

    def _run(
        self,
        x: Tensor,
        attend_to_self: Callable[[Tensor], tuple[Tensor, Any]],
        attend_to_memory: Callable[[Tensor], tuple[Tensor, Any]],
        training: bool | None,
        transform: Callable[[Tensor], tuple[Tensor, Any]] | None = None,
    ) -> tuple[Tensor, Any, Any, Any]:
        """Returns the new x, and what each sub-layer gives beside its output."""
        y, of_self = attend_to_self(self.self_attention_residual.enter(x))
        x = self.self_attention_residual(x, y, training=training)
        y, of_memory = attend_to_memory(self.cross_attention_residual.enter(x))
        x = self.cross_attention_residual(x, y, training=training)
        y, windows = self.feed_forward_residual.enter(x), None
        if transform is None:
            y = self.feed_forward(y, training=training)
        else:
            y, windows = transform(y)
        return self.feed_forward_residual(x, y, training=training), of_self, of_memory, windows


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(TransformerStack):
    """A stack of `DecoderLayer`s.

    Args: see `TransformerStack`.
    """

    layer_class = DecoderLayer

    def project_memory(self, memory: Tensor) -> list[KeysValues]:
        """Returns each layer's keys and values of the encoder's output [B, S, D]."""
        if not self.built:  # this comes before any `call`
            self.build(memory.shape)
        return [layer.cross_attention.project_memory(memory) for layer in self.layers]

    def call(
        self,
        x: Tensor,
        memory: Tensor | list[KeysValues],
        self_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, T, D] for x [B, T, D]; see `DecoderLayer.call`.

        The memory is the encoder's output [B, S, D], or what `project_memory` made of it. With
        `return_attention_scores` two lists of weights are returned too: each layer's of
        self-attention [B, H, T, T] and of cross-attention [B, H, T, S].
        """
        if not isinstance(memory, list | tuple):
            memory = self.project_memory(memory)
        self_scores, cross_scores = [], []
        options = dict(training=training, return_attention_scores=return_attention_scores)
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            x, *scores = with_scores(layer(x, layer_memory, self_bias, memory_bias, **options))
            self_scores.append(scores[0])
            cross_scores.append(scores[-1])
        x = x if self.final_norm is None else self.final_norm(x)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def step(
        self,
        x: Tensor,
        memory: list[KeysValues],
        memory_bias: Tensor | None,
        kv_cache: list[KeysValues],
        time: Tensor,
        self_bias: Tensor,
    ) -> tuple[Tensor, list[KeysValues], Tensor]:
        """Returns [B * W, D] for new tokens x [B * W, D], the KV caches with them added, and
        the last layer's attention to the memory [B, H, W, S]; arguments as in `SelfAttention.step`.
        """
        grown = []
        for layer, layer_memory, layer_cache in zip(self.layers, memory, kv_cache, strict=True):
            x, new, weights, _ = layer.step(
                x, layer_memory, memory_bias, layer_cache, time, self_bias
            )
            grown.append(new)
        return (x if self.final_norm is None else self.final_norm(x)), grown, weights

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> list[KeysValues]:
        """Returns each layer's KV cache before the first token, see `SelfAttention`."""
        return [layer.self_attention.empty_kv_cache(batch, num_slots) for layer in self.layers]
