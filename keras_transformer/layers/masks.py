"""Masks of tokens and of attention.

A mask is boolean, True at a real token or where a query may attend. Attention adds masks to its
scores as a bias: 0 where True, a large negative number where False. A stack of layers makes the
bias once for all of them.

Shapes: B batch, S source length, T target length, H heads; while decoding, W hypotheses a sentence
and t tokens of each.
"""

from typing import Any

import keras
from keras import ops, tree

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.errors import InputError

# exp() of a score this far below the others is exactly 0, and the value is finite in float16 too:
# a row of padding alone gives finite weights, not NaN. bfloat16 represents it exactly.
MASKED = -29_952.0  # -117 * 2^8


def padding_mask(ids: Tensor) -> Tensor:
    """Returns a bool mask [B, S], True at the real tokens of ids [B, S]."""
    return ops.not_equal(ids, PAD_ID)


def predicting_mask(ids: Tensor) -> Tensor:
    """Returns a bool mask of ids [...], True where a decoder predicts a token: not after EOS."""
    return padding_mask(ids) & ops.not_equal(ids, EOS_ID)


def attention_bias(mask: Tensor) -> Tensor:
    """Returns the bias that hides all keys where the mask is False."""
    return ops.where(mask, 0.0, MASKED)


def padding_bias(ids: Tensor) -> Tensor:
    """Returns a bias [B, 1, 1, S] that hides the padding of ids [B, S] from every query."""
    return attention_bias(padding_mask(ids)[:, None, None, :])


def causal_mask(length: int | Tensor) -> Tensor:
    """Returns a bool mask [T, T]: position t sees positions up to t (3.2.3)."""
    positions = ops.arange(length)
    return positions[None, :] <= positions[:, None]


def combine_masks(
    keys: Tensor,
    *,
    attention_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    use_causal_mask: bool = False,
    score_bias: Tensor | None = None,
) -> Tensor | None:
    """Returns one bias, which broadcasts to [B, H, T, S], of all that hides keys; None of nothing.

    Args:
        keys: [B, S, D], the sequence attended to. Without `padding_mask` and `score_bias` its Keras
            mask (of `Embedding(mask_zero=True)` or `Masking`) hides padding.
        attention_mask: bool, True where a query may attend: [T, S], [B, T, S] or [B, H, T, S], any
            dimension may be 1.
        padding_mask: bool [B, S], True at real tokens.
        use_causal_mask: whether to hide later positions.
        score_bias: float bias to add to all that. Layers in half precision get it rounded to that.

    Raises:
        InputError: `score_bias` is a mask, or a mask is a float bias.
    """
    if score_bias is not None and not _is_float(score_bias):
        raise InputError(
            f"score_bias is added to the scores and must be float, got {score_bias.dtype}; pass a "
            "boolean mask as attention_mask or padding_mask"
        )
    if score_bias is not None and keras.backend.standardize_dtype(score_bias.dtype) == "float16":
        score_bias = ops.maximum(score_bias, MASKED)  # -1e9 is -inf there, and a row of it NaN
    if padding_mask is None and score_bias is None:
        padding_mask = getattr(keys, "_keras_mask", None)
    masks = []
    if padding_mask is not None:
        masks.append(_as_bool(padding_mask, "padding_mask")[:, None, None, :])
    if attention_mask is not None:
        mask = _as_bool(attention_mask, "attention_mask")
        masks.append(mask[:, None] if len(mask.shape) == 3 else mask)
    if use_causal_mask:
        masks.append(causal_mask(ops.shape(keys)[1])[None, None])
    if not masks:
        return score_bias
    bias = attention_bias(masks[0] if len(masks) == 1 else _all(masks))
    return bias if score_bias is None else bias + ops.cast(score_bias, "float32")


def _is_float(x: Tensor) -> bool:
    return "float" in keras.backend.standardize_dtype(x.dtype)


def _as_bool(mask: Tensor, name: str) -> Tensor:
    if _is_float(mask):
        raise InputError(
            f"{name} must be boolean, True where a query may attend, got {mask.dtype}; cast 0 and "
            "1 to bool; attention layers take a bias of the scores as score_bias"
        )
    return ops.cast(mask, "bool")


def _all(masks: list[Any]) -> Tensor:
    first, *others = masks
    for mask in others:
        first = ops.logical_and(first, mask)
    return first


def ancestors_of(ids: Tensor, state: DecodingState) -> tuple[Tensor, Tensor]:
    """Returns `time` and `ancestors` of a state, also if hypotheses never branch.

    Args:
        ids: [B, W], the newest tokens.
        state: has `time` and `ancestors`, or a `kv_cache` that grows.
    """
    time: Tensor = state.time
    if state.ancestors is not None:
        return time, state.ancestors
    num_hypotheses = ids.shape[1]
    # An int if shapes are static, as under JAX.
    kept = ops.shape(tree.flatten(state.kv_cache)[0])[-2] // num_hypotheses
    indices = ops.arange(num_hypotheses, dtype="int32")[:, None]
    ancestors = ops.broadcast_to(indices, (ops.shape(ids)[0], num_hypotheses, kept + 1))
    return kept if time is None else time, ancestors  # a window does not keep all


def ancestor_mask(ancestors: Tensor, num_hypotheses: int) -> Tensor:
    """Returns a mask that is True at the cache slots of a hypothesis's ancestors.

    Args:
        ancestors: int32 [B, W, t], index of its ancestor at each step, see `DecodingState`.
        num_hypotheses: W.

    Returns:
        bool [B, W, t * W]: the slots of all hypotheses of the first step, then of the second ...
    """
    indices = ops.arange(num_hypotheses, dtype="int32")
    mask = ops.equal(ancestors[..., None], indices)  # [B, W, t, W]
    slots = ops.shape(ancestors)[2] * num_hypotheses
    return ops.reshape(mask, (-1, num_hypotheses, slots))


def ancestor_bias(ancestors: Tensor, num_hypotheses: int) -> Tensor:
    """Returns `ancestor_mask` as a bias [B, 1, W, t * W]."""
    return attention_bias(ancestor_mask(ancestors, num_hypotheses)[:, None])
