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
from keras_transformer.layers.base import with_scores
from keras_transformer.layers.transformer_layer import TransformerLayer
from keras_transformer.layers.transformer_stack import TransformerStack


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
