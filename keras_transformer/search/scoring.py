"""Scores: length and coverage penalties, normalized logits, and the top k of long rows.

Shapes: B sentences, W hypotheses a sentence, S source length, V vocabulary, N translations.
"""

from typing import NamedTuple

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


# Top k of long rows. Rows are cut into blocks. The k largest numbers lie in the k blocks with the
# largest maxima, and maxima are cheap, so only these blocks are sorted. Ties go to the lower index,
# as in `tf.math.top_k`: at most k - 1 blocks come before the block of a number that belongs to the
# top, either by a larger maximum or by a lower index.
#
# Shapes: B sentences, R rows of each, V numbers of a row, G blocks of a row, N of a block.


class Blocks(NamedTuple):
    """Rows cut into blocks; the last one may be padded with -inf."""

    values: Tensor  # float [B, R, G, N]
    maxima: Tensor  # float [B, R, G]


def in_blocks(values: Tensor, k: int, rows_of_set: int = 1) -> Blocks:
    """Cuts rows [B, R, V], R static, for the `k` largest of every `rows_of_set` rows."""
    width = values.shape[2]
    if width is None:  # a subset of the vocabulary, which is small
        width = tf.shape(values)[2]
        size = tf.where(rows_of_set * width < 4 * k * 16, 1, 16)
        padding = tf.maximum(-width % size, -(-k // rows_of_set) - width)  # k numbers at least
    else:
        # A divisor of V saves padding, and multiples of 8 fill vector registers.
        sizes = (size for size in range(48, 128) if width % size == 0)
        size = min(sizes, key=lambda size: (size % 8 > 0, abs(size - 64)), default=64)
        if rows_of_set * width < 4 * k * size:  # so few blocks that most would be chosen
            return Blocks(values[..., None], values)
        padding = -width % size
    if not isinstance(padding, int) or padding:
        values = tf.pad(values, [[0, 0], [0, 0], [0, padding]], constant_values=IMPOSSIBLE)
    values = tf.reshape(values, [-1, values.shape[1], (width + padding) // size, size])
    return Blocks(values, tf.reduce_max(values, axis=3))


def top_k_of_blocks(
    blocks: Blocks, k: int, offsets: Tensor, num_sets: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the k largest numbers of each set of rows, largest first.

    Args:
        blocks: of all rows.
        k: how many, at most the number of blocks in a set.
        offsets: float [B, R], added to the numbers of each row.
        num_sets: number of sets; each has R / num_sets consecutive rows.

    Returns:
        The numbers, the row of each (int32, 0 to R - 1) and its place in that row, all
        [B, num_sets, k].
    """
    num_rows = blocks.values.shape[1]
    dynamic = tf.shape(blocks.values)
    num_blocks, size = (blocks.values.shape[axis] or dynamic[axis] for axis in (2, 3))
    rows_of_set = num_rows // num_sets
    maxima = tf.reshape(blocks.maxima + offsets[:, :, None], [-1, rows_of_set * num_blocks])
    best = -tf.math.top_k(-tf.math.top_k(maxima, k).indices, k).values  # [B * num_sets, k], rising
    chosen = tf.gather(
        tf.reshape(blocks.values, [-1, rows_of_set * num_blocks, size]), best, batch_dims=1
    )
    offsets = tf.reshape(offsets, [-1, rows_of_set])
    chosen += tf.gather(offsets, best // num_blocks, batch_dims=1)[..., None]
    top, index = tf.math.top_k(tf.reshape(chosen, [-1, k * size]), k)
    block = tf.reshape(tf.gather(best, index // size, batch_dims=1), [-1, num_sets, k])
    row = block // num_blocks + tf.range(0, num_rows, rows_of_set)[:, None]
    place = block % num_blocks * size + tf.reshape(index % size, [-1, num_sets, k])
    return tf.reshape(top, [-1, num_sets, k]), row, place


def find_top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns what `tf.math.top_k` returns, three times as fast on a CPU for long rows.

    Args:
        values: float [B, R, V], R and V static.
        k: how many, at most V.

    Returns:
        The values, largest first, and their int32 indices, both [B, R, k].
    """
    offsets = tf.zeros(tf.shape(values)[:2], values.dtype)
    top, _, place = top_k_of_blocks(in_blocks(values, k), k, offsets, values.shape[1])
    return top, place


# Below this limit, float32 holds the exponentials of logits and their sum over any vocabulary. It
# is far from overflow, so that the difference of two logits loses no digit that matters.
_SMALL = 64.0


def normalize(logits: Tensor, allowed: Tensor, blocks: Blocks) -> tuple[Blocks, Tensor, Tensor]:
    """Returns the blocks of allowed logits minus a shift for each hypothesis, and the shift.

    The shift is 0 unless logits are large: subtracting it reads and writes all of them.

    Args:
        logits: float32 [B, W, V].
        allowed: the same with -inf for forbidden tokens, or `logits` itself if there are none.
        blocks: of `allowed`.

    Returns:
        The shifted blocks, the shift, and the log-sum-exp of all shifted logits; the last two are
        [B, W].
    """
    largest = tf.reduce_max(blocks.maxima if allowed is logits else logits, axis=2)  # [B, W]
    is_small = tf.reduce_all(tf.abs(largest) < _SMALL)
    shift = tf.where(is_small, 0.0, largest)

    def shifted(values: Tensor) -> Tensor:
        less = tf.reshape(shift, [-1, shift.shape[1], *[1] * (values.shape.rank - 2)])
        return tf.cond(is_small, lambda: values, lambda: values - less)

    shifted_blocks = Blocks(shifted(blocks.values), blocks.maxima - shift[..., None])
    if allowed is logits:
        total = tf.reduce_sum(tf.exp(shifted_blocks.values), axis=(2, 3))
    else:
        total = tf.reduce_sum(tf.exp(shifted(logits)), axis=2)
    return shifted_blocks, shift, tf.math.log(total)
