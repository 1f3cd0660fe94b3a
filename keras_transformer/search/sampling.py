"""Sampling: each next token is drawn from the model's distribution.

A draw depends only on logits, seed, hypothesis and time: no generator has a state that changes from
request to request, or with the other sentences of a batch. It is integer and float arithmetic, so
the same graph runs on any server and under XLA.

Shapes: B sentences, W samples a sentence, V vocabulary, G groups of S tokens.
"""

import math
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import IMPOSSIBLE, DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.beam import extend, finish, next_log_probs, read, read_rules
from keras_transformer.search.constraints import indices_of
from keras_transformer.search.loop import (
    Hypotheses,
    SearchSpec,
    SentenceInputs,
    State,
    run_search,
    start_search,
)
from keras_transformer.search.scoring import NOTHING, exists
from keras_transformer.search.scoring import top_k as find_top_k


def sample(
    step: StepFunction,
    state: DecodingState,
    *,
    num_translations: int = 1,
    temperature: Tensor = 1.0,
    top_k: Tensor = 0,
    top_p: Tensor = 1.0,
    seed: Tensor = 0,
    length_penalty: Tensor = 0.0,
    **arguments: Any,
) -> Hypotheses:
    """Returns translations sampled token by token, best scores first.

    Temperature and filters do not change scores and log-probabilities, which are the model's. A
    sentence gets the same samples in any batch.

    Args:
        step, state: as in `beam_search`.
        num_translations: samples of each sentence, W, that the state was made for.
        temperature: what logits are divided by, a number or float [B].
        top_k: tokens to sample from; 0 means all; a number or int [B].
        top_p: probability of the tokens to sample from, a number or float [B].
        seed: a number or int [B]. With one number the samples of different sentences are
            correlated; `sentence_seeds` gives each its own seed.
        length_penalty: as in `beam_search`, but 0 by default.
        **arguments: as in `beam_search`: `bos_ids` and `max_lengths`, and optionally
            `length_penalty_form`, `coverage_penalty`, `constraints`, `max_length_bound`,
            `eos_id` and `pad_id`.

    Raises:
        InputError: `num_translations` is below 1, or EOS = PAD.
    """
    if num_translations < 1:
        raise InputError(f"num_translations must be at least 1, got {num_translations}")
    options = dict(
        temperature=tf.cast(temperature, tf.float32),
        top_k=tf.cast(top_k, tf.int32),
        top_p=tf.cast(top_p, tf.float32),
        seed=tf.cast(seed, tf.int64),
    )
    return run_search(
        _step,
        *start_search(
            step,
            state,
            num_translations,
            length_penalty=length_penalty,
            options=options,
            **arguments,
        ),
    )


def _step(spec: SearchSpec, inputs: SentenceInputs, state: State) -> State:
    """Continues each hypothesis by one sampled token."""
    logits, state = read(spec, state)
    log_probs = next_log_probs(logits, spec, read_rules(spec, inputs, state))  # [B, W, V]
    options = inputs.options
    filtered = apply_temperature(log_probs, options["temperature"])
    filtered = keep_most_probable(filtered, options["top_k"], options["top_p"])
    filtered = tf.ensure_shape(filtered, [None, spec.num_hypotheses, None])
    ids = draw_tokens(filtered, options["seed"], state.time)  # [B, W]
    # Where every token is forbidden, so is the one that was drawn.
    totals = state.log_probs + tf.gather(log_probs, ids, batch_dims=2)
    totals = tf.where(exists(totals), totals, NOTHING)
    has_ended = ids == spec.eos_id
    places = tf.zeros_like(ids) + tf.range(spec.num_hypotheses)
    finished = finish(spec, inputs, state, tf.where(has_ended, totals, NOTHING), places)
    return extend(spec, inputs, state, ids)._replace(
        log_probs=tf.where(has_ended, NOTHING, totals), finished=finished
    )


