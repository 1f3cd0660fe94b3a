"""Functions on the logits of the next tokens, which constraints and sampling are made of.

Each parameter has an entry for each sentence, and a neutral value at which the logits stay as they
are bit for bit; where it is neutral for a whole batch, the function costs next to nothing. What is
forbidden is at -inf.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L longest result, N ids. A parameter of
shape [1] holds for all sentences. V and W are static. `tokens` are int32 [B, W, L], what each
hypothesis has so far without BOS, PAD from `time` on; `time` is int32 []; `logits` are float32
[B, W, V].
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search.top_k import top_k as find_top_k

FORBIDDEN = -float("inf")

_LOWEST_TEMPERATURE = 1e-6  # below it logits might overflow; samples are the best tokens by then
_FEW = 256  # candidates, which nearly always hold all that sampling keeps


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Returns logits divided by the temperature, float32 [B] above 0; 1 is neutral.

    Low temperatures make probable tokens more probable (Ackley, Hinton and Sejnowski 1985).
    """
    divisor = tf.maximum(temperature, _LOWEST_TEMPERATURE)[:, None, None]
    return if_any(temperature != 1.0, lambda: logits / divisor, logits)


def penalize_repetition(logits: Tensor, tokens: Tensor, penalty: Tensor) -> Tensor:
    """Makes tokens less probable that a hypothesis has already (Keskar et al. 2019, 4.1).

    Their logits are divided by the penalty where positive and multiplied by it where negative,
    once however often they occur. The paper divides negative ones too, which would make these
    more probable.

    Args:
        logits: of the next tokens.
        tokens: of the hypotheses.
        penalty: float32 [B], above 0; 1 is neutral. Below 1 it rewards repetition.
    """

    def penalized() -> Tensor:
        old = tf.gather(logits, tokens, batch_dims=2)  # [B, W, L]
        factor = penalty[:, None, None]
        new = tf.where(old > 0, old / factor, old * factor)
        new = tf.where(tokens == PAD_ID, old, new)
        # A token that occurs twice is written twice, with the same value.
        return tf.tensor_scatter_nd_update(logits, _indices(tokens), new)

    return if_any(penalty != 1.0, penalized, logits)


def forbid_repeated_ngrams(logits: Tensor, tokens: Tensor, time: Tensor, size: Tensor) -> Tensor:
    """Forbids tokens that would repeat an n-gram of the hypothesis (Paulus et al. 2018, 2.5).

    Args:
        logits: of the next tokens.
        tokens: of the hypotheses.
        time: tokens that each hypothesis has.
        size: int32 [B], n; 0 is neutral.
    """

    def changed() -> Tensor:
        sizes = size[:, None, None]
        past = recent_tokens(tokens, time, tf.shape(tokens)[2])  # [B, W, L]

        def compare(distance: Tensor, earlier: Tensor, matches: Tensor) -> tuple[Tensor, ...]:
            # The tokens `distance` before the next token and before each token of the past.
            latest = earlier[..., -1:]  # [B, W, 1]
            earlier = shift_right(earlier)  # [B, W, L]
            is_same = tf.equal(earlier, latest) & (latest != PAD_ID)
            return distance + 1, earlier, matches & (is_same | (distance >= sizes))

        # No n-gram of more than `time` tokens can have occurred: a huge n costs no more.
        furthest = tf.minimum(tf.reduce_max(size), time + 1)
        *_, matches = tf.while_loop(
            lambda distance, *_: distance < furthest,
            compare,
            (1, past, (past != PAD_ID) & (sizes > 0)),
        )
        return forbid(logits, past, matches)

    return if_any(size > 0, changed, logits)


def force_prefix(logits: Tensor, time: Tensor, prefix: Tensor, restricted: Tensor) -> Tensor:
    """Forbids all but the next token of the prefix, for as long as it lasts.

    The allowed logit keeps its value, so the prefix counts at its true probability.

    Args:
        logits: of the next tokens.
        time: tokens that each hypothesis has.
        prefix: int32 [B, P], what each translation starts with, then PAD; nothing but PAD is
            neutral. It must not be longer than the translation may be.
        restricted: the logits under other constraints, returned where there is no prefix or it
            has ended.
    """
    length = tf.shape(prefix)[1]
    prefix = tf.pad(prefix, [[0, 0], [0, 1]], constant_values=PAD_ID)
    ids = tf.gather(prefix, tf.minimum(time, length), axis=1)[:, None, None]  # [B, 1, 1]
    is_forced = ids != PAD_ID
    return if_any(
        is_forced, lambda: tf.where(is_forced, keep_only(logits, ids, True), restricted), restricted
    )


