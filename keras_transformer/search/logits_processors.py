"""Rules of search: each takes the logits of the next tokens and changes or forbids some of them.

Each option has an entry for each sentence, and a neutral value at which the logits stay as they
are bit for bit; where no sentence of a batch asks for a rule, it costs next to nothing. What a
rule forbids is at -inf. Rules only ever forbid: a hypothesis to which they leave no token at all
has only -inf.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L tokens that there is room for, N
ids that a rule names. An option of shape [1] holds for all sentences. V and W are static.
`tokens` are int32 [B, W, L], what each hypothesis has so far without BOS, PAD from `time` on;
`time` is int32 []; `logits` are float32 [B, W, V].
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search.top_k import top_k as most_probable

FORBIDDEN = -float("inf")

_LOWEST_TEMPERATURE = 1e-6  # below it logits might overflow; samples are the best tokens by then
_FEW = 256  # candidates that nearly always hold all that sampling keeps


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Returns logits divided by the temperature, float32 [B] above 0; 1 is neutral.

    Low temperatures make probable tokens more probable (Ackley, Hinton and Sejnowski 1985).
    """
    divisor = tf.maximum(temperature, _LOWEST_TEMPERATURE)[:, None, None]
    return if_any(temperature != 1.0, lambda: logits / divisor, logits)


def penalize_repetition(logits: Tensor, tokens: Tensor, penalty: Tensor) -> Tensor:
    """Makes less probable what a hypothesis has already (Keskar et al. 2019, 4.1).

    They divide negative logits too, which makes those more probable.

    Args:
        logits: of the next tokens. Those of tokens in the hypothesis are divided by the penalty
            where positive and multiplied by it where negative, once however often they occur.
        tokens: of the hypotheses.
        penalty: float32 [B], above 0; 1 is neutral. Below 1 it rewards repetition.
    """

    def penalized() -> Tensor:
        old = tf.gather(logits, tokens, batch_dims=2)  # [B, W, L]
        factor = penalty[:, None, None]
        new = tf.where(old > 0, old / factor, old * factor)
        new = tf.where(tokens == PAD_ID, old, new)
        # A token that occurs twice is written twice, with the same value.
        return tf.tensor_scatter_nd_update(logits, _places(tokens), new)

    return if_any(penalty != 1.0, penalized, logits)


def forbid_repeated_ngrams(logits: Tensor, tokens: Tensor, time: Tensor, size: Tensor) -> Tensor:
    """Forbids tokens that would complete a sequence which the hypothesis has already.

    Used by Paulus et al. 2018, 2.5, with sequences of 3 tokens.

    Args:
        logits: of the next tokens.
        tokens: of the hypotheses.
        time: tokens that each hypothesis has.
        size: int32 [B], tokens of a sequence that may not occur twice; 0 is neutral.
    """

    def changed() -> Tensor:
        sizes = size[:, None, None]
        past = recent_tokens(tokens, time, tf.shape(tokens)[2])  # [B, W, L]

        def compare(distance: Tensor, earlier: Tensor, is_alike: Tensor) -> tuple[Tensor, ...]:
            # What is `distance` before the next token, and before each token of the past.
            latest = earlier[..., -1:]  # [B, W, 1]
            earlier = shift_right(earlier)  # [B, W, L]
            is_same = tf.equal(earlier, latest) & (latest != PAD_ID)
            return distance + 1, earlier, is_alike & (is_same | (distance >= sizes))

        # No sequence of more than `time` tokens can have occurred: a huge size costs no more.
        furthest = tf.minimum(tf.reduce_max(size), time + 1)
        *_, is_alike = tf.while_loop(
            lambda distance, *_: distance < furthest,
            compare,
            (1, past, (past != PAD_ID) & (sizes > 0)),
        )
        return forbid(logits, past, is_alike)

    return if_any(size > 0, changed, logits)