_LOWEST_TEMPERATURE = 1e-6  # below it logits might overflow; samples are the best tokens by then
_FEW = 256  # candidates, which nearly always hold all that sampling keeps
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Returns logits divided by the temperature, float32 [B] above 0; 1 is neutral.

    Low temperatures make probable tokens more probable (Ackley, Hinton and Sejnowski 1985).
    Forbidden tokens stay finite.
    """
    logits = tf.maximum(logits, NOTHING)
    divisor = tf.maximum(temperature, _LOWEST_TEMPERATURE)[:, None, None]
    is_neutral = tf.reduce_all(temperature == 1.0)
    return tf.cond(is_neutral, lambda: logits, lambda: logits / divisor)


def keep_most_probable(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Forbids all but the most probable tokens, for sampling.

    First the `top_k` most probable tokens are kept (Fan et al. 2018), then of these the fewest
    that together have `top_p` of their probability (nucleus sampling, Holtzman et al. 2020, 3.1).
    Of equally probable tokens the lower id comes first. At least one token is kept.

    Args:
        logits: of the next tokens.
        top_k: int32 [B]; 0 is neutral.
        top_p: float32 [B], a probability; 1 is neutral.
    """
    is_filtered = ((top_k > 0) | (top_p < 1.0))[:, None, None]

    def changed() -> Tensor:
        # Sorting the vocabulary takes long: first see whether few candidates are enough.
        filtered, is_sure = _filter_best(logits, min(_FEW, logits.shape[-1]), top_k, top_p)
        filtered = tf.cond(
            tf.reduce_all(is_sure | ~is_filtered),
            lambda: filtered,
            lambda: tf.where(
                is_sure, filtered, _filter_best(logits, logits.shape[-1], top_k, top_p)[0]
            ),
        )
        return tf.where(is_filtered, filtered, logits)

    return tf.cond(tf.reduce_any(is_filtered), changed, lambda: logits)


def _filter_best(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Filters the `count` most probable tokens; all others are forbidden.

    Returns:
        Logits [B, W, V], and whether more candidates would give the same ones, bool [B, W, 1].
    """
    size = logits.shape[-1]
    limit = tf.where(top_k > 0, tf.minimum(top_k, size), size)[:, None, None]
    share = top_p[:, None, None]
    best, ids = find_top_k(logits, count)  # [B, W, count]
    largest = best[..., :1]
    weights = tf.where(tf.range(count) < limit, tf.exp(best - largest), 0.0)
    all_weights = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    limited_weights = tf.reduce_sum(weights, axis=-1, keepdims=True)
    bound = share * tf.where(limit < size, limited_weights, all_weights)  # [B, W, 1]
    is_needed = (tf.cumsum(weights, axis=-1, exclusive=True) < bound) | (share >= 1.0)
    is_kept = is_needed & (tf.range(count) < limit) | (tf.range(count) == 0)
    is_sure = (limit <= count) | ((limit == size) & ~is_kept[..., -1:])
    best = tf.where(is_kept, best, IMPOSSIBLE)
    nothing = tf.fill(tf.shape(logits), IMPOSSIBLE)
    return tf.tensor_scatter_nd_max(nothing, indices_of(ids), best), is_sure


def draw_tokens(logits: Tensor, seeds: Tensor, time: Tensor) -> Tensor:
    """Samples a token for each hypothesis from the softmax of its logits.

    Inverts the cumulative distribution twice: for a group of neighbouring tokens, then for a
    token of that group. Sums stay short, and so exact to a few units in the last place, where
    one float32 sum over a large vocabulary would lose its rare tokens.

    Args:
        logits: float32 [B, W, V], V static; `NOTHING` or less where forbidden.
        seeds: int32 or int64 [B] or [1]. Sentences with the same seed and logits get the same
            samples; hypotheses of a sentence, and times, get independent ones.
        time: int32 [], tokens that the hypotheses have.

    Returns:
        int32 [B, W] ids, never of a forbidden token; 0 where all are forbidden.
    """
    size = math.isqrt(logits.shape[-1] - 1) + 1
    num_groups = -(-logits.shape[-1] // size)
    # Not -inf, which would turn a row of -inf into NaN.
    largest = tf.maximum(tf.reduce_max(logits, axis=-1, keepdims=True), IMPOSSIBLE)
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
