"""Finished hypotheses and the result of a search that is made of them.

Shapes: B sentences, N hypotheses a sentence that are returned, L their longest length.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.loop_state import SearchSpec

NO_SCORE = -1e9  # of a hypothesis that does not exist; finite, since JSON has no infinity


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than N translations (a tiny vocabulary, a short limit), the last
    ones have length 0, only PAD, and -1e9 as score and log-probability.

    Attributes:
        ids: int32 [B, N, L], EOS included, then PAD.
        scores: float32 [B, N], log-probability divided by the length penalty; always finite.
        log_probs: float32 [B, N], natural logarithm of the probability; always finite.
        lengths: int32 [B, N], tokens of the translation, EOS included.
    """

    ids: Tensor
    scores: Tensor
    log_probs: Tensor
    lengths: Tensor


class Finished(NamedTuple):
    """Complete translations; those that do not exist have the score -inf.

    Attributes:
        scores: float32 [B, N], best first.
        log_probs: float32 [B, N].
        tokens: int32 [B, N, L], of which those before EOS count.
        lengths: int32 [B, N], EOS included.
    """

    scores: Tensor
    log_probs: Tensor
    tokens: Tensor
    lengths: Tensor


def none_finished(tokens: Tensor, count: int) -> Finished:
    """Returns N = `count` translations that do not exist, as long as tokens [B, W, L]."""
    batch_size, _, length = tf.unstack(tf.shape(tokens))
    no_tokens = tf.zeros([batch_size, count, length], tf.int32)
    return Finished(
        scores=tf.fill([batch_size, count], -float("inf")),
        log_probs=tf.zeros([batch_size, count]),
        tokens=tf.ensure_shape(no_tokens, [None, count, tokens.shape[2]]),
        lengths=tf.zeros([batch_size, count], tf.int32),
    )


def best_of(parts: Sequence[Finished], count: int) -> Finished:
    """Returns the `count` best translations of all parts; among equals that of an earlier part."""
    merged = Finished(*(tf.concat(fields, axis=1) for fields in zip(*parts, strict=True)))
    _, index = tf.math.top_k(merged.scores, count)  # [B, count]
    return Finished(*(tf.gather(field, index, batch_dims=1) for field in merged))


def make_hypotheses(finished: Finished, spec: SearchSpec) -> Hypotheses:
    """Appends EOS and PAD to the tokens and replaces infinite scores."""
    exists = tf.math.is_finite(finished.scores)
    lengths = tf.where(exists, finished.lengths, 0)
    positions = spec.positions()
    last = lengths[..., None] - 1  # [B, N, 1]
    ids = tf.where(positions < last, finished.tokens, spec.pad_id)
    return Hypotheses(
        ids=tf.where(positions == last, spec.eos_id, ids),
        scores=tf.where(exists, finished.scores, NO_SCORE),
        log_probs=tf.where(exists, finished.log_probs, NO_SCORE),
        lengths=lengths,
    )
