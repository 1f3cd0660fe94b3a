"""Masks of tokens and of attention.

A mask is boolean, True at a real token or where a query may attend. Attention adds masks to its
scores as a bias: 0 where True, a large negative number where False.

Shapes: B batch, S source length, T target length, H heads.
"""

import functools
from typing import NamedTuple

import keras
from keras import ops
from keras.src.backend import get_keras_mask as get_keras_mask  # layers import it from here

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
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


def mask_to_bias(mask: Tensor) -> Tensor:
    """Returns the bias that hides all keys where the mask is False."""
    return ops.where(mask, 0.0, MASKED)


def padding_bias(ids: Tensor) -> Tensor:
    """Returns a bias [B, 1, 1, S] that hides the padding of ids [B, S] from every query."""
    return mask_to_bias(ops.expand_dims(padding_mask(ids), (1, 2)))


def causal_mask(length: int | Tensor) -> Tensor:
    """Returns a bool mask [T, T]: position t sees positions up to t (3.2.3)."""
    positions = ops.arange(length)
    return positions[None, :] <= positions[:, None]


class Bias(NamedTuple):
    """All masks as one bias, which a stack makes once and gives its layers in place of a mask."""

    values: Tensor | None  # broadcasts to [B, H, T, S]; None hides nothing


def combine_masks(
    keys: Tensor, mask: Tensor | Bias | None = None, attention_mask: Tensor | Bias | None = None
) -> Tensor | None:
    """Returns the bias of both masks, which broadcasts to [B, H, T, S]; None without masks.

    Args:
        keys: [B, S, D], the sequence attended to, or its `KeysValues`.
        mask: bool [B, S], True at real tokens; None for the Keras mask of `keys`.
        attention_mask: bool, True where a query may attend: [T, S], [B, T, S] or [B, H, T, S], any
            dimension may be 1. Where one of the two is a `Bias`, it stands for both.

    Raises:
        InputError: a mask is a float bias.
    """
    if isinstance(mask, Bias):
        return mask.values
    if isinstance(attention_mask, Bias):
        return attention_mask.values
    if mask is None:
        mask = get_keras_mask(keys)
    masks = []
    if mask is not None:
        masks.append(ops.expand_dims(as_bool(mask, "mask"), (1, 2)))
    if attention_mask is not None:
        pairs = as_bool(attention_mask, "attention_mask")
        masks.append(ops.expand_dims(pairs, 1) if len(pairs.shape) == 3 else pairs)
    return mask_to_bias(functools.reduce(ops.logical_and, masks)) if masks else None


def hide(bias: Tensor | None, mask: Tensor) -> Tensor:
    """Returns the bias that also hides the keys where the mask is False."""
    return ops.where(mask, 0.0 if bias is None else bias, MASKED)


def as_bool(mask: Tensor, name: str) -> Tensor:
    """Returns a mask of numbers as bool; raises `InputError` if it is a float bias."""
    if keras.backend.is_float_dtype(mask.dtype):
        raise InputError(
            f"{name} must be boolean, True where a query may attend, got {mask.dtype}; cast 0 and "
            "1 to bool"
        )
    return ops.cast(mask, "bool")
