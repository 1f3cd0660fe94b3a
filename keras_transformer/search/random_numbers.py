"""Samples of the next tokens that depend on nothing but logits, seed, hypothesis and time.

There is no generator whose state would change from request to request or with the other sentences
of a batch. All is integer and float arithmetic, so the same graph runs on any server and under
XLA. Shapes: B sentences, W hypotheses a sentence, V vocabulary, G groups of S tokens.
"""

import math

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd


def sentence_seeds(seeds: Tensor, source: Tensor) -> Tensor:
    """Returns a seed for each sentence, so that different sentences get independent samples.

    With one seed for all of them, each step would draw the same quantile for every sentence. A
    seed depends on the sentence's tokens, and not on the rest of the batch or on padding.

    Args:
        seeds: int32 or int64 [], [1] or [B].
        source: int32 [B, S], with padding.

    Returns:
        int64 [B].
    """
    positions = tf.cast(tf.range(tf.shape(source)[1]), tf.uint64)
    tokens = _mix(_mix(tf.cast(source, tf.uint64)) + positions)  # [B, S]
    digest = tf.reduce_sum(tf.where(source == PAD_ID, tf.constant(0, tf.uint64), tokens), axis=1)
    return tf.bitcast(_mix(digest + tf.cast(tf.cast(seeds, tf.int64), tf.uint64)), tf.int64)


def draw_tokens(logits: Tensor, seeds: Tensor, time: Tensor) -> Tensor:
    """Samples a token for each hypothesis from the softmax of its logits.

    Inverts the cumulative distribution twice: for a group of neighbouring tokens, then for a
    token of that group. Sums stay short, and so exact to a few units in the last place, where
    one float32 sum over a large vocabulary would lose its rare tokens.

    Args:
        logits: float32 [B, W, V], V static; -inf where forbidden.
        seeds: int32 or int64 [B] or [1]. Sentences with the same seed and logits get the same
            samples; hypotheses of a sentence, and times, get independent ones.
        time: int32 [], tokens that the hypotheses have.

    Returns:
        int32 [B, W] ids, never of a forbidden token; 0 where all are forbidden.
    """
    size = math.isqrt(logits.shape[-1] - 1) + 1
    num_groups = -(-logits.shape[-1] // size)
    # Not -inf, which would turn a row of -inf into NaN.
    largest = tf.maximum(tf.reduce_max(logits, axis=-1, keepdims=True), tf.float32.min)
    weights = tf.exp(logits - largest)  # [B, W, V]
    weights = tf.pad(weights, [[0, 0], [0, 0], [0, num_groups * size - logits.shape[-1]]])
    groups = tf.reshape(weights, [-1, logits.shape[1], num_groups, size])  # [B, W, G, S]
    numbers = _uniform(seeds, logits.shape[1], time)  # [B, W, 2]
    group = _invert(tf.reduce_sum(groups, axis=-1), numbers[..., 0])  # [B, W]
    token = _invert(tf.gather(groups, group, batch_dims=2), numbers[..., 1])
    return group * size + token


def _invert(weights: Tensor, number: Tensor) -> Tensor:
    """Returns the entry at which the cumulative share of weights [..., N] exceeds the number.

    An entry of weight 0 is never returned if there is another one, however sums are rounded:
    it counts as 0, which exceeds nothing, and the largest of the others exceeds every share.
    """
    sums = tf.where(weights > 0, tf.cumsum(weights, axis=-1), 0.0)
    reached = sums > (number * tf.reduce_max(sums, axis=-1))[..., None]
    return tf.argmax(tf.cast(reached, tf.int32), axis=-1, output_type=tf.int32)


def _uniform(seeds: Tensor, width: int, time: Tensor) -> Tensor:
    """Returns two float32 numbers in [0, 1) for each hypothesis, [B, width, 2].

    They are multiples of 2**-24, the resolution of float32 below 1.
    """
    state = _mix(tf.cast(tf.cast(seeds, tf.int64), tf.uint64))[:, None]  # [B, 1]
    state = _mix(state + tf.cast(time, tf.uint64))
    state = _mix(state + tf.cast(tf.range(width), tf.uint64))  # [B, width]
    shifts = tf.constant([40, 8], tf.uint64)  # two times 24 of the 64 bits
    bits = tf.bitwise.right_shift(state[..., None], shifts)
    return tf.cast(bits & tf.constant(0xFFFFFF, tf.uint64), tf.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    """Hashes uint64 numbers: one step of SplitMix64 (Steele, Lea and Flood 2014, figure 17)."""
    state += tf.constant(_GOLDEN, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = _fold(state, shift) * tf.constant(factor, tf.uint64)
    return _fold(state, 31)


def _fold(state: Tensor, shift: int) -> Tensor:
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.cast(shift, tf.uint64)))
