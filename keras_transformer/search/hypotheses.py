"""The result of a search, and how it is put together at the end.

Shapes: B sentences, W beams, N hypotheses a sentence that are returned, L their longest length.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.scoring import length_penalty
from keras_transformer.search.task import Task

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


def make_hypotheses(
    symbols: tf.TensorArray, scores: Tensor, lengths: Tensor, task: Task
) -> Hypotheses:
    """Puts END and PAD behind the symbols and replaces what is not finite.

    Args:
        symbols: int32 [B, N] at each position, right before END.
        scores: float32 [B, N], not finite where there is no hypothesis.
        lengths: int32 [B, N], END included.
        task: what was searched for.
    """
    exists = tf.math.is_finite(scores)
    lengths = tf.where(exists, lengths, 0)
    positions = tf.range(task.result_length)  # [L]
    last = lengths[..., None] - 1  # [B, N, 1]
    ids = tf.where(positions < last, tf.transpose(symbols.stack(), [1, 2, 0]), task.pad_id)
    return Hypotheses(
        ids=tf.where(positions == last, task.end_id, ids),
        scores=tf.where(exists, scores, NO_SCORE),
        log_probs=tf.where(exists, scores * length_penalty(lengths, task.alpha), NO_SCORE),
        lengths=lengths,
    )


def new_history(task: Task, *element_shape: int) -> tf.TensorArray:
    """Returns an array with a place for the choices of each step, int32 [B, *element_shape]."""
    return tf.TensorArray(
        tf.int32,
        size=task.result_length,
        element_shape=task.start_ids.shape.concatenate(element_shape),
        clear_after_read=False,
    )


def trace_back(
    history: tf.TensorArray, lengths: Tensor, beams: Tensor, task: Task
) -> tf.TensorArray:
    """Follows hypotheses from their end to their start.

    Args:
        history: at each position int32 [B, W, 2]: for each beam the beam that it continues, and
            its symbol.
        lengths: int32 [B, N], END included.
        beams: int32 [B, N], the beam that END continues.
        task: what was searched for.

    Returns:
        int32 [B, N] symbols at each position; those from END on mean nothing.
    """

    def previous(
        position: Tensor, beams: Tensor, symbols: tf.TensorArray
    ) -> tuple[Tensor, Tensor, tf.TensorArray]:
        entries = tf.gather(history.read(position), beams, batch_dims=1)  # [B, N, 2]
        parents, ids = tf.unstack(entries, axis=-1)
        beams = tf.where(position < lengths - 1, parents, beams)
        return position - 1, beams, symbols.write(position, ids)

    *_, symbols = tf.while_loop(
        lambda position, *_: position >= 0,
        previous,
        # At least one round (also where B = 0): an array never written has no shape.
        (tf.maximum(tf.reduce_max(lengths), 2) - 2, beams, new_history(task, beams.shape[1])),
    )
    return symbols
