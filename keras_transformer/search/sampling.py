"""Sampling: each next token is drawn from the model's distribution.

A draw depends only on logits, seed, hypothesis and time: no generator has a state that changes from
request to request, or with the other sentences of a batch. TensorFlow's stateless generators take
one seed for a whole tensor, so the numbers come from a hash of integers, which is the same on any
server and under XLA.

Shapes: B sentences, W samples a sentence, V vocabulary, G groups of S tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import IMPOSSIBLE, DecodingState, StepFunction, Tensor
from keras_transformer.search.beam import (
    advance,
    collect_finished,
    rank_next_tokens,
    read_rules,
    run_model,
)
from keras_transformer.search.constraints import Constraint, forbid_ids, indices_of
from keras_transformer.search.loop import (
    Hypotheses,
    SearchSpec,
    SentenceInputs,
    State,
    run_search,
    start_search,
)
from keras_transformer.search.scoring import NOTHING, cut_into_blocks, is_possible, top_k_of_rows

_LOWEST_TEMPERATURE = 1e-6  # below it logits might overflow; samples are the best tokens by then
_FEW = 256  # candidates, which nearly always hold all that sampling keeps


def sample(
    step: StepFunction,
    state: DecodingState,
    *,
    max_lengths: Tensor,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    **options: Any,
) -> Hypotheses:
    """Samples translations token by token, best scores first.

    Temperature and filters do not change scores and log-probabilities, which are the model's. A
    sentence gets the same samples in any batch.

    Args:
        step, state, max_lengths, constraints, max_length_bound: as in `beam_search`; the state is
            made for W = `num_translations` hypotheses.
        **options: fields of `SearchConfig`: `num_translations`, `length_penalty_form`; and, each a
            number or [B], `temperature`, `top_k`, `top_p`, `seed`, `length_penalty` and
            `coverage_penalty`. With one seed the samples of different sentences are correlated;
            `sentence_seeds` gives each its own.

    Raises:
        InputError: an option is unknown or out of range, see `SearchConfig`.
    """
    start = start_search(
        "sampling", step, state, max_lengths, constraints, max_length_bound, options
    )
    return run_search(_step, *start)


def _step(spec: SearchSpec, inputs: SentenceInputs, state: State) -> State:
    """Continues each hypothesis by one sampled token."""
    logits, state = run_model(spec, inputs, state)
    rules = read_rules(spec, inputs, state)
    blocks, largest, rest = rank_next_tokens(logits, spec, rules)
    width = spec.num_hypotheses
    values = tf.reshape(blocks.values, [-1, width, math.prod(blocks.values.shape[2:])])
    log_probs = values[..., : logits.shape[2]] - largest[..., None] - rest[..., None]
    log_probs = forbid_ids(log_probs, rules.forbidden_ids)  # [B, W, V]
    options = inputs.options
    # Forbidden tokens stay finite. Low temperatures make probable tokens more probable.
    divisor = tf.maximum(options["temperature"], _LOWEST_TEMPERATURE)[:, None, None]
    filtered = tf.maximum(log_probs, NOTHING) / divisor
    filtered = keep_most_probable(filtered, options["top_k"], options["top_p"])
    filtered = tf.ensure_shape(filtered, [None, width, None])
    ids = draw_tokens(filtered, options["seed"], state.time)  # [B, W]
    # Where every token is forbidden, so is the one that was drawn.
    totals = state.log_probs + tf.gather(log_probs, ids, batch_dims=2)
    totals = tf.where(is_possible(totals), totals, NOTHING)
    has_ended = ids == EOS_ID
    places = tf.zeros_like(ids) + tf.range(width)
    ending = tf.where(has_ended, totals, NOTHING)
    finished = collect_finished(spec, inputs, state, ending, places)
    return advance(spec, inputs, state, ids)._replace(
        log_probs=tf.where(has_ended, NOTHING, totals), finished=finished
    )


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
    size = logits.shape[-1]
    is_filtered = ((top_k > 0) | (top_p < 1.0))[:, None, None]

    def changed() -> Tensor:
        # Sorting the vocabulary takes long: first see whether few candidates are enough.
        filtered, is_sure = _filter_best(logits, min(_FEW, size), top_k, top_p)
        filtered = tf.cond(
            tf.reduce_all(is_sure | ~is_filtered),
            lambda: filtered,
            lambda: tf.where(is_sure, filtered, _filter_best(logits, size, top_k, top_p)[0]),
        )
        return tf.where(is_filtered, filtered, logits)

    return tf.cond(tf.reduce_any(is_filtered), changed, lambda: logits)


def _filter_best(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Filters the `count` most probable tokens; all others are forbidden.

    Returns:
        Logits [B, W, V], and whether more candidates would give the same ones, bool [B, W, 1].
    """
    width, size = logits.shape[1:]
    limit = tf.where(top_k > 0, tf.minimum(top_k, size), size)[:, None, None]
    share = top_p[:, None, None]
    rows = tf.reshape(logits, [-1, 1, size])
    best, _, ids = top_k_of_rows(cut_into_blocks(rows, count), count)
    best, ids = (tf.reshape(part, [-1, width, count]) for part in (best, ids))
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
    token of that group. One float32 sum over a large vocabulary would lose its rare tokens.

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
    """Finds the entry at which the cumulative share of weights [..., N] exceeds the number.

    An entry of weight 0 is never returned if there is another one, however sums are rounded:
    it counts as 0, which exceeds nothing, and the largest of the others exceeds every share.
    """
    sums = tf.where(weights > 0, tf.cumsum(weights, axis=-1), 0.0)
    reached = sums > (number * tf.reduce_max(sums, axis=-1))[..., None]
    return tf.argmax(tf.cast(reached, tf.int32), axis=-1, output_type=tf.int32)


def _uniform(seeds: Tensor, width: int, time: Tensor) -> Tensor:
    """Two float32 numbers in [0, 1) for each hypothesis, [B, width, 2], multiples of 2**-24."""
    state = _mix(tf.cast(tf.cast(seeds, tf.int64), tf.uint64))[:, None]  # [B, 1]
    state = _mix(state + tf.cast(time, tf.uint64))
    state = _mix(state + tf.cast(tf.range(width), tf.uint64))  # [B, width]
    shifts = tf.constant([40, 8], tf.uint64)  # two times 24 of the 64 bits
    bits = tf.bitwise.right_shift(state[..., None], shifts)
    return tf.cast(bits & tf.constant(0xFFFFFF, tf.uint64), tf.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    """Hashes uint64 numbers: one step of SplitMix64 (Steele, Lea and Flood 2014, figure 17)."""
    state += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = tf.bitwise.bitwise_xor(
            state, tf.bitwise.right_shift(state, tf.cast(shift, tf.uint64))
        )
        state *= tf.constant(factor, tf.uint64)
    return state


def sentence_seeds(seeds: Tensor, source: Tensor) -> Tensor:
    """Makes a seed for each sentence, so that different sentences get independent samples.

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
