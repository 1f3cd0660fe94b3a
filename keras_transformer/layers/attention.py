"""Scaled dot-product attention and its multi-head layers (3.2).

Shapes: B batch, T queries, S keys, D model dimension, H heads, K key dimension of a head,
U value dimension of a head; while decoding, W hypotheses a sentence and t symbols read so far.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

Tensor = Any


class KeysValues(NamedTuple):
    """What is attended to.

    Attributes:
        keys: [..., H, S, K].
        values: [..., H, S, U].
    """

    keys: Tensor
    values: Tensor


def attention_weights(query: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Returns softmax(query keys^T + bias) as [..., H, T, S], computed in float32.

    The query [..., H, T, K] is scaled by 1/sqrt(K) already (3.2.1, eq. 1).
    """
    scores = ops.matmul(query, ops.swapaxes(keys, -1, -2))  # [..., H, T, S]
    scores = ops.cast(scores, "float32")
    if scores.shape[-1] == 1:  # a single key has all the weight; ops.softmax would warn
        return ops.ones_like(scores, dtype=query.dtype)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    return ops.cast(ops.softmax(scores, axis=-1), query.dtype)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Turns [B, T, H * K] into [B, H, T, K]."""
    batch, length, width = ops.shape(x)
    return ops.swapaxes(ops.reshape(x, (batch, length, num_heads, width // num_heads)), 1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Turns [B, H, T, U] into [B, T, H * U]."""
    batch, num_heads, length, width = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch, length, num_heads * width))


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(keras.layers.Layer):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
    """

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
        self.dropout = keras.layers.Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        model_dim = input_shape[-1]
        width = self.num_heads * (2 * self.key_dim + self.value_dim)
        self.projection = _dense(self, width, "query_key_value", input_shape)
        self.output_projection = _dense(
            self, model_dim, "output", (None, None, self.num_heads * self.value_dim)
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

    def step(self, x: Tensor, cache: KeysValues) -> tuple[Tensor, KeysValues]:
        """Reads one more symbol of each of W hypotheses.

        Args:
            x: [B, W, D], the new symbols.
            cache: keys [B, W, H, t, K] and values [B, W, H, t, U] of the symbols before them.

        Returns:
            [B, W, D] and the cache with the new symbols added, t + 1 long.
        """
        batch, beams, _ = ops.shape(x)
        query, key, value = (
            ops.reshape(part, (batch, beams, self.num_heads, 1, -1)) for part in self._project(x)
        )
        keys = ops.concatenate([cache.keys, key], axis=-2)  # [B, W, H, t + 1, K]
        values = ops.concatenate([cache.values, value], axis=-2)
        weights = attention_weights(self._scale(query), keys, None)  # [B, W, H, 1, t + 1]
        heads = ops.matmul(weights, values)  # [B, W, H, 1, U]
        merged = ops.reshape(heads, (batch, beams, self.num_heads * self.value_dim))
        return self.output_projection(merged), KeysValues(keys, values)

    def empty_cache(self, batch: int | Tensor) -> KeysValues:
        """Returns the cache of a sequence of which nothing is read yet, t = 0 and W = 1."""
        shape = (batch, 1, self.num_heads, 0)
        return KeysValues(
            ops.zeros((*shape, self.key_dim), self.compute_dtype),
            ops.zeros((*shape, self.value_dim), self.compute_dtype),
        )

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | _attention_config(self)

    def _project(self, x: Tensor) -> list[Tensor]:
        keys_end = 2 * self.num_heads * self.key_dim
        return ops.split(self.projection(x), [keys_end // 2, keys_end], axis=-1)

    def _scale(self, query: Tensor) -> Tensor:
        return query * self.key_dim**-0.5


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(keras.layers.Layer):
    """Multi-head attention of a decoder to what the encoder wrote (3.2.3).

    The memory's keys and values are projected once by `project_memory` and then serve every
    step of decoding.

    Args: as of `SelfAttention`.
    """

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
        self.dropout = keras.layers.Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Builds for queries and memory of the same width, input_shape[-1]."""
        model_dim = input_shape[-1]
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        self.query_projection = _dense(self, keys, "query", input_shape)
        self.memory_projection = _dense(self, keys + values, "key_value", input_shape)
        self.output_projection = _dense(self, model_dim, "output", (None, None, values))

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys [B, H, S, K] and values [B, H, S, U] of the memory [B, S, D]."""
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
        """Returns [B, T, D]: every row of x [B, T, D] attends to the projected memory.

        While decoding, the rows are W hypotheses of one sentence, which share its memory.
        """
        query = split_heads(self.query_projection(x), self.num_heads) * self.key_dim**-0.5
        weights = attention_weights(query, memory.keys, bias)  # [B, H, T, S]
        weights = self.dropout(weights, training=training)
        return self.output_projection(merge_heads(ops.matmul(weights, memory.values)))

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | _attention_config(self)


def _dense(
    layer: SelfAttention | CrossAttention, units: int | None, name: str, input_shape: Any
) -> keras.layers.Dense:
    dense = keras.layers.Dense(units, use_bias=layer.use_bias, name=name, dtype=layer.dtype_policy)
    dense.build(input_shape)
    return dense


def _attention_config(layer: SelfAttention | CrossAttention) -> dict[str, Any]:
    return {
        "num_heads": layer.num_heads,
        "key_dim": layer.key_dim,
        "value_dim": layer.value_dim,
        "dropout": layer.dropout.rate,
        "use_bias": layer.use_bias,
    }
