"""Beam search with length and coverage penalties, in groups if so wished.

Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7.

Shapes: B sentences, G groups, A hypotheses ("beams") of a group, W = G * A of a sentence, K
candidates of a beam, C of a group, N hypotheses a sentence that are returned, L their longest
length, V vocabulary.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding import DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import scoring
from keras_transformer.search.constraints import adjust, restrict
from keras_transformer.search.decode_loop import decode_loop
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import (
    Finished,
    Hypotheses,
    best_of,
    make_hypotheses,
    none_finished,
)
from keras_transformer.search.loop_state import (
    LoopState,
    SearchSpec,
    SentenceInputs,
    extend,
    prepare_search,
    read,
    widen,
)
from keras_transformer.search.phrase_constraints import phrase_progress, spread_over_banks
from keras_transformer.search.scoring import IMPOSSIBLE


class _Beams(NamedTuple):
    """Open hypotheses ("beams") and finished ones. Those that do not exist are at -inf."""

    log_probs: Tensor  # float32 [B, W]
    loop_state: LoopState
    best: tuple[Finished, ...]  # of each group, best first


class _Candidates(NamedTuple):
    """Continuations of the beams of one group."""

    log_probs: Tensor  # float32 [B, C], -inf where impossible
    parents: Tensor  # int32 [B, C], the beams that they continue, 0 to W - 1
    ids: Tensor  # int32 [B, C]


def beam_search(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    beam_size: int = 4,
    length_penalty: Tensor = 0.6,
    num_translations: int = 1,
    beam_groups: int = 1,
    diversity_penalty: Tensor = 0.5,
    **options: Any,
) -> Hypotheses:
    """Returns the best translations that a beam of `beam_size` hypotheses finds.

    A hypothesis Y is worth log P(Y) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, eq. 14), where
    |Y| counts EOS, and its coverage penalty if there is one. At each step every open hypothesis
    of a sentence is continued. Those of the `beam_size` most probable continuations that end are
    finished, and the best `beam_size` that do not end stay open. (An EOS that is less probable
    than a whole beam of other continuations finishes nothing: it would mostly be too early.) A
    hypothesis with `max_lengths` tokens can only take EOS, at EOS's true probability, so every
    result is complete. A sentence is done when no open hypothesis can come to beat its N best
    finished ones; from then on it does not change, so a sentence gets the same translation in any
    batch.

    Of several groups (Vijayakumar et al. 2018) each searches so with its share of the beam, the
    earlier ones first. What they choose at a step counts as less probable for the others at that
    step; scores are not touched. Each group finishes its share of the N hypotheses.

    Where phrases are required, open hypotheses of every degree of progress are kept, not only the
    most probable ones (see `phrases`).

    Probabilities are over the whole vocabulary, though PAD and BOS are never
    generated. All is counted in float32. Among equals the lower beam and then the lower id wins.
    With `beam_size` 1 this is `greedy_search`, which ends at the first EOS.

    Args:
        step: gives logits [B, W, V] of the token after ids [B, W], and the next state.
        state: what the model knows before BOS, made for W = `beam_size` hypotheses; with
            coverage where there is to be a coverage penalty.
        bos_ids: int [B], the token that each translation starts with; not in the result.
        max_lengths: int [B], tokens a translation may have before EOS; 0 or more.
        beam_size: hypotheses that stay open, W.
        length_penalty: alpha, a number or float [B].
        num_translations: N, at most `beam_size`.
        beam_groups: G, a divisor of `beam_size`.
        diversity_penalty: what a token's log-probability loses for each beam of an earlier group
            that takes it at the same step; a number or float [B]. Without groups it has no use.
        **options: coverage_penalty, beta, a number or float [B] (0); constraints, see
            `Constraints`; longest, a number that no max length exceeds (larger ones are cut to it),
            where shapes must be known before the graph runs, as for XLA: it makes
            L = `longest` + 1, else L is the largest of `max_lengths` + 1; eos_id and pad_id, the
            tokens that complete a translation and that fill up after it.

    Raises:
        InputError: `beam_size` below 1, `num_translations` not in 1 to `beam_size`, groups of
            unequal size, or EOS = PAD.
    """
    if not 1 <= num_translations <= beam_size:
        raise InputError(
            f"num_translations must be from 1 to beam_size, got {num_translations} with beam_size "
            f"{beam_size}; raise beam_size or ask for fewer"
        )
    if beam_groups < 1 or beam_size % beam_groups:
        raise InputError(
            f"beam_groups must divide beam_size, got {beam_groups} with beam_size {beam_size}"
        )
    options |= dict(bos_ids=bos_ids, max_lengths=max_lengths, length_penalty=length_penalty)
    if beam_size == 1:
        return greedy_search(step, state, **options)
    own = {"diversity_penalty": tf.cast(diversity_penalty, tf.float32)} if beam_groups > 1 else {}
    spec, inputs, loop_state = prepare_search(step, state, beam_size, own=own, **options)
    # One empty hypothesis of each group; the others do not exist yet.
    first = tf.where(tf.range(beam_size) % (beam_size // beam_groups) == 0, 0.0, IMPOSSIBLE)  # [W]
    share = -(-num_translations // beam_groups)
    best = decode_loop(
        lambda time, inputs, beams, capacity: _advance(time, inputs, beams, capacity, spec),
        inputs,
        _Beams(
            log_probs=tf.broadcast_to(first, tf.shape(loop_state.ids)),
            loop_state=loop_state,
            best=tuple(none_finished(loop_state.tokens, share) for _ in range(beam_groups)),
        ),
        is_open=lambda beams: tf.reduce_max(beams.log_probs, axis=1) > IMPOSSIBLE,
        result_of=lambda beams: beams.best,
        widen=lambda beams, *sizes: beams._replace(loop_state=widen(beams.loop_state, *sizes)),
        most=spec.length,
        capacities=spec.capacities,
    )
    return make_hypotheses(best_of(best, num_translations), spec)


def _advance(
    time: Tensor, inputs: SentenceInputs, beams: _Beams, capacity: int | None, spec: SearchSpec
) -> _Beams:
    """Reads the last token of every beam and replaces the beams with their best continuations."""
    logits, loop_state = read(spec, inputs, beams.loop_state, time, capacity)
    logits = adjust(logits, loop_state.tokens, inputs.constraints)
    allowed, progress = restrict(
        logits, loop_state.tokens, time, inputs.constraints, inputs.max_lengths, spec.eos_id
    )
    size = spec.num_hypotheses // len(beams.best)
    # Of a beam's continuations, 2A are enough, and one more for each that earlier groups may take.
    count = 2 * size + (spec.num_hypotheses - size)
    extra_ids = None if progress is None else progress.next_ids
    gains, ids = scoring.next_tokens(logits, allowed, count, time, inputs, spec, extra_ids)

    best: list[Finished] = []
    kept: list[_Candidates] = []
    for group, old in enumerate(beams.best):
        candidates = _candidates(beams.log_probs, gains, ids, group * size, size)
        order = _order(time, inputs, loop_state, candidates, 2 * size, kept, spec)
        candidates = _take(candidates, order)
        first = _Candidates(*(part[:, :size] for part in candidates))
        best.append(_finish(time, inputs, loop_state, old, first, spec))
        kept.append(_keep_open(candidates, size, spec))
    log_probs, parents, ids = (tf.concat(parts, axis=1) for parts in zip(*kept, strict=True))
    return _Beams(
        # Without an open hypothesis a sentence finishes no more, and so stays as it is.
        log_probs=tf.where(_may_improve(time, best, kept, inputs), log_probs, IMPOSSIBLE),
        loop_state=extend(spec, loop_state, ids, parents, time),
        best=tuple(best),
    )


def _candidates(
    log_probs: Tensor, gains: Tensor, ids: Tensor, first: int, size: int
) -> _Candidates:
    """Returns all continuations of the `size` beams of a group, whose first has number `first`."""
    beams = slice(first, first + size)
    log_probs = log_probs[:, beams, None] + gains[:, beams]  # [B, A, K]
    parents = tf.range(first, first + size)[:, None] + tf.zeros_like(ids[:, beams])
    width = gains.shape[2]
    if width is None:  # the number of phrases that are required changes from batch to batch
        width = tf.shape(gains)[2]
    parts = (log_probs, parents, ids[:, beams])
    return _Candidates(*(tf.reshape(part, [-1, size * width]) for part in parts))


def _order(
    time: Tensor,
    inputs: SentenceInputs,
    loop_state: LoopState,
    candidates: _Candidates,
    count: int,
    earlier: list[_Candidates],
    spec: SearchSpec,
) -> Tensor:
    """Returns the places of the `count` candidates to look at, int32 [B, count], best first."""
    value = candidates.log_probs  # [B, C]
    for kept in earlier:
        is_taken = tf.equal(candidates.ids[..., None], kept.ids[:, None])  # [B, C, A]
        times = tf.math.count_nonzero(is_taken, axis=-1, dtype=tf.float32)
        value -= inputs.options["diversity_penalty"][:, None] * times
    phrases = inputs.constraints.get("required_phrases")
    if phrases is None:
        return tf.math.top_k(value, count).indices
    tokens = tf.gather(loop_state.tokens, candidates.parents, batch_dims=1)  # [B, C, L]
    tokens = tf.where(spec.positions() == time, candidates.ids[..., None], tokens)
    return spread_over_banks(value, phrase_progress(tokens, time + 1, phrases).bank, count)


def _take(candidates: _Candidates, index: Tensor) -> _Candidates:
    return _Candidates(*(tf.gather(part, index, batch_dims=1) for part in candidates))


def _finish(
    time: Tensor,
    inputs: SentenceInputs,
    loop_state: LoopState,
    old: Finished,
    candidates: _Candidates,
    spec: SearchSpec,
) -> Finished:
    """Returns the best of the old finished hypotheses and of the candidates that end."""
    has_ended = tf.equal(candidates.ids, spec.eos_id)
    log_probs = tf.where(has_ended, candidates.log_probs, IMPOSSIBLE)
    coverage = loop_state.model.get("coverage")
    if coverage is not None:
        coverage = tf.gather(coverage, candidates.parents, batch_dims=1)  # [B, C, S]
    new = Finished(
        scores=scoring.final_scores(log_probs, time + 1, coverage, inputs),
        log_probs=log_probs,
        tokens=tf.gather(loop_state.tokens, candidates.parents, batch_dims=1),
        lengths=tf.zeros_like(candidates.ids) + time + 1,
    )
    return best_of([old, new], old.scores.shape[1])


def _keep_open(candidates: _Candidates, count: int, spec: SearchSpec) -> _Candidates:
    """Returns the first `count` of 2 * `count` candidates that do not end.

    No more than one continuation of a beam ends: at least `count` do not. What is impossible
    becomes PAD, which is no group's choice.
    """
    is_open = (candidates.ids != spec.eos_id) & (candidates.log_probs > IMPOSSIBLE)
    places = tf.range(2 * count)
    _, index = tf.math.top_k(tf.where(is_open, -places, -2 * count), count)
    kept = _take(candidates, index)
    is_open = tf.gather(is_open, index, batch_dims=1)
    return kept._replace(
        log_probs=tf.where(is_open, kept.log_probs, IMPOSSIBLE),
        ids=tf.where(is_open, kept.ids, spec.pad_id),
    )


def _may_improve(
    time: Tensor, best: list[Finished], kept: list[_Candidates], inputs: SentenceInputs
) -> Tensor:
    """Returns whether an open hypothesis can come to beat a finished one of its group, [B, 1].

    A log-probability, at most 0, only falls, and the coverage penalty is at most 0. The length
    penalty is at most that of the shortest translation to come or that of the longest, as alpha
    is negative or positive. Groups stop together, since what one chooses matters to the next.
    """
    shortest = scoring.length_penalty(time + 2, inputs.alpha)  # a token more, and EOS
    longest = scoring.length_penalty(inputs.max_lengths + 1, inputs.alpha)
    bounds = tf.maximum(shortest, longest)[:, None]  # [B, 1]
    largest = tf.stack([tf.reduce_max(group.log_probs, axis=1) for group in kept], axis=1)  # [B, G]
    worst = tf.stack([group.scores[:, -1] for group in best], axis=1)
    return tf.reduce_any(largest / bounds > worst, axis=1, keepdims=True)