def force_prefix(logits: Tensor, time: Tensor, prefix: Tensor, restricted: Tensor) -> Tensor:
    """Forbids all but the next token of the prefix, for as long as it lasts.

    The allowed logit keeps its value, so a search can count the prefix at its true probability.

    Args:
        logits: of the next tokens.
        time: tokens that each hypothesis has.
        prefix: int32 [B, P], what each translation starts with, then PAD; nothing but PAD is
            neutral. It must not be longer than the translation may be.
        restricted: what other rules left of the logits: returned where no prefix lasts. While one
            does, the other rules do not hold.
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

    First the `top_k` most probable tokens are kept (Fan et al. 2018). Of these, the fewest whose
    share of their probability reaches `top_p` are kept, the one that reaches it included (nucleus
    sampling, Holtzman et al. 2020, 3.1). Of equally probable tokens the lower id comes first. At
    least one token is kept.

    Args:
        logits: of the next tokens.
        top_k: int32 [B]; 0 is neutral.
        top_p: float32 [B], a probability; 1 is neutral.
    """
    is_asked = ((top_k > 0) | (top_p < 1.0))[:, None, None]

    def changed() -> Tensor:
        # Sorting the vocabulary takes long: first see whether few candidates are enough.
        kept, is_sure = _keep_among(logits, min(_FEW, logits.shape[-1]), top_k, top_p)
        kept = tf.cond(
            tf.reduce_all(is_sure | ~is_asked),
            lambda: kept,
            lambda: tf.where(is_sure, kept, _keep_among(logits, logits.shape[-1], top_k, top_p)[0]),
        )
        return tf.where(is_asked, kept, logits)

    return if_any(is_asked, changed, logits)


def _keep_among(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `keep_most_probable` keeps of the `count` most probable tokens.

    Beside it stands whether more candidates would give the same, bool [B, W, 1].
    """
    size = logits.shape[-1]
    limit = tf.where(top_k > 0, tf.minimum(top_k, size), size)[:, None, None]
    share = top_p[:, None, None]
    best, ids = most_probable(logits, count)  # [B, W, count]
    largest = best[..., :1]
    weights = tf.where(tf.range(count) < limit, tf.exp(best - largest), 0.0)
    all_weights = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    limited_weights = tf.reduce_sum(weights, axis=-1, keepdims=True)
    bound = share * tf.where(limit < size, limited_weights, all_weights)  # [B, W, 1]
    is_needed = (tf.cumsum(weights, axis=-1, exclusive=True) < bound) | (share >= 1.0)
    is_kept = is_needed & (tf.range(count) < limit) | (tf.range(count) == 0)
    is_sure = (limit <= count) | ((limit == size) & ~is_kept[..., -1:])
    return keep_only(logits, ids, is_kept), is_sure


def if_any(is_asked: Tensor, changed: Callable[[], Tensor], logits: Tensor) -> Tensor:
    """Returns `changed()` where `is_asked` is True anywhere, else the logits as they are."""
    return tf.cond(tf.reduce_any(is_asked), changed, lambda: logits)


def forbid(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids ids [B, W, N] where `chosen` is True, a bool that broadcasts with them."""
    bounds = tf.where(chosen, FORBIDDEN, tf.fill(tf.shape(ids), -FORBIDDEN))
    return tf.tensor_scatter_nd_min(logits, _places(ids), bounds)


def keep_only(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids all but the ids where `chosen` is True; both broadcast to [B, W, N]."""
    shape = tf.concat([tf.shape(logits)[:2], tf.shape(ids)[2:]], axis=0)
    ids = tf.broadcast_to(ids, shape)
    kept = tf.where(chosen, tf.gather(logits, ids, batch_dims=2), FORBIDDEN)
    nothing = tf.fill(tf.shape(logits), FORBIDDEN)
    return tf.tensor_scatter_nd_max(nothing, _places(ids), kept)


def recent_tokens(tokens: Tensor, time: Tensor, count: Tensor) -> Tensor:
    """Returns the last `count` tokens of each hypothesis, [B, W, count]; shorter ones follow PAD.

    Example:
        >>> recent_tokens(tf.constant([[[7, 8, 9, 0]]]), time=3, count=2).numpy().tolist()
        [[[8, 9]]]
    """
    padded = tf.pad(tokens, [[0, 0], [0, 0], [1, 0]], constant_values=PAD_ID)
    return tf.gather(padded, tf.maximum(tf.range(count) + time - count + 1, 0), axis=2)


def shift_right(values: Tensor) -> Tensor:
    """Moves the entries of the last dimension one place to the right; 0 or False comes in."""
    paddings = [[0, 0]] * (values.shape.rank - 1) + [[1, 0]]
    return tf.pad(values, paddings)[..., :-1]


def _places(ids: Tensor) -> Tensor:
    """Returns where in logits [B, W, V] the ids [B, W, N] stand, int32 [B, W, N, 3]."""
    sentences = tf.range(tf.shape(ids)[0])[:, None, None]
    hypotheses = tf.range(tf.shape(ids)[1])[None, :, None]
    zeros = tf.zeros_like(ids)
    return tf.stack([zeros + sentences, zeros + hypotheses, ids], axis=-1)
