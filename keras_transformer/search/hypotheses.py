"""The result of a search, and how it is put together at the end.

Shapes: B sentences, N hypotheses a sentence that are returned, L their longest length.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.scoring import length_penalty
from keras_transformer.search.task import Request, Task

NO_SCORE = -1e9  # of a hypothesis that does not exist; finite, since JSON has no infinity


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than N translations (a tiny vocabulary, a short limit), the last
    places hold length 0, only PAD, and -1e9 as score and log-probability.

    Attributes:
        ids: int32 [B, N, L], END included, then PAD.
        scores: float32 [B, N], log-probability divided by the length penalty; always finite.
        log_probs: float32 [B, N], natural logarithm of the probability; always finite.
        lengths: int32 [B, N], symbols of the translation, END included.
    """

    ids: Tensor
    scores: Tensor
    log_probs: Tensor
    lengths: Tensor


class Finished(NamedTuple):
    """Complete translations; those that do not exist have the score -inf.

    Attributes:
        scores: float32 [B, N].
        symbols: int32 [B, N, L], right before END.
        lengths: int32 [B, N], END included.
    """

    scores: Tensor
    symbols: Tensor
    lengths: Tensor


def none_finished(symbols: Tensor, count: int) -> Finished:
    """Returns N = `count` places for translations of the length of symbols [B, W, L]."""
    rows, _, length = tf.unstack(tf.shape(symbols))
    none = tf.zeros([rows, count, length], tf.int32)
    return Finished(
        scores=tf.fill([rows, count], -float("inf")),
        symbols=tf.ensure_shape(none, [None, count, symbols.shape[2]]),
        lengths=tf.zeros([rows, count], tf.int32),
    )


def make_hypotheses(finished: Finished, request: Request, task: Task) -> Hypotheses:
    """Puts END and PAD behind the symbols and replaces what is not finite."""
    scores = finished.scores
    exists = tf.math.is_finite(scores)
    lengths = tf.where(exists, finished.lengths, 0)
    positions = task.positions()
    last = lengths[..., None] - 1  # [B, N, 1]
    ids = tf.where(positions < last, finished.symbols, task.pad_id)
    penalty = length_penalty(lengths, request.alpha[:, None])
    return Hypotheses(
        ids=tf.where(positions == last, task.end_id, ids),
        scores=tf.where(exists, scores, NO_SCORE),
        log_probs=tf.where(exists, scores * penalty, NO_SCORE),
        lengths=lengths,
    )
