"""Scores: length and coverage penalties, and the top k of long rows.

Shapes: B sentences, W hypotheses a sentence, S source length, V vocabulary, N translations.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding import IMPOSSIBLE, Tensor

NOTHING = -1e30  # log-probability of a hypothesis that does not exist; sums with it are finite
_LARGE = 60.0  # a logit: the sum of exponentials of a million such logits is finite
_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite, -87.3


def length_penalty(lengths: Tensor, alpha: Tensor, form: str = "gnmt") -> Tensor:
    """Computes ((5 + length) / 6) ** alpha in float32, always finite (Wu et al. 2016, eq. 14).

    Args:
        lengths: integers of any shape: tokens of the hypothesis, EOS included.
        alpha: float32 that broadcasts with `lengths`.
        form: "gnmt", or "power" for length ** alpha.

    Example:
        >>> float(length_penalty(tf.constant(7), tf.constant(1.0)))
        2.0
    """
    numbers = tf.cast(lengths, tf.float32)
    penalty = (numbers if form == "power" else (5.0 + numbers) / 6.0) ** alpha
    return tf.minimum(penalty, tf.float32.max)  # -inf divided by infinity would be NaN


def coverage_penalty(coverage: Tensor, beta: Tensor) -> Tensor:
    """Computes the addend to the score of each hypothesis (Wu et al. 2016, eq. 14).

    beta * sum over source tokens i of log(min(coverage_i, 1)): 0 if every token received a total
    attention weight of 1 or more, negative otherwise.

    Args:
        coverage: float32 [B, W, S], the attention weights that each source token received, summed
            over the tokens of the hypothesis; 1 or more for padding.
        beta: float32 [B]; 0 turns the penalty off.

    Returns:
        float32 [B, W], always finite: a token without any attention counts as log(2**-126).
    """
    logs = tf.math.log(tf.clip_by_value(coverage, _SMALLEST, 1.0))
    return beta[:, None] * tf.reduce_sum(logs, axis=-1)


def is_possible(log_probs: Tensor) -> Tensor:
    """Which log-probabilities or scores are those of hypotheses; False for NaN too."""
    return log_probs > NOTHING / 2  # sums with `NOTHING` are near it


class Blocks(NamedTuple):
    """Rows of numbers, cut into blocks: maxima are cheap, and tell where large numbers are."""

    values: Tensor  # float [B, W, blocks, size]
    maxima: Tensor  # float [B, W, blocks]


def cut_into_blocks(rows: Tensor, k: int) -> Blocks:
    """Cuts rows [B, W, V] into blocks, to find their `k` largest numbers."""
    num_rows, width = rows.shape[1:]
    # A divisor of the width saves padding, and multiples of 8 fill vector registers.
    sizes = (size for size in range(48, 160) if width % size == 0)
    size = min(sizes, key=lambda size: (size % 8 > 0, abs(size - 64)), default=64)
    if num_rows * width < 4 * k * size:  # so few blocks that most would be chosen
        size = width
    if padding := -width % size:
        rows = tf.pad(rows, [[0, 0], [0, 0], [0, padding]], constant_values=IMPOSSIBLE)
    values = tf.reshape(rows, [-1, num_rows, (width + padding) // size, size])
    return Blocks(values, tf.reduce_max(values, axis=3))


def top_k_of_rows(blocks: Blocks, k: int, *addends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the k largest numbers of each W rows, after numbers were added to each row.

    They lie in the k blocks with the largest maxima, so only these blocks are sorted. Ties go to
    the lower row, then to the lower index: at most k - 1 blocks come before the block of a number
    that belongs to the top, either by a larger maximum or by a lower place.

    Args:
        blocks: of the rows.
        k: how many, at most as many as W rows have.
        *addends: float [B, W], added one after the other: large ones first, which may cancel.

    Returns:
        The numbers, largest first, their rows, and their indices within the rows, each [B, k].
    """
    num_rows, num_blocks, size = blocks.values.shape[1:]
    if num_rows * num_blocks <= k:
        numbers = blocks.values
        for addend in addends:
            numbers += addend[..., None, None]
        top, places = tf.math.top_k(tf.reshape(numbers, [-1, num_rows * num_blocks * size]), k)
        return top, places // (num_blocks * size), places % (num_blocks * size)
    maxima = blocks.maxima
    for addend in addends:
        maxima += addend[..., None]
    maxima = tf.reshape(maxima, [-1, num_rows * num_blocks])
    chosen = -tf.math.top_k(-tf.math.top_k(maxima, k).indices, k).values  # [B, k], rising
    values = tf.reshape(blocks.values, [-1, num_rows * num_blocks, size])
    numbers = tf.gather(values, chosen, batch_dims=1)  # [B, k, size]
    for addend in addends:
        numbers += tf.gather(addend, chosen // num_blocks, batch_dims=1)[..., None]
    top, places = tf.math.top_k(tf.reshape(numbers, [-1, k * size]), k)
    block = tf.gather(chosen, places // size, batch_dims=1)
    return top, block // num_blocks, block % num_blocks * size + places % size


def log_normalizers(logits: Blocks, *, is_compiled: bool) -> tuple[Tensor, Tensor]:
    """Two parts of log(sum(exp(logits))) of each row [B, W]: the largest logit, and the rest.

    The largest logit is subtracted first, so that no exponential overflows. XLA, for which
    `is_compiled`, does that in the same pass. Without it that is a pass of its own, 4 % of a step,
    which is skipped where all logits are small.
    """
    largest = tf.reduce_max(logits.maxima, axis=2)  # [B, W]

    def log_sum(values: Tensor) -> Tensor:
        return tf.math.log(tf.reduce_sum(tf.exp(values), axis=[2, 3]))

    def shifted() -> Tensor:
        return log_sum(logits.values - largest[..., None, None])

    if is_compiled:
        return largest, shifted()
    is_small = tf.reduce_all(tf.abs(largest) < _LARGE)
    return largest, tf.cond(is_small, lambda: log_sum(logits.values) - largest, shifted)
