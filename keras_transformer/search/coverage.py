"""The coverage penalty: translations lose that leave parts of the source unattended.

Shapes: B sentences, W hypotheses a sentence, S source length.
"""

import tensorflow as tf

from keras_transformer.decoding import Tensor

_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite, -87.3


def coverage_penalty(coverage: Tensor, beta: Tensor) -> Tensor:
    """Returns what is added to the score of each hypothesis (Wu et al. 2016, eq. 14).

    beta * sum over source tokens i of log(min(coverage_i, 1)): 0 where every token was attended
    to with a total weight of 1 or more, negative otherwise.

    Args:
        coverage: float32 [B, W, S], the sum of the attention weights that each source token got
            over the tokens of the hypothesis; 1 or more for padding, which needs none.
        beta: float32 [B] or [1]; 0 turns the penalty off.

    Returns:
        float32 [B, W], always finite: a token without any attention counts as log(2**-126).
    """
    logs = tf.math.log(tf.clip_by_value(coverage, _SMALLEST, 1.0))
    return beta[:, None] * tf.reduce_sum(logs, axis=-1)
