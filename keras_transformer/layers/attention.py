"""Scaled dot-product attention, and what its multi-head layers share (3.2).

Shapes: B batch, T queries, S keys, D model dimension, H heads, K key dimension of a head,
U value dimension of a head; while decoding, W hypotheses a sentence and t tokens read so far.
"""

import math
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice
from keras_transformer.layers.base import Dropout, Layer
from keras_transformer.layers.masks import MASKED, attention_bias, band_bias, in_band
from keras_transformer.layers.positions import relative_scores, relative_values, rotate

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


# Multi-head attention of a decoder to the encoder's output (3.2.3).
#
# Shapes: as in `attention.py`.


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


# Restricted self-attention: a band of the attention matrix, computed in blocks (section 4).
#
# Blocks of b queries attend to the keys of their own block and of its edges, so that time and
# memory
# grow with r T and not with T^2. While decoding, a KV cache that grows forgets what no later token
# sees, and one of fixed capacity is read in part.
#
# Shapes: B batch, H heads, T positions, N blocks, b positions of a block, c keys that a block may
# see, K key and U value dimension of a head; while decoding, W hypotheses a sentence.

_LEAST_BLOCK = 16  # positions; products of smaller blocks are slow


class Blocks(NamedTuple):
    """A sequence cut up for attention."""

    query: Tensor  # [N, B, H, b, K]
    keys: Tensor  # [N, B, H, c, K]
    values: Tensor  # [N, B, H, c, U]
    bias: Tensor  # [N, B or 1, 1, b, c]
    distances: Tensor  # int32 [b, c], from queries to keys


def in_blocks(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, reach: int, causal: bool
) -> Blocks:
    """Cuts a sequence into blocks, each with all the keys that its queries may see.

    Args:
        query, keys: [B, T, H, K].
        values: [B, T, H, U].
        bias: [B or 1, 1, 1, T], hides padding; or None.
        reach: positions that a position sees before it and, if not causal, after it.
        causal: whether positions see none after them.
    """
    length = ops.shape(query)[1]
    # A block as long as the edges it sees is the best trade of their copies against its products.
    size = max(reach if causal else 2 * reach, _LEAST_BLOCK)
    size = min(size, length) if isinstance(length, int) else ops.minimum(size, length)
    edge = min(reach, size) if isinstance(size, int) else ops.minimum(reach, size)
    if bias is None:
        bias = ops.zeros((1, 1, 1, length), "float32")
    hidden = _cut(ops.transpose(ops.cast(bias, "float32"), (0, 3, 1, 2)), size, MASKED)
    hidden = _with_edges(hidden, size, edge, causal, MASKED)  # [N, B or 1, 1, c, 1]
    keys, values = (_with_edges(_cut(each, size), size, edge, causal) for each in (keys, values))
    places = ops.arange(ops.shape(keys)[3]) - edge  # of keys: those of the block itself from 0
    distances = places[None, :] - ops.arange(size)[:, None]
    band = attention_bias(in_band(distances, reach, causal))
    bias = band + ops.swapaxes(hidden, 3, 4)
    return Blocks(_cut(query, size), keys, values, bias, distances)


def out_of_blocks(heads: Tensor, length: int | Tensor) -> Tensor:
    """Turns blocks [N, B, H, b, U] into [B, T, H * U]."""
    num_blocks, batch, num_heads, size, width = ops.shape(heads)
    rows = ops.reshape(
        ops.transpose(heads, (1, 0, 3, 2, 4)), (batch, num_blocks * size, num_heads * width)
    )
    return rows[:, :length]


def visible_ancestors(
    ancestors: Tensor, kv_cache: KeysValues, time: Tensor, window: int | None
) -> Tensor:
    """Returns those of ancestors [B, W, t] that the newest tokens see, see `SelfAttention`.

    Args:
        ancestors: see `DecodingState`.
        kv_cache: of any layer, before the newest tokens.
        time: int32 [], tokens read before.
        window: of a causal `SelfAttention`.
    """
    if window is None:
        return ancestors
    reach = window // 2
    capacity, num_slots = ancestors.shape[2], kv_cache.keys.shape[2]
    if None in (capacity, num_slots) or num_slots < capacity * ancestors.shape[1]:
        return ancestors[:, :, -(reach + 1) :]
    return slots_from(ancestors, ops.maximum(time - reach, 0), reach + 1)


