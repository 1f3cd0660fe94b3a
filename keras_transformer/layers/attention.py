"""Scaled dot-product attention, and what its multi-head layers share (3.2).

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
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    if num_queries is None or num_queries > _FEW_QUERIES or num_keys is None:
        return ops.matmul(query, ops.swapaxes(keys, -1, -2))
    # XLA, which knows all shapes, copies what it transposes: a few products are cheaper than all
    # keys, at each step.
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


def append_slots(cache: Tensor, new: Tensor, time: Tensor, has_capacity: bool) -> Tensor:
    """Appends the keys or values of the W newest tokens to the cache.

    Args:
        cache: [B, H, t * W, K]; or, of fixed capacity, [B, H, capacity * W, K].
        new: [B, H, W, K].
        time: int32 [], t.
        has_capacity: whether the cache is of fixed capacity.

    Returns:
        [B, H, (t + 1) * W, K]; or the cache, its next free slots overwritten.
    """
    if not has_capacity:
        return ops.concatenate([cache, new], axis=2)
    return ops.slice_update(cache, (0, 0, time * new.shape[2], 0), new)


class MultiHeadAttention(Layer):
    """The base of self-attention and cross-attention; arguments as in `SelfAttention`."""

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

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        return super()._dense(units, name, input_shape, use_bias=self.use_bias, **options)

    def _scale(self, query: Tensor) -> Tensor:
        return query * self.key_dim**-0.5
