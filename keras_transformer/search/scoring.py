"""Scores: length and coverage penalties, and the top k of long rows.

Shapes: B sentences, W hypotheses a sentence, S source length, V vocabulary, N translations.
"""

import tensorflow as tf

from keras_transformer.decoding import IMPOSSIBLE, Tensor
from keras_transformer.errors import check_choice

_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite, -87.3


def length_penalty(lengths: Tensor, alpha: Tensor, form: str = "gnmt") -> Tensor:
    """Returns ((5 + length) / 6) ** alpha in float32, always finite (Wu et al. 2016, eq. 14).

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
    penalty = (numbers if form == "power" else (5.0 + numbers) / 6.0) ** alpha
    return tf.minimum(penalty, tf.float32.max)  # -inf divided by infinity would be NaN


def coverage_penalty(coverage: Tensor, beta: Tensor) -> Tensor:
    """Returns what is added to the score of each hypothesis (Wu et al. 2016, eq. 14).

    beta * sum over source tokens i of log(min(coverage_i, 1)): 0 if every token received a total
    attention weight of 1 or more, negative otherwise.

    Args:
        coverage: float32 [B, W, S], the attention weights that each source token received, summed
            over the tokens of the hypothesis; 1 or more for padding.
        beta: float32 [B, 1] or [1, 1]; 0 turns the penalty off.

    Returns:
        float32 [B, W], always finite: a token without any attention counts as log(2**-126).
    """
    logs = tf.math.log(tf.clip_by_value(coverage, _SMALLEST, 1.0))
    return beta * tf.reduce_sum(logs, axis=-1)


def final_scores(
    log_probs: Tensor, penalty: Tensor, coverage: Tensor | None, beta: Tensor
) -> Tensor:
    """Returns log P(Y) / length penalty + coverage penalty (Wu et al. 2016, eq. 14).

    Args:
        log_probs: float32 [B, N], of complete translations; -inf for those that do not exist.
        penalty: float32 [B, 1], finite, the length penalty of their length, EOS included.
        coverage: float32 [B, N, S], see `DecodingState`; None without a coverage penalty.
        beta: float32 [B, 1], weight of the coverage penalty.
    """
    scores = log_probs / penalty
    return scores if coverage is None else scores + coverage_penalty(coverage, beta)


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns what `tf.math.top_k` returns, several times as fast on a CPU for long rows.

    Rows are cut into blocks. The k largest numbers lie in the k blocks with the largest maxima, and
    maxima are cheap, so only these blocks are sorted. Ties go to the lower index: at most k - 1
    blocks come before the block of a number that belongs to the top, either by a larger maximum or
    by a lower index.

    Args:
        values: float [..., any], its last dimension static.
        k: how many, at most as many as a row has.

    Returns:
        The values, largest first, and their int32 indices, both [..., k].
    """
    width = values.shape[-1]
    # A divisor of the width saves padding, and multiples of 8 fill vector registers.
    sizes = (size for size in range(48, 128) if width % size == 0)
    size = min(sizes, key=lambda size: (size % 8 > 0, abs(size - 64)), default=64)
    if width < 4 * k * size:  # so few blocks that most would be chosen
        return tf.math.top_k(values, k)
    padding = -width % size
    rows = tf.reshape(values, [-1, width])
    rows = tf.pad(rows, [[0, 0], [0, padding]], constant_values=IMPOSSIBLE) if padding else rows
    blocks = tf.reshape(rows, [-1, (width + padding) // size, size])
    maxima = tf.reduce_max(blocks, axis=2)
    chosen = -tf.math.top_k(-tf.math.top_k(maxima, k).indices, k).values  # [rows, k], rising
    numbers = tf.reshape(tf.gather(blocks, chosen, batch_dims=1), [-1, k * size])
    top, places = tf.math.top_k(numbers, k)
    index = tf.gather(chosen, places // size, batch_dims=1) * size + places % size
    shape = [*tf.unstack(tf.shape(values)[:-1]), k]
    return tf.reshape(top, shape), tf.reshape(index, shape)