def slots_from(x: Tensor, first: Tensor, size: int) -> Tensor:
    """Returns `size` entries of x [B, ., S, ...], or all where there are fewer, from the first."""
    if x.shape[2] <= size:
        return x
    rest = x.shape[3:]
    start = (0, 0, first, *(0 for _ in rest))
    return ops.slice(x, start, (ops.shape(x)[0], x.shape[1], size, *rest))


def last_slots(x: Tensor, size: int) -> Tensor:
    """Returns the last `size` entries of x [B, ., S, ...], or all where there are fewer."""
    return x[:, :, -size:] if size else x[:, :, :0]


def _cut(x: Tensor, size: int | Tensor, fill: float = 0.0) -> Tensor:
    """Turns [B, T, H, K] into blocks [N, B, H, b, K], the last one filled up."""
    batch, length, num_heads, width = ops.shape(x)
    x = ops.pad(x, ((0, 0), (0, -length % size), (0, 0), (0, 0)), constant_values=fill)
    num_blocks = (length + size - 1) // size
    blocks = ops.reshape(x, (batch, num_blocks, size, num_heads, width))
    return ops.transpose(blocks, (1, 0, 3, 2, 4))


def _with_edges(
    blocks: Tensor, size: int | Tensor, edge: int | Tensor, causal: bool, fill: float = 0.0
) -> Tensor:
    """Turns [N, B, H, b, K] into [N, B, H, c, K]: the end of the block before, each block, and if
    not causal the beginning of the block after.
    """

    def shifted(edges: Tensor, first: int, last: int) -> Tensor:
        return ops.pad(edges, ((first, last), *([(0, 0)] * 4)), constant_values=fill)

    parts = [shifted(blocks[:-1, :, :, size - edge :], 1, 0), blocks]
    if not causal:
        parts.append(shifted(blocks[1:, :, :, :edge], 0, 1))
    return ops.concatenate(parts, axis=3)


# Multi-head attention of a sequence to itself (3.2.2, 3.2.3).
#
# Shapes: as in `attention.py`.

