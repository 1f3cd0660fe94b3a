"""KV caches: keys and values of the tokens read so far, and which of them a hypothesis sees.

A search keeps W hypotheses of each sentence; each step drops some and branches others. They share
one cache that never moves: slot i * W + w holds the keys and values of token i that row w read,
whoever goes on from it. A hypothesis knows its ancestors, the row of each of its tokens, and
`slot_bias` shows it their slots alone. Here W = 2; after two tokens the hypothesis D E is dropped,
and A B goes on in both rows:

    token              0      1      2
    read by row 0      A      B      C      now A B C, its ancestors 0 0 0
    read by row 1      D      E      F      now A B F, its ancestors 0 0 1
    slots of a head   A D    B E    C F
    shown to row 0    x .    x .    x .
    shown to row 1    x .    x .    . x

Gathering the rows of each branch instead would copy the whole cache in every step.

`empty_slots` decides whether a cache grows with each token or has room for a fixed number of them,
as XLA needs it. Its type says so from then on: `GrowingSlots` or `FixedSlots`.

Shapes: B batch, H heads, S slots, W hypotheses of a sentence, t tokens read so far, the
newest included.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.layers.masks import mask_to_bias


class KeysValues(NamedTuple):
    """Projected keys and values of a memory."""

    keys: Tensor  # [..., H, S, K]
    values: Tensor  # [..., H, S, U]


class GrowingSlots(NamedTuple):
    """Slots of the tokens read so far, or of those that a later token can still see."""

    entries: Tensor  # [B, H, t * W, any]

    def append(self, new: Tensor, time: Tensor | int) -> "GrowingSlots":
        """Returns the slots with the newest tokens' entries [B, H, W, any] added."""
        return GrowingSlots(ops.concatenate([self.entries, new], axis=2))

    def seen(self, x: Tensor, first: Tensor | int, count: int) -> Tensor:
        """Returns the last `count` entries of x [B, ., S, ...] on axis 2, slots or tokens, or all.

        `first`, the number of the first of them, is what `FixedSlots` needs.
        """
        return x[:, :, -count:] if count else x[:, :, :0]

    def forget(self, count: int) -> "GrowingSlots":
        """Returns the newest slots, which later tokens can still see."""
        return GrowingSlots(self.seen(self.entries, 0, count))


class FixedSlots(NamedTuple):
    """Slots for a fixed number of tokens; those after the tokens read so far are free."""

    entries: Tensor  # [B, H, capacity * W, any]

    def append(self, new: Tensor, time: Tensor | int) -> "FixedSlots":
        """Returns the slots with the newest tokens' entries [B, H, W, any] in the next ones."""
        return FixedSlots(ops.slice_update(self.entries, (0, 0, time * new.shape[2], 0), new))

    def seen(self, x: Tensor, first: Tensor | int, count: int) -> Tensor:
        """Returns the entries within a window of x [B, ., S, ...], see `GrowingSlots.seen`."""
        if x.shape[2] <= count:
            return x
        rest = x.shape[3:]
        start = (0, 0, first, *(0 for _ in rest))
        return ops.slice(x, start, (ops.shape(x)[0], x.shape[1], count, *rest))

    def forget(self, count: int) -> "FixedSlots":
        """Returns all slots: their number never changes."""
        return self


Slots = GrowingSlots | FixedSlots


class KVCache(NamedTuple):
    """Keys and values of the tokens read so far, of one layer."""

    keys: Slots
    values: Slots


def empty_slots(
    batch: int | Tensor, num_heads: int, num_slots: int, width: int, dtype: Any
) -> Slots:
    """Returns the slots [B, H, S, width] before the first token.

    `num_slots` is the capacity in tokens of all hypotheses together, S; 0 for slots that grow.
    """
    entries = ops.zeros((batch, num_heads, num_slots, width), dtype)
    return FixedSlots(entries) if num_slots else GrowingSlots(entries)


def slot_ancestors(ids: Tensor, state: DecodingState, slots: Slots) -> Tensor:
    """Returns the `ancestors` [B, W, t] of a state; outside a search, hypotheses never branch.

    `ids` [B, W] are the newest tokens, `state` is the model's before them, and `slots` are any of
    its KV cache: all have the same tokens.
    """
    if state.ancestors is not None:
        return state.ancestors
    num_hypotheses = ids.shape[1]
    num_tokens = ops.shape(slots.entries)[2] // num_hypotheses
    places = ops.arange(num_hypotheses, dtype="int32")[:, None]
    if isinstance(slots, FixedSlots):
        places = ops.where(ops.arange(num_tokens) <= state.time, places, -1)
    else:
        num_tokens = num_tokens + 1
    return ops.broadcast_to(places, (ops.shape(ids)[0], num_hypotheses, num_tokens))


def slot_bias(ids: Tensor, state: DecodingState, slots: Slots, window: int | None = None) -> Tensor:
    """Returns a bias [B, 1, W, S] that shows hypotheses the slots of their own ancestors.

    Args:
        ids, state, slots: see `slot_ancestors`.
        window: of `WindowedSelfAttention`, which sees the newest tokens alone; None for all.
    """
    ancestors = slot_ancestors(ids, state, slots)
    if window is not None:
        reach = window // 2
        first = ops.maximum(state.time - reach, 0)
        ancestors = slots.seen(ancestors, first, reach + 1)
    return mask_to_bias(ops.expand_dims(ancestor_mask(ancestors, ids.shape[1]), 1))


def ancestor_mask(ancestors: Tensor, num_hypotheses: int) -> Tensor:
    """Returns a mask that is True at the slots of a hypothesis's ancestors.

    Args:
        ancestors: int32 [B, W, t], index of its ancestor at each step, see `DecodingState`.
        num_hypotheses: W.

    Returns:
        bool [B, W, t * W]: the slots of all hypotheses of the first step, then of the second ...
    """
    indices = ops.arange(num_hypotheses, dtype="int32")
    mask = ops.equal(ops.expand_dims(ancestors, -1), indices)  # [B, W, t, W]
    slots = ops.shape(ancestors)[2] * num_hypotheses
    return ops.reshape(mask, (-1, num_hypotheses, slots))
