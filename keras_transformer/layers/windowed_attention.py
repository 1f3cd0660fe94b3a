"""Restricted self-attention: each position sees a window of its neighbors (Vaswani et al. 2017, 4).

`call` computes a band of the attention matrix in blocks: b queries attend to the keys of their own
block and of its edges, so time and memory grow with r T and not with T^2. While decoding, a KV
cache that grows forgets what no later token sees, and one of fixed capacity is read in part.

Shapes: B batch, H heads, T positions, N blocks, b positions of a block, c keys that a block may
see, D model dimension, K key and U value dimension of a head; while decoding, W hypotheses a
sentence.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.layers.attention import (
    KeysValues,
    SelfAttention,
    merge_heads_to_rows,
    unbranched_bias,
)
from keras_transformer.layers.masks import MASKED, attention_bias, combine_masks

_MIN_BLOCK = 16  # positions; products of smaller blocks are slow
_HEADS_AT_ONCE = 2  # the blocks overlap: fewer heads at once take less memory


@keras.saving.register_keras_serializable(package="keras_transformer")
class WindowedSelfAttention(SelfAttention):
    """Self-attention to a window of positions.

    Args:
        window: positions that a position sees, r in Table 1: its own and (r - 1) / 2 on each side,
            or, with a causal mask, its own and the (r - 1) / 2 before it.
        **kwargs: see `SelfAttention`.

    Raises:
        InputError: the window is even or less than 1.

    Example:
        >>> x = np.ones((2, 100, 16), "float32")
        >>> WindowedSelfAttention(window=9, num_heads=4, key_dim=4, value_dim=4)(x).shape
        TensorShape([2, 100, 16])
    """

    def __init__(self, *, window: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if window < 1 or window % 2 == 0:
            raise InputError(f"window must be odd and at least 1, got {window}")
        self.window = window
        self.reach = window // 2  # positions seen on a side

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        score_bias: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Attends as `SelfAttention.call` within the window.

        Blocks need masks that are the same for all queries and heads. With others, or with
        `return_attention_scores`, the whole attention matrix is computed.
        """
        bias = combine_masks(
            x, attention_mask=attention_mask, padding_mask=padding_mask, score_bias=score_bias
        )
        length = ops.shape(x)[1]
        is_same_for_all = bias is None or (len(bias.shape) == 4 and bias.shape[1:3] == (1, 1))
        if return_attention_scores or not is_same_for_all:
            band = band_bias(length, self.reach, use_causal_mask)
            return super().call(
                x,
                score_bias=band if bias is None else band + ops.cast(bias, "float32"),
                training=training,
                return_attention_scores=return_attention_scores,
            )
        projected = self._project(x, ops.arange(length)[:, None])  # [B, T, H, K or U] each
        num_parts = self.num_heads // math.gcd(self.num_heads, _HEADS_AT_ONCE)
        parts = [ops.split(each, num_parts, axis=2) for each in projected]
        heads = []
        for query, keys, values in zip(*parts, strict=True):
            blocks = in_blocks(query, keys, values, bias, self.reach, use_causal_mask)
            attended, _ = self._attend_at(
                blocks.distances, blocks.query, blocks.keys, blocks.values, blocks.bias, training
            )  # [N, B, 2, b, U]
            heads.append(out_of_blocks(attended, length))
        return self.output_projection(ops.concatenate(heads, axis=-1))

    def step(
        self,
        x: Tensor,
        kv_cache: KeysValues,
        time: Tensor | int,
        score_bias: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Reads one more token of each hypothesis, as `SelfAttention.step`.

        The bias is that of `visible_ancestors`. A cache that grows keeps the tokens that the next
        one sees.
        """
        if score_bias is None:
            score_bias = unbranched_bias(kv_cache, time, self.reach)
        num_hypotheses = score_bias.shape[2]
        query, kv_cache, has_capacity = self._read(x, kv_cache, time, score_bias)
        seen, first = kv_cache, ops.maximum(time - self.reach, 0)
        if has_capacity:
            start, size = first * num_hypotheses, (self.reach + 1) * num_hypotheses
            seen = KeysValues(*(slots_from(each, start, size) for each in kv_cache))
        else:
            size = self.reach * num_hypotheses
            kv_cache = KeysValues(*(last_slots(each, size) for each in kv_cache))
        distances = self._step_distances(score_bias, num_hypotheses, time, first)
        heads, _ = self._attend_at(distances, query, *seen, score_bias, training=False)
        return self.output_projection(merge_heads_to_rows(heads)), kv_cache


def in_band(distances: Tensor, reach: int, causal: bool) -> Tensor:
    """Returns whether a window shows keys at these distances from their queries.

    Args:
        distances: the keys' positions less the queries', of any shape.
        reach: positions that a position sees before it and, if not causal, after it.
        causal: whether positions see none after them.
    """
    return (distances >= -reach) & (distances <= (0 if causal else reach))


def band_bias(length: int | Tensor, reach: int, causal: bool) -> Tensor:
    """Returns a bias [1, 1, T, T] that lets positions see a window, see `in_band`."""
    positions = ops.arange(length)
    distances = positions[None, :] - positions[:, None]
    return attention_bias(in_band(distances, reach, causal))[None, None]


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
        reach, causal: see `in_band`.
    """
    length = ops.shape(query)[1]
    # A block as long as the edges it sees is the best trade of their copies against its products.
    size = max(reach if causal else 2 * reach, _MIN_BLOCK)
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


def visible_ancestors(
    ancestors: Tensor, kv_cache: KeysValues, time: Tensor, window: int | None
) -> Tensor:
    """Returns those of ancestors [B, W, t] that the newest tokens see.

    Args:
        ancestors: see `DecodingState`.
        kv_cache: of any layer, before the newest tokens.
        time: int32 [], tokens read before.
        window: see `WindowedSelfAttention`; None for all ancestors.
    """
    if window is None:
        return ancestors
    reach = window // 2
    capacity, num_slots = ancestors.shape[2], kv_cache.keys.shape[2]
    if None in (capacity, num_slots) or num_slots < capacity * ancestors.shape[1]:
        return ancestors[:, :, -(reach + 1) :]
    return slots_from(ancestors, ops.maximum(time - reach, 0), reach + 1)


def slots_from(x: Tensor, first: Tensor, size: int) -> Tensor:
    """Returns `size` entries of x [B, ., S, ...] from the first, or all if there are fewer."""
    if x.shape[2] <= size:
        return x
    rest = x.shape[3:]
    start = (0, 0, first, *(0 for _ in rest))
    return ops.slice(x, start, (ops.shape(x)[0], x.shape[1], size, *rest))


def last_slots(x: Tensor, size: int) -> Tensor:
    """Returns the last `size` entries of x [B, ., S, ...], or all if there are fewer."""
    return x[:, :, -size:] if size else x[:, :, :0]