def keep_most_probable(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Forbids all but the most probable tokens, for sampling.

    First the `top_k` most probable tokens are kept (Fan et al. 2018), then of these the fewest
    that together have `top_p` of their probability (nucleus sampling, Holtzman et al. 2020, 3.1).
    Of equally probable tokens the lower id comes first. At least one token is kept.

    Args:
        logits: of the next tokens.
        top_k: int32 [B]; 0 is neutral.
        top_p: float32 [B], a probability; 1 is neutral.
    """
    is_filtered = ((top_k > 0) | (top_p < 1.0))[:, None, None]

    def changed() -> Tensor:
        # Sorting the vocabulary takes long: first see whether few candidates are enough.
        kept, is_sure = _keep_among(logits, min(_FEW, logits.shape[-1]), top_k, top_p)
        kept = tf.cond(
            tf.reduce_all(is_sure | ~is_filtered),
            lambda: kept,
            lambda: tf.where(is_sure, kept, _keep_among(logits, logits.shape[-1], top_k, top_p)[0]),
        )
        return tf.where(is_filtered, kept, logits)

    return if_any(is_filtered, changed, logits)


def _keep_among(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `keep_most_probable` keeps of the `count` most probable tokens.

    Also returns whether more candidates would give the same result, bool [B, W, 1].
    """
    size = logits.shape[-1]
    limit = tf.where(top_k > 0, tf.minimum(top_k, size), size)[:, None, None]
    share = top_p[:, None, None]
    best, ids = find_top_k(logits, count)  # [B, W, count]
    largest = best[..., :1]
    weights = tf.where(tf.range(count) < limit, tf.exp(best - largest), 0.0)
    all_weights = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    limited_weights = tf.reduce_sum(weights, axis=-1, keepdims=True)
    bound = share * tf.where(limit < size, limited_weights, all_weights)  # [B, W, 1]
    is_needed = (tf.cumsum(weights, axis=-1, exclusive=True) < bound) | (share >= 1.0)
    is_kept = is_needed & (tf.range(count) < limit) | (tf.range(count) == 0)
    is_sure = (limit <= count) | ((limit == size) & ~is_kept[..., -1:])
    return keep_only(logits, ids, is_kept), is_sure


def if_any(condition: Tensor, changed: Callable[[], Any], unchanged: Any) -> Any:
    """Returns `changed()` where the condition is True anywhere, else `unchanged`; both nests."""
    return tf.cond(tf.reduce_any(condition), changed, lambda: unchanged)


def forbid(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids ids [B, W, N] where `chosen` is True, a bool that broadcasts with them."""
    bounds = tf.where(chosen, FORBIDDEN, tf.fill(tf.shape(ids), -FORBIDDEN))
    return tf.tensor_scatter_nd_min(logits, _indices(ids), bounds)


def keep_only(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids all but the ids where `chosen` is True; both broadcast to [B, W, N]."""
    shape = tf.concat([tf.shape(logits)[:2], tf.shape(ids)[2:]], axis=0)
    ids = tf.broadcast_to(ids, shape)
    kept = tf.where(chosen, tf.gather(logits, ids, batch_dims=2), FORBIDDEN)
    nothing = tf.fill(tf.shape(logits), FORBIDDEN)
    return tf.tensor_scatter_nd_max(nothing, _indices(ids), kept)


def recent_tokens(tokens: Tensor, time: Tensor, count: Tensor) -> Tensor:
    """Returns the last `count` tokens of each hypothesis, [B, W, count]; PAD precedes the first.

    Example:
        >>> recent_tokens(tf.constant([[[7, 8, 9, 0]]]), time=3, count=2).numpy().tolist()
        [[[8, 9]]]
    """
    padded = tf.pad(tokens, [[0, 0], [0, 0], [1, 0]], constant_values=PAD_ID)
    return tf.gather(padded, tf.maximum(tf.range(count) + time - count + 1, 0), axis=2)


def shift_right(values: Tensor) -> Tensor:
    """Shifts the last dimension right by one; 0 or False comes in."""
    paddings = [[0, 0]] * (values.shape.rank - 1) + [[1, 0]]
    return tf.pad(values, paddings)[..., :-1]


def _indices(ids: Tensor) -> Tensor:
    """Returns the indices of ids [B, W, N] in logits [B, W, V], int32 [B, W, N, 3]."""
    sentences = tf.range(tf.shape(ids)[0])[:, None, None]
    hypotheses = tf.range(tf.shape(ids)[1])[None, :, None]
    zeros = tf.zeros_like(ids)
    return tf.stack([zeros + sentences, zeros + hypotheses, ids], axis=-1)
