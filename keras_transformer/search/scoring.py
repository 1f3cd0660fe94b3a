"""What translations are worth: log-probability, length penalty and coverage penalty.

All of Wu et al. 2016, section 7. Shapes: B sentences, W hypotheses a sentence, N translations, S
source length.
"""

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.search.loop_state import SentenceInputs

IMPOSSIBLE = -float("inf")

_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite, -87.3


def length_penalty(lengths: Tensor, alpha: Tensor, form: str = "gnmt") -> Tensor:
    """Returns ((5 + length) / 6) ** alpha in float32 (Wu et al. 2016, eq. 14).

    Args:
        lengths: integers of any shape: tokens of the hypothesis, EOS included.
        alpha: float32 that broadcasts with `lengths`.
        form: "gnmt", or "power" for length ** alpha.

    Example:
        >>> float(length_penalty(tf.constant(7), tf.constant(1.0)))
        2.0
    """
    check_choice("length_penalty_form", form, ("gnmt", "power"))
    numbers = tf.cast(lengths, tf.float32)
    return (numbers if form == "power" else (5.0 + numbers) / 6.0) ** alpha


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


def final_scores(
    log_probs: Tensor,
    lengths: Tensor,
    coverage: Tensor | None,
    inputs: SentenceInputs,
    form: str = "gnmt",
) -> Tensor:
    """Returns what complete translations are worth (Wu et al. 2016, eq. 14).

    log P(Y) / length penalty + coverage penalty

    Args:
        log_probs: float32 [B, N].
        lengths: int32 [B, N] or [], EOS included.
        coverage: float32 [B, N, S], see `DecodingState`; None without a coverage penalty.
        inputs: of the search.
        form: of the length penalty.
    """
    scores = log_probs / length_penalty(lengths, inputs.alpha[:, None], form)
    if coverage is not None:
        scores += coverage_penalty(coverage, inputs.beta)
    # -inf divided by an infinite length penalty would be NaN.
    return tf.where(log_probs > IMPOSSIBLE, scores, IMPOSSIBLE)
