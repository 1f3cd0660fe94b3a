"""Restricted self-attention: a band of the attention matrix, computed in blocks (section 4).

Blocks of b queries attend to the keys of their own block and of its edges, so that time and memory
grow with r T and not with T^2. While decoding, a KV cache that grows forgets what no later token
sees, and one of fixed capacity is read in part.

Shapes: B batch, H heads, T positions, N blocks, b positions of a block, c keys that a block may
see, K key and U value dimension of a head; while decoding, W hypotheses a sentence.
"""

from typing import NamedTuple

from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.masks import MASKED, attention_bias, in_band

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
