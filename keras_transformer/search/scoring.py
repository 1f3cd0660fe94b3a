"""What hypotheses are worth: log-probabilities of their next symbols and the length penalty.

Shapes: B sentences, R hypotheses a sentence that are read, V vocabulary, K candidates.
"""

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.task import Request, Task
from keras_transformer.search.top_k import top_k

IMPOSSIBLE = -float("inf")


def length_penalty(lengths: Tensor, alpha: Tensor) -> Tensor:
    """Returns ((5 + length) / 6) ** alpha in float32 (Wu et al. 2016, eq. 14).

    Args:
        lengths: integers of any shape: symbols of the hypothesis, END included.
        alpha: float32 that broadcasts with `lengths`.

    Example:
        >>> float(length_penalty(tf.constant(7), tf.constant(1.0)))
        2.0
    """
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** alpha


def next_symbols(
    logits: Tensor, count: int, time: Tensor, request: Request, task: Task
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and ids of the most probable next symbols of each hypothesis.

    Probabilities are over the whole vocabulary, as in training: PAD and START are left out
    afterwards, and what they would have had is lost.

    The log-softmax is taken of the candidates only. That saves writing [B, R, V] numbers and
    chooses the same symbols, since it subtracts the same number from all logits of a hypothesis.

    Args:
        logits: float32 [B, R, V], R and V static.
        count: symbols wanted of each hypothesis.
        time: int32 [], symbols that the hypotheses have. Where that is the most a sentence may
            have, END is the only candidate.
        request, task: what is searched for.

    Returns:
        float32 log-probabilities and int32 ids, both [B, R, K] with K = `count` + 3. They come
        best first, the lower id first among equals; the last place is END's where a hypothesis
        must end. Candidates that are not allowed have log-probability -inf.
    """
    wanted = count + 2  # PAD and START may take two of the places
    width = min(wanted, logits.shape[-1])
    top_logits, ids = top_k(logits, width)  # [B, R, width]
    # Differences from the largest logit stay exact where logits are huge. It is not the slice
    # [..., :1] of the top: XLA would then sort all V logits instead of using its quick top-k.
    largest = tf.reduce_max(top_logits, axis=-1, keepdims=True)  # [B, R, 1]
    log_sum = tf.math.log(tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True))

    must_end = (time >= request.max_lengths)[:, None, None]  # [B, 1, 1]
    barred = must_end | (ids == task.pad_id) | (ids == request.barred_ids[:, None, None])
    end_logits = logits[..., task.end_id : task.end_id + 1]  # [B, R, 1]
    parts = [
        tf.where(barred, IMPOSSIBLE, top_logits),
        tf.where(must_end, end_logits, IMPOSSIBLE),
    ]
    log_probs = (tf.concat(parts, axis=-1) - largest) - log_sum
    missing = wanted - width  # of a vocabulary smaller than the beam
    if missing:
        padding = [[0, 0], [0, 0], [missing, 0]]
        log_probs = tf.pad(log_probs, padding, constant_values=IMPOSSIBLE)
    return log_probs, tf.pad(ids, [[0, 0], [0, 0], [missing, 1]], constant_values=task.end_id)
