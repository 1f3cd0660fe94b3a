"""Scaled dot-product attention and its multi-head layers (3.2).

Shapes: B batch, T queries, S keys, D model dimension, H heads, K key dimension of a head,
U value dimension of a head; while decoding, W hypotheses a sentence and t tokens read so far.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer
from keras_transformer.layers.dropout import Dropout

_FEW_QUERIES = 16  # a beam's hypotheses


class KeysValues(NamedTuple):
    """Projected keys and values, which queries attend to."""

    keys: Tensor  # [..., H, S, K]
    values: Tensor  # [..., H, S, U]


def attention_weights(query: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Returns softmax(query keys^T + bias) as [..., H, T, S], computed in float32.

    The query [..., H, T, K] is scaled by 1/sqrt(K) already (3.2.1, eq. 1).
    """
    scores = ops.cast(_products(query, keys), "float32")  # [..., H, T, S]
    if scores.shape[-1] == 1:  # a single key has all the weight; ops.softmax would warn
        return ops.ones_like(scores, dtype=query.dtype)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    return ops.cast(ops.softmax(scores, axis=-1), query.dtype)


def _products(query: Tensor, keys: Tensor) -> Tensor:
    """Returns query keys^T."""
    num_queries = query.shape[-2]
    if num_queries is None or num_queries > _FEW_QUERIES:
        return ops.matmul(query, ops.swapaxes(keys, -1, -2))
    # XLA copies what it transposes: a few products are cheaper than all keys, at each step.
    return ops.swapaxes(ops.matmul(keys, ops.swapaxes(query, -1, -2)), -1, -2)


def split_heads(x: Tensor, num_heads: int, length: int | Tensor | None = None) -> Tensor:
    """Turns [B, T, H * K], or rows [B * T, H * K] with T = `length`, into [B, H, T, K]."""
    if length is None:
        length = ops.shape(x)[1]
    return ops.swapaxes(ops.reshape(x, (-1, length, num_heads, x.shape[-1] // num_heads)), 1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Turns [B, H, T, U] into [B, T, H * U]."""
    batch, num_heads, length, width = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch, length, num_heads * width))


def merge_heads_to_rows(x: Tensor) -> Tensor:
    """Turns [B, H, T, U] into rows [B * T, H * U]."""
    return ops.reshape(ops.swapaxes(x, 1, 2), (-1, x.shape[1] * x.shape[3]))


def append_slots(cache: Tensor, new: Tensor, time: Tensor, num_slots: int | None) -> Tensor:
    """Appends the keys or values of the W newest tokens to the cache.

    Args:
        cache: [B, H, t * W, K]; or, of fixed capacity, [B, H, `num_slots`, K].
        new: [B, H, W, K].
        time: int32 [], t.
        num_slots: slots of the result; None where that is unknown when the graph is traced.

    Returns:
        [B, H, (t + 1) * W, K]; or the cache, its next free slots overwritten.
    """
    if num_slots is None or cache.shape[2] != num_slots:
        return ops.concatenate([cache, new], axis=2)
    return ops.slice_update(cache, (0, 0, time * new.shape[2], 0), new)


class _MultiHeadAttention(Layer):
    """The base of both attentions; arguments as in `SelfAttention`."""

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        dropout: float = 0.0,
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.use_bias = use_bias
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def _dense(self, units: int | None, name: str, input_shape: Any) -> keras.layers.Dense:
        dense = keras.layers.Dense(
            units, use_bias=self.use_bias, name=name, dtype=self.dtype_policy
        )
        dense.build(input_shape)
        return dense

    def _scale(self, query: Tensor) -> Tensor:
        return query * self.key_dim**-0.5


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(_MultiHeadAttention):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        model_dim = input_shape[-1]
        width = self.num_heads * (2 * self.key_dim + self.value_dim)
        self.projection = self._dense(width, "query_key_value", input_shape)
        self.output_projection = self._dense(
            model_dim, "output", (None, None, self.num_heads * self.value_dim)
        )

    def call(self, x: Tensor, bias: Tensor | None = None, training: bool | None = None) -> Tensor:
        """Returns [B, T, D]: every position of x [B, T, D] attends to all that bias allows.

        The bias broadcasts to [B, H, T, T].
        """
        projected = self._project(x)  # three of [B, T, H * K or U]
        query, keys, values = (split_heads(part, self.num_heads) for part in projected)
        weights = attention_weights(self._scale(query), keys, bias)  # [B, H, T, T]
        weights = self.dropout(weights, training=training)
        return self.output_projection(merge_heads(ops.matmul(weights, values)))

    def step(
        self, x: Tensor, kv_cache: KeysValues, time: Tensor, bias: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each of W hypotheses.

        Args:
            x: [B * W, D], the new tokens.
            kv_cache: keys [B, H, t * W, K] and values [B, H, t * W, U] of the tokens before them.
            time: int32 [], t, tokens of each hypothesis that were read before.
            bias: [B, 1, W, (t + 1) * W], lets each hypothesis see its ancestors and its new token.

        Returns:
            [B * W, D] and the KV cache with the new tokens added.
        """
        query, key, value = (
            split_heads(part, self.num_heads, bias.shape[2]) for part in self._project(x)
        )  # [B, H, W, K or U]
        keys = append_slots(kv_cache.keys, key, time, bias.shape[3])
        values = append_slots(kv_cache.values, value, time, bias.shape[3])
        weights = attention_weights(self._scale(query), keys, bias)  # [B, H, W, (t + 1) * W]
        merged = merge_heads_to_rows(ops.matmul(weights, values))
        return self.output_projection(merged), KeysValues(keys, values)

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> KeysValues:
        """Returns the KV cache before the first token.

        Args:
            batch: B.
            num_slots: capacity in tokens of all hypotheses together; 0 for a cache that grows.
        """
        shape = (batch, self.num_heads, num_slots)
        return KeysValues(
            ops.zeros((*shape, self.key_dim), self.compute_dtype),
            ops.zeros((*shape, self.value_dim), self.compute_dtype),
        )

    def _project(self, x: Tensor) -> list[Tensor]:
        keys_end = 2 * self.num_heads * self.key_dim
        return ops.split(self.projection(x), [keys_end // 2, keys_end], axis=-1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(_MultiHeadAttention):
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
    ) -> Tensor:
        """Returns [B, T, D]: every row of x [B, T, D] attends to the projected memory."""
        return self.attend(x, memory, bias, training)[0]

    def attend(
        self,
        x: Tensor,
        memory: KeysValues,
        bias: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns what `call` returns, and the attention [B, H, T, S]."""
        query = split_heads(self.query_projection(x), self.num_heads)
        heads, weights = self._attend(query, memory, bias, training)
        return self.output_projection(merge_heads(heads)), weights

    def step(
        self, x: Tensor, memory: KeysValues, bias: Tensor | None, num_hypotheses: int
    ) -> tuple[Tensor, Tensor]:
        """Does what `attend` does for rows x [B * W, D]: W hypotheses of each sentence, which
        share its memory.
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
