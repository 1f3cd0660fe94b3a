"""Self-attention restricted to a window of neighbors (Vaswani et al. 2017, section 4).

`call` computes a band of the attention matrix in blocks: b queries attend to the keys of their own
block and of its edges, so time and memory grow with r T and not with T^2. While decoding, a KV
cache that grows forgets what no later token sees, and one of fixed capacity is read in part.

Shapes: B batch, T positions, D model dimension, H heads, K and U key and value dimension of a head,
N blocks, b positions of a block, c keys that a block may see; while decoding, W hypotheses a
sentence and S slots.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.layers.attention import SelfAttention
from keras_transformer.layers.kv_cache import KVCache
from keras_transformer.layers.masks import MASKED, hide, mask_to_bias

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
    """

    def __init__(self, *, window: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if window < 1 or window % 2 == 0:
            raise InputError(f"window must be odd and at least 1, got {window}")
        self.window = window
        self.reach = window // 2  # positions seen on a side

    def _read(
        self,
        x: Tensor,
        bias: Tensor | None,
        use_causal_mask: bool,
        training: bool | None,
        return_attention_scores: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the heads [B, T, H * U]; and the weights [B, H, T, T], if they are asked for.

        Blocks need a bias that is the same for all queries and heads. With another one, or to
        return the weights, the whole attention matrix is computed.
        """
        length = ops.shape(x)[1]
        is_same_for_all = bias is None or (len(bias.shape) == 4 and bias.shape[1:3] == (1, 1))
        if return_attention_scores or not is_same_for_all:
            bias = hide(bias, band_mask(length, self.reach, use_causal_mask))
            return super()._read(x, bias, False, training, return_attention_scores)
        projected = self._project(x)  # [B, H, T, K or U] each
        num_parts = self.num_heads // math.gcd(self.num_heads, _HEADS_AT_ONCE)
        parts = [ops.split(x, num_parts, axis=1) for x in projected]
        heads = []
        for query, keys, values in zip(*parts, strict=True):
            blocks = in_blocks(query, keys, values, bias, self.reach, use_causal_mask)
            attended, _ = self._attend(
                blocks.query,
                blocks.keys,
                blocks.values,
                blocks.bias,
                training,
                self._if_relative(blocks.distances),
            )  # [N, B, heads of a part, b, U]
            heads.append(out_of_blocks(attended, length))
        return ops.concatenate(heads, axis=-1), None

    def _visible(
        self, kv_cache: KVCache, time: Tensor | int, num_hypotheses: int
    ) -> tuple[Tensor, Tensor, Any, KVCache]:
        first, size = ops.maximum(time - self.reach, 0), (self.reach + 1) * num_hypotheses
        keys, values = (
            slots.seen(slots.entries, first * num_hypotheses, size) for slots in kv_cache
        )
        remaining = (slots.forget(self.reach * num_hypotheses) for slots in kv_cache)
        return keys, values, first, KVCache(*remaining)


def in_band(distances: Tensor, reach: int, causal: bool) -> Tensor:
    """Whether a window shows keys at these distances from their queries.

    Args:
        distances: the keys' positions less the queries', of any shape.
        reach: positions that a position sees before it and, if not causal, after it.
        causal: whether positions see none after them.
    """
    return (distances >= -reach) & (distances <= (0 if causal else reach))


def band_mask(length: int | Tensor, reach: int, causal: bool) -> Tensor:
    """Returns a bool mask [1, 1, T, T] that lets positions see a window, see `in_band`."""
    positions = ops.arange(length)
    distances = positions[None, :] - positions[:, None]
    return ops.expand_dims(in_band(distances, reach, causal), (0, 1))


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
        query, keys: [B, H, T, K].
        values: [B, H, T, U].
        bias: [B or 1, 1, 1, T or 1], hides padding; or None.
        reach, causal: see `in_band`.
    """
    length = ops.shape(query)[2]
    # A block as long as the edges it sees is the best trade of their copies against its products.
    size = max(reach if causal else 2 * reach, _MIN_BLOCK)
    size = min(size, length) if isinstance(length, int) else ops.minimum(size, length)
    edge = min(reach, size) if isinstance(size, int) else ops.minimum(reach, size)
    if bias is None:
        bias = ops.zeros((1, 1, 1, 1), "float32")
    bias = ops.broadcast_to(bias, (ops.shape(bias)[0], 1, 1, length))
    hidden = _cut(ops.swapaxes(ops.cast(bias, "float32"), 2, 3), size, MASKED)
    hidden = _with_edges(hidden, size, edge, causal, MASKED)  # [N, B or 1, 1, c, 1]
    keys, values = (_with_edges(_cut(x, size), size, edge, causal) for x in (keys, values))
    positions = ops.arange(ops.shape(keys)[3]) - edge  # of keys: those of the block itself from 0
    distances = positions[None, :] - ops.arange(size)[:, None]
    band = mask_to_bias(in_band(distances, reach, causal))
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
    """Turns [B, H, T, K] into blocks [N, B, H, b, K], the last one filled up."""
    batch, num_heads, length, width = ops.shape(x)
    num_blocks = (length + size - 1) // size
    missing = num_blocks * size - length
    x = ops.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0)), constant_values=fill)
    blocks = ops.reshape(x, (batch, num_heads, num_blocks, size, width))
    return ops.transpose(blocks, (2, 0, 1, 3, 4))


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
