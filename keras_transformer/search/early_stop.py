"""When a beam search is done with a sentence.

Shapes: B sentences, G groups.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.search.candidates import Candidates
from keras_transformer.search.hypotheses import Finished
from keras_transformer.search.loop_state import SentenceInputs
from keras_transformer.search.scoring import IMPOSSIBLE, length_penalty


def may_improve(
    time: Tensor,
    best: Sequence[Finished],
    kept: Sequence[Candidates],
    inputs: SentenceInputs,
    form: str = "gnmt",
) -> Tensor:
    """Returns whether an open hypothesis can come to beat a finished one of its group, bool [B, 1].

    A log-probability, at most 0, only falls, and the coverage penalty is at most 0. The length
    penalty is at most that of the shortest translation to come or that of the longest, as alpha
    is negative or positive. Groups stop together, since what one chooses matters to the next.
    """
    shortest = length_penalty(time + 2, inputs.alpha, form)  # a token more, and EOS
    longest = length_penalty(inputs.max_lengths + 1, inputs.alpha, form)
    bounds = tf.maximum(shortest, longest)[:, None]  # [B, 1]
    largest = tf.stack([tf.reduce_max(group.log_probs, axis=1) for group in kept], axis=1)  # [B, G]
    worst = tf.stack([group.scores[:, -1] for group in best], axis=1)
    return tf.reduce_any(largest / bounds > worst, axis=1, keepdims=True)


def lacks_finished(best: Sequence[Finished]) -> Tensor:
    """Returns whether a group has finished fewer hypotheses than it keeps, bool [B, 1]."""
    worst = tf.stack([group.scores[:, -1] for group in best], axis=1)  # [B, G]
    return tf.reduce_any(worst == IMPOSSIBLE, axis=1, keepdims=True)
