"""Multi-head attention of a decoder to the encoder's output (3.2.3).

Shapes: as in `attention.py`.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.attention import (
    KeysValues,
    MultiHeadAttention,
    attention_weights,
    merge_heads,
    merge_heads_to_rows,
    split_heads,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention of a decoder to the encoder's output, its memory (3.2.3).

    `project_memory` makes the memory's keys and values once, for all steps of decoding.

    Args: as in `SelfAttention`.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Builds for queries and memory of the same width, input_shape[-1]."""
        model_dim = input_shape[-1]
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        self.query_projection = self._dense(keys, "query", input_shape)
        self.memory_projection = self._dense(keys + values, "key_value", input_shape)
        self.output_projection = self._dense(model_dim, "output", (None, None, values))

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys [B, H, S, K] and values [B, H, S, U] of the memory [B, S, D]."""
        if not self.built:  # this comes before any `call`
            self.build(memory.shape)
        projected = self.memory_projection(memory)
        keys, values = ops.split(projected, [self.num_heads * self.key_dim], axis=-1)
        return KeysValues(split_heads(keys, self.num_heads), split_heads(values, self.num_heads))

    def call(
        self,
        x: Tensor,
        memory: KeysValues,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, T, D] for rows x [B, T, D], and their weights [B, H, T, S] where asked to."""
        query = split_heads(self.query_projection(x), self.num_heads)
        heads, weights = self._attend(query, memory, bias, training)
        output = self.output_projection(merge_heads(heads))
        return (output, weights) if return_attention_scores else output

    def step(
        self, x: Tensor, memory: KeysValues, bias: Tensor | None, num_hypotheses: int
    ) -> tuple[Tensor, Tensor]:
        """Returns [B * W, D] and the weights [B, H, W, S] for rows x [B * W, D]: W hypotheses of
        each sentence, which share its memory.
        """
        query = split_heads(self.query_projection(x), self.num_heads, num_hypotheses)
        heads, weights = self._attend(query, memory, bias, training=False)
        return self.output_projection(merge_heads_to_rows(heads)), weights

    def _attend(
        self, query: Tensor, memory: KeysValues, bias: Tensor | None, training: bool | None
    ) -> tuple[Tensor, Tensor]:
        weights = attention_weights(self._scale(query), memory.keys, bias)  # [B, H, T, S]
        heads = ops.matmul(self.dropout(weights, training=training), memory.values)
        return heads, weights  # [B, H, T, U], [B, H, T, S]
