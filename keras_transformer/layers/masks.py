"""Every mask of a model, made here and passed on as an argument.

A mask is True where a token is real, or may be attended to. Attention takes masks as additive
biases (0 where True, a large negative number where False), computed once for all layers.

Shapes: B batch, S source length, T target length; while decoding, W hypotheses a sentence and t
tokens of each.
"""

from keras import ops, tree

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, Tensor

# exp() of a score this far below the others is exactly 0, and the value is finite in float16 too:
# a row with nothing but padding gives finite weights and no NaN. bfloat16 has it exactly.
MASKED = -29_952.0  # -117 * 2^8


def padding_mask(ids: Tensor) -> Tensor:
    """Returns a bool mask [B, S], True at the real tokens of ids [B, S]."""
    return ops.not_equal(ids, PAD_ID)


def predicting_mask(ids: Tensor) -> Tensor:
    """Returns a bool mask of ids [...], True where a decoder predicts a token: EOS has no next."""
    return padding_mask(ids) & ops.not_equal(ids, EOS_ID)


def attention_bias(mask: Tensor) -> Tensor:
    """Returns the bias that lets attention see only where the mask is True."""
    return ops.where(mask, 0.0, MASKED)


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


def ancestors_of(ids: Tensor, state: DecodingState) -> tuple[Tensor, Tensor]:
    """Returns `time` and `ancestors` of a state, also where hypotheses never branch.

    Args:
        ids: [B, W], the newest tokens.
        state: has `time` and `ancestors`, or else a `kv_cache` that grows.
    """
    time: Tensor = state.time
    if state.ancestors is not None:
        return time, state.ancestors
    num_hypotheses = ids.shape[1]
    # A number where shapes are static, as under JAX.
    kept = ops.shape(tree.flatten(state.kv_cache)[0])[-2] // num_hypotheses
    indices = ops.arange(num_hypotheses, dtype="int32")[:, None]
    ancestors = ops.broadcast_to(indices, (ops.shape(ids)[0], num_hypotheses, kept + 1))
    return kept if time is None else time, ancestors  # a window does not keep all


def ancestor_mask(ancestors: Tensor, num_hypotheses: int) -> Tensor:
    """Returns a mask that is True where a hypothesis's own ancestors are.

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
    """Returns a bias [B, 1, W, t * W] that lets each hypothesis see its own ancestors only.

    Arguments as in `ancestor_mask`.
    """
    return attention_bias(ancestor_mask(ancestors, num_hypotheses)[:, None])
