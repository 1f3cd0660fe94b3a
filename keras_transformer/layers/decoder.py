"""The decoder: N layers of self-attention, cross-attention and feed-forward (3.1).

`call` reads whole sequences, as in training; `step` reads one token of each hypothesis. Both
run the same sub-layers; only attention differs.

Shapes: B batch, T target length, S source length, D model dimension, W hypotheses a sentence.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.decoding import Tensor
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.base import Layer
from keras_transformer.layers.encoder import final_norm
from keras_transformer.layers.transformer_layer import TransformerLayer


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
    ) -> Tensor:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory: the encoder's output [B, S, D], or its keys and values as projected by
                `cross_attention.project_memory`.
            self_bias: [..., T, T] bias of self-attention; a decoder gives `causal_bias(T)`.
            memory_bias: [..., T, S] bias of cross-attention, such as `padding_bias(source)`.
            training: whether dropout is on.

        Returns:
            [B, T, D].
        """
        if not isinstance(memory, KeysValues):
            memory = self.cross_attention.project_memory(memory)
        return self._run(
            x,
            lambda y: (self.self_attention(y, self_bias, training=training), None),
            lambda y: (self.cross_attention(y, memory, memory_bias, training=training), None),
            training,
        )[0]

    def step(
        self,
        x: Tensor,
        memory: KeysValues,
        memory_bias: Tensor | None,
        kv_cache: KeysValues,
        time: Tensor,
        self_bias: Tensor,
    ) -> tuple[Tensor, KeysValues, Tensor]:
        """Reads the new tokens x [B * W, D] of W hypotheses; arguments as in `SelfAttention.step`.

        Returns:
            [B * W, D], the KV cache with the new tokens added, and the tokens' attention to the
            memory, [B, H, W, S].
        """
        num_hypotheses = self_bias.shape[2]
        x, grown, weights = self._run(
            x,
            lambda y: self.self_attention.step(y, kv_cache, time, self_bias),
            lambda y: self.cross_attention.step(y, memory, memory_bias, num_hypotheses),
            False,
        )
        return x, grown, weights

    def attention(
        self, x: Tensor, memory: KeysValues, self_bias: Tensor | None, memory_bias: Tensor | None
    ) -> Tensor:
        """Returns the attention to the memory, [B, H, T, S]; arguments as in `call`."""
        return self._run(
            x,
            lambda y: (self.self_attention(y, self_bias), None),
            lambda y: self.cross_attention.attend(y, memory, memory_bias),
            False,
        )[2]

    def _run(
        self,
        x: Tensor,
        attend_to_self: Callable[[Tensor], tuple[Tensor, Any]],
        attend_to_memory: Callable[[Tensor], tuple[Tensor, Any]],
        training: bool | None,
    ) -> tuple[Tensor, Any, Any]:
        """Returns the new x, the KV cache of self-attention and the weights of cross-attention."""
        y, grown = attend_to_self(self.self_attention_residual.enter(x))
        x = self.self_attention_residual(x, y, training=training)
        y, weights = attend_to_memory(self.cross_attention_residual.enter(x))
        x = self.cross_attention_residual(x, y, training=training)
        y = self.feed_forward(self.feed_forward_residual.enter(x), training=training)
        return self.feed_forward_residual(x, y, training=training), grown, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Layer):
    """A stack of `DecoderLayer`s, with a last norm where norms stand before the sub-layers.

    Args:
        num_layers: N.
        **layer_options: see `DecoderLayer`.
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
            DecoderLayer(**layer_options, name=f"layer_{index}", dtype=self.dtype_policy)
            for index in range(num_layers)
        ]
        self.final_norm = final_norm(layer_options, self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...], *other_shapes: Any) -> None:
        for layer in self.layers:
            layer.build(input_shape)
        if self.final_norm is not None:
            self.final_norm.build(input_shape)

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
    ) -> Tensor:
        """Returns [B, T, D] for x [B, T, D]; see `DecoderLayer.call`.

        The memory is the encoder's output [B, S, D], or what `project_memory` made of it.
        """
        if not isinstance(memory, list | tuple):
            memory = self.project_memory(memory)
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            x = layer(x, layer_memory, self_bias, memory_bias, training=training)
        return x if self.final_norm is None else self.final_norm(x)

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
            x, new, weights = layer.step(x, layer_memory, memory_bias, layer_cache, time, self_bias)
            grown.append(new)
        return (x if self.final_norm is None else self.final_norm(x)), grown, weights

    def attention(
        self,
        x: Tensor,
        memory: list[KeysValues],
        self_bias: Tensor | None,
        memory_bias: Tensor | None,
    ) -> Tensor:
        """Returns the last layer's attention to the memory [B, H, T, S]; arguments as in `call`."""
        *earlier, last = zip(self.layers, memory, strict=True)
        for layer, layer_memory in earlier:
            x = layer(x, layer_memory, self_bias, memory_bias)
        layer, layer_memory = last
        return layer.attention(x, layer_memory, self_bias, memory_bias)

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> list[KeysValues]:
        """Returns each layer's KV cache before the first token, see `SelfAttention`."""
        return [layer.self_attention.empty_kv_cache(batch, num_slots) for layer in self.layers]
