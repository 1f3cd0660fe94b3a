"""What hypotheses are worth: log-probabilities of their next tokens and the length penalty.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, K candidates, N translations, S source
length.
"""

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.coverage import coverage_penalty
from keras_transformer.search.loop_state import SearchSpec, SentenceInputs
from keras_transformer.search.top_k import top_k

IMPOSSIBLE = -float("inf")


def length_penalty(lengths: Tensor, alpha: Tensor) -> Tensor:
    """Returns ((5 + length) / 6) ** alpha in float32 (Wu et al. 2016, eq. 14).

    Args:
        lengths: integers of any shape: tokens of the hypothesis, EOS included.
        alpha: float32 that broadcasts with `lengths`.

    Example:
        >>> float(length_penalty(tf.constant(7), tf.constant(1.0)))
        2.0
    """
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** alpha


def final_scores(
    log_probs: Tensor, lengths: Tensor, coverage: Tensor | None, inputs: SentenceInputs
) -> Tensor:
    """Returns what complete translations are worth (Wu et al. 2016, eq. 14).

    log P(Y) / length penalty + coverage penalty

    Args:
        log_probs: float32 [B, N].
        lengths: int32 [B, N] or [], EOS included.
        coverage: float32 [B, N, S], see `DecodingState`; None without a coverage penalty.
        inputs: what is searched for.
    """
    scores = log_probs / length_penalty(lengths, inputs.alpha[:, None])
    if coverage is not None:
        scores += coverage_penalty(coverage, inputs.beta)
    # Where the length penalty is infinite, what is impossible would be no number.
    return tf.where(log_probs > IMPOSSIBLE, scores, IMPOSSIBLE)


def next_tokens(
    logits: Tensor,
    allowed: Tensor,
    count: int,
    time: Tensor,
    inputs: SentenceInputs,
    spec: SearchSpec,
    extra_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and ids of the most probable next tokens of each hypothesis.

    Probabilities are over the whole vocabulary, as in training: PAD, BOS and what a rule forbids
    are left out afterwards, and what they would have had is lost.

    The log-softmax is taken of the candidates only. That saves writing [B, W, V] numbers and
    chooses the same tokens, since it subtracts the same number from all logits of a hypothesis.

    Args:
        logits: float32 [B, W, V], W and V static.
        allowed: the same, with -inf for what rules forbid.
        count: tokens wanted of each hypothesis.
        time: int32 [], tokens that the hypotheses have. Where that is the most a sentence may
            have, EOS is the only candidate.
        inputs, spec: what is searched for.
        extra_ids: int32 [B, W, P], tokens that are wanted in any case; PAD means none.

    Returns:
        float32 log-probabilities and int32 ids, both [B, W, K]. The most probable come first, the
        lower id first among equals; then the extra ones; the last place is EOS's where a
        hypothesis must end. Candidates that are not allowed have log-probability -inf.
    """
    min_lengths = inputs.constraints.get("min_lengths")
    # PAD and BOS may take two of the places, and EOS one where it would be too early.
    wanted = count + 2 + (min_lengths is not None)
    width = min(wanted, logits.shape[-1])
    top_logits, ids = top_k(allowed, width)  # [B, W, width]
    # Differences from the largest logit stay exact where logits are huge. It is not the slice
    # [..., :1] of the top: XLA would then sort all V logits instead of using its quick top-k.
    largest = tf.reduce_max(top_logits if allowed is logits else logits, axis=-1, keepdims=True)
    log_sum = tf.math.log(tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True))

    if extra_ids is not None:
        is_new = tf.reduce_all(extra_ids[..., None] != ids[:, :, None], axis=-1)  # [B, W, P]
        is_new &= ~_occurred_before(extra_ids)
        extra_ids = tf.where(is_new, extra_ids, spec.pad_id)
        top_logits = tf.concat([top_logits, tf.gather(allowed, extra_ids, batch_dims=2)], axis=-1)
        ids = tf.concat([ids, extra_ids], axis=-1)
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    barred = must_end | (ids == spec.pad_id) | (ids == inputs.barred_ids[:, None, None])
    if min_lengths is not None:
        barred |= (time < min_lengths)[:, None, None] & (ids == spec.eos_id)
    end_logits = logits[..., spec.eos_id : spec.eos_id + 1]  # [B, W, 1]
    parts = [
        tf.where(barred, IMPOSSIBLE, top_logits),
        tf.where(must_end, end_logits, IMPOSSIBLE),
    ]
    log_probs = (tf.concat(parts, axis=-1) - largest) - log_sum
    missing = wanted - width  # of a vocabulary smaller than the beam
    if missing:
        padding = [[0, 0], [0, 0], [missing, 0]]
        log_probs = tf.pad(log_probs, padding, constant_values=IMPOSSIBLE)
    return log_probs, tf.pad(ids, [[0, 0], [0, 0], [missing, 1]], constant_values=spec.eos_id)


def _occurred_before(ids: Tensor) -> Tensor:
    """Returns whether an id stands further to the left, bool of the shape of ids [B, W, P]."""
    places = tf.range(tf.shape(ids)[-1])
    is_same = ids[..., None] == ids[:, :, None]  # [B, W, P, P]
    return tf.reduce_any(is_same & (places < places[:, None]), axis=-1)
