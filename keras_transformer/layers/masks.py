"""Every mask of a model, made here and passed on as an argument.

A mask is True where a token is real, or may be attended to. Attention takes masks as additive
biases (0 where True, a large negative number where False), computed once for all layers.

Shapes: B batch, S source length, T target length; while decoding, W hypotheses a sentence and t
tokens of each.
"""

from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor

# exp() of a score this far below the others is exactly 0, and the value is finite in float16 too:
# a row with nothing but padding gives finite weights and no NaN.
_MASKED = -3e4


def padding_mask(ids: Tensor) -> Tensor:
    """Returns a bool mask [B, S], True at the real tokens of ids [B, S]."""
    return ops.not_equal(ids, PAD_ID)


def attention_bias(mask: Tensor) -> Tensor:
    """Returns the bias that lets attention see only where the mask is True."""
    return ops.where(mask, 0.0, _MASKED)


def padding_bias(ids: Tensor) -> Tensor:
    """Returns a bias [B, 1, 1, S] that hides the padding of ids [B, S] from every query."""
    return attention_bias(padding_mask(ids)[:, None, None, :])


def causal_bias(length: int | Tensor) -> Tensor:
    """Returns a bias [1, 1, T, T] that lets position t see positions up to t.

    Vaswani et al. 2017, 3.2.3: "masking out (setting to -inf) all values in the input of the
    softmax which correspond to illegal connections".
    """
    positions = ops.arange(length)
    return attention_bias(positions[None, :] <= positions[:, None])[None, None]


def ancestor_bias(ancestors: Tensor, num_hypotheses: int) -> Tensor:
    """Returns a bias that lets each hypothesis see its own ancestors only.

    Args:
        ancestors: int32 [B, W, t], index of its ancestor at each step, see `DecodingState`.
        num_hypotheses: W.

    Returns:
        [B, 1, W, t * W]: the slots of all hypotheses of the first step, then of the second ...
    """
    indices = ops.arange(num_hypotheses, dtype="int32")
    mask = ops.equal(ancestors[..., None], indices)  # [B, W, t, W]
    slots = ops.shape(ancestors)[2] * num_hypotheses
    return attention_bias(ops.reshape(mask, (-1, 1, num_hypotheses, slots)))