_HEADS_AT_ONCE = 2  # of windows: not all blocks, which overlap, are in memory together


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself (3.2.2, 3.2.3).

    One matrix product projects to queries, keys and values of all heads.

    Args:
        num_heads: H.
        key_dim: width of a head's queries and keys, K = d_k.
        value_dim: width of a head's values, U = d_v.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
        window: positions that a position sees, r in Table 1: its own and (r - 1) / 2 on each side,
            or, if causal, its own and the (r - 1) / 2 before it; None for all.
        causal: whether a window ends at the position itself. Without a window the bias says so.
        positions: how attention knows of distances: "relative" (Shaw et al. 2018), "rotary" (Su et
            al. 2021), or None where the embeddings have positions.
        max_relative_distance: largest distance that "relative" tells from smaller ones.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        window: int | None = None,
        causal: bool = False,
        positions: Literal["relative", "rotary"] | None = None,
        max_relative_distance: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, **kwargs)
        if positions is not None:
            check_choice("positions", positions, ("relative", "rotary"))
        if window is not None and (window < 1 or window % 2 == 0):
            raise InputError(f"window must be odd and at least 1, got {window}")
        self.window = window
        self.reach = None if window is None else window // 2  # positions seen on a side
        self.causal = causal
        self.positions = positions
        self.max_relative_distance = max_relative_distance

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        model_dim = input_shape[-1]
        width = self.num_heads * (2 * self.key_dim + self.value_dim)
        self.projection = self._dense(width, "query_key_value", input_shape)
        self.output_projection = self._dense(
            model_dim, "output", (None, None, self.num_heads * self.value_dim)
        )
        if self.positions == "relative":
            distances = 2 * self.max_relative_distance + 1
            self.relative_keys, self.relative_values = (
                self.add_weight(name=f"relative_{name}", shape=(distances, dim))
                for name, dim in (("keys", self.key_dim), ("values", self.value_dim))
            )

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns [B, T, D]: every position of x [B, T, D] attends to all that bias allows.

        The bias broadcasts to [B, H, T, T]; with a window, which hides the rest by itself, it is
        [B or 1, 1, 1, T] or None. With `return_attention_scores` (Keras's name) the weights
        [B, H, T, T] are returned too, which then are computed as a whole.
        """
        length = ops.shape(x)[1]
        positions = ops.arange(length)
        projected = self._project(x, positions[:, None])  # [B, T, H, K or U] each
        if self.reach is not None and not return_attention_scores:
            heads = self._attend_in_blocks(projected, bias, self.reach, training)
            return self.output_projection(heads)
        query, keys, values = (ops.swapaxes(each, 1, 2) for each in projected)
        if self.reach is not None:
            band = band_bias(length, self.reach, self.causal)
            bias = band if bias is None else band + ops.cast(bias, "float32")
        distances = positions[None, :] - positions[:, None]
        heads, weights = self._attend(query, keys, values, bias, distances, training)
        output = self.output_projection(merge_heads(heads))
        return (output, weights) if return_attention_scores else output

    def step(
        self, x: Tensor, kv_cache: KeysValues, time: Tensor, bias: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each of W hypotheses.

        Args:
            x: [B * W, D], the new tokens.
            kv_cache: keys [B, H, t * W, K] and values [B, H, t * W, U] of the tokens before them;
                a window leaves those that the new tokens see, unless there is a fixed capacity.
            time: int32 [], tokens of each hypothesis that were read before.
            bias: [B, 1, W, (t + 1) * W], lets each hypothesis see its ancestors and its new token;
                with a window those of `visible_ancestors`.

        Returns:
            [B * W, D] and the KV cache with the new tokens added.
        """
        num_hypotheses, num_slots = bias.shape[2:]
        projected = self._project(x, time, num_hypotheses)
        query, key, value = (ops.swapaxes(each, 1, 2) for each in projected)  # [B, H, W, K or U]
        has_capacity = num_slots is not None and (kv_cache.keys.shape[2] or 0) >= num_slots
        grown = KeysValues(
            append_slots(kv_cache.keys, key, time, has_capacity),
            append_slots(kv_cache.values, value, time, has_capacity),
        )
        seen, first = grown, 0
        if self.reach is not None:
            first = ops.maximum(time - self.reach, 0)
            if has_capacity:
                start, size = first * num_hypotheses, (self.reach + 1) * num_hypotheses
                seen = KeysValues(*(slots_from(each, start, size) for each in grown))
            else:
                size = self.reach * num_hypotheses
                grown = KeysValues(*(last_slots(each, size) for each in grown))
        slots = ops.arange(ops.shape(bias)[3])
        distances = first + slots // num_hypotheses - time  # all have the same length
        heads, _ = self._attend(query, *seen, bias, distances)  # [B, H, W, U]
        return self.output_projection(merge_heads_to_rows(heads)), grown

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

    def _project(self, x: Tensor, positions: Tensor, length: int | None = None) -> list[Tensor]:
        """Returns query, keys and values [B, T, H, K or U]; rows x [B * T, D] have T = `length`."""
        keys_end = 2 * self.num_heads * self.key_dim
        parts = ops.split(self.projection(x), [keys_end // 2, keys_end], axis=-1)
        rows = (-1, ops.shape(x)[1] if length is None else length, self.num_heads)
        query, keys, values = (
            ops.reshape(part, (*rows, part.shape[-1] // self.num_heads)) for part in parts
        )
        if self.positions == "rotary":
            query, keys = rotate(query, positions), rotate(keys, positions)
        return [query, keys, values]

    def _attend_in_blocks(
        self, projected: list[Tensor], bias: Tensor | None, reach: int, training: bool | None
    ) -> Tensor:
        """Returns the heads [B, T, H * U] of query, keys and values [B, T, H, K or U]."""
        num_parts = self.num_heads // math.gcd(self.num_heads, _HEADS_AT_ONCE)
        parts = [ops.split(each, num_parts, axis=2) for each in projected]
        heads = []
        for query, keys, values in zip(*parts, strict=True):
            blocks = in_blocks(query, keys, values, bias, reach, self.causal)
            attended, _ = self._attend(*blocks, training)  # [N, B, 2, b, U]
            heads.append(out_of_blocks(attended, ops.shape(projected[0])[1]))
        return ops.concatenate(heads, axis=-1)

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        distances: Tensor,
        training: bool | None = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns the heads [..., T, U] and the attention [..., T, S].

        The distances [T, S] or [S] are those from queries to keys.
        """
        query = self._scale(query)
        is_relative = self.positions == "relative"
        if is_relative:
            scores = relative_scores(query, self.relative_keys, distances)
            bias = scores if bias is None else scores + ops.cast(bias, "float32")
        weights = attention_weights(query, keys, bias)
        dropped = self.dropout(weights, training=training)
        heads = ops.matmul(dropped, values)
        if is_relative:
            heads = heads + relative_values(dropped, self.relative_values, distances)
        return heads, weights
