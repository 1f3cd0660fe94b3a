"""Sampling: each next token is drawn from the model's distribution.

Shapes: B sentences, N samples a sentence, V vocabulary.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.errors import InputError
from keras_transformer.search.beam import (
    ConstrainedLogits,
    Hypotheses,
    SearchSpec,
    SentenceInputs,
    prepare_search,
    search_single_path,
)
from keras_transformer.search.constraints import (
    FORBIDDEN,
    Constraint,
    apply_temperature,
    keep_most_probable,
)

# Samples of the next tokens that depend on nothing but logits, seed, hypothesis and time.
#
# There is no generator whose state would change from request to request or with the other sentences
# of a batch. All is integer and float arithmetic, so the same graph runs on any server and under
# XLA. Shapes: B sentences, W hypotheses a sentence, V vocabulary, G groups of S tokens.

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


def sample(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    num_translations: int = 1,
    temperature: Tensor = 1.0,
    top_k: Tensor = 0,
    top_p: Tensor = 1.0,
    seed: Tensor = 0,
    length_penalty: Tensor = 0.0,
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns translations that are sampled token by token, those of the best scores first.

    Scores and log-probabilities are those of the model, whatever temperature and filters make of
    its distribution. A sentence gets the same samples in any batch.

    Args:
        step, state, bos_ids, max_lengths: as in `beam_search`.
        num_translations: N, samples of each sentence, that the state was made for.
        temperature: what logits are divided by, a number or float [B].
        top_k: tokens to sample from; 0 means all; a number or int [B].
        top_p: probability of the tokens to sample from, a number or float [B].
        seed: a number or int [B]. With one number the samples of different sentences are
            correlated; `sentence_seeds` gives each a seed of its own.
        length_penalty: as in `beam_search`, but 0 by default.
        length_penalty_form, coverage_penalty, constraints, max_length_bound, vocabulary, eos_id,
            pad_id: as in `beam_search`.

    Raises:
        InputError: `num_translations` is below 1, or EOS = PAD.
    """
    if num_translations < 1:
        raise InputError(f"num_translations must be at least 1, got {num_translations}")
    spec, inputs, loop_state = prepare_search(
        step,
        state,
        num_translations,
        bos_ids=bos_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        constraints=constraints,
        max_length_bound=max_length_bound,
        vocabulary=vocabulary,
        reads_logits=True,
        eos_id=eos_id,
        pad_id=pad_id,
        options=dict(
            temperature=tf.cast(temperature, tf.float32),
            top_k=tf.cast(top_k, tf.int32),
            top_p=tf.cast(top_p, tf.float32),
            seed=tf.cast(seed, tf.int64),
        ),
    )
    return search_single_path(
        spec,
        inputs,
        loop_state,
        lambda constrained, time, inputs: _sample_tokens(constrained, time, inputs, spec),
    )


def _sample_tokens(
    constrained: ConstrainedLogits, time: Tensor, inputs: SentenceInputs, spec: SearchSpec
) -> tuple[Tensor, Tensor]:
    """Returns sampled tokens and their log-probabilities, both [B, N]."""
    logits = constrained.logits
    ids = tf.range(logits.shape[-1])  # [V]
    allowed = tf.where(constrained.is_forbidden(ids), FORBIDDEN, constrained.allowed)
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    only_eos = tf.where(ids == spec.eos_id, logits, FORBIDDEN)
    allowed = tf.where(must_end, only_eos, allowed)
    allowed = apply_temperature(allowed, inputs.options["temperature"])
    allowed = keep_most_probable(allowed, inputs.options["top_k"], inputs.options["top_p"])
    ids = draw_tokens(allowed, inputs.options["seed"], time)  # [B, N]
    log_probs = tf.gather(logits, ids, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    # Where every token is forbidden, so is the one that was drawn.
    is_possible = tf.gather(allowed, ids, batch_dims=2) > FORBIDDEN
    return ids, tf.where(is_possible, log_probs, FORBIDDEN)
