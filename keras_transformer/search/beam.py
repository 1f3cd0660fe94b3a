"""Beam search with length and coverage penalties, optionally in diverse groups.

Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7.

Shapes: B sentences, G groups, A hypotheses ("beams") of a group, W = G * A of a sentence, K
continuations of a set of them, C of a group, N hypotheses a sentence that are returned, L their
longest length, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.errors import InputError, check_choice
from keras_transformer.search.candidates import Candidates, best_indices, keep_open, of_group, take
from keras_transformer.search.constraints import Constraint, ProgressConstraint
from keras_transformer.search.decode_loop import decode_loop
from keras_transformer.search.early_stop import lacks_finished, may_improve
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
    prepare_search,
)
from keras_transformer.search.loop_steps import extend, grow_cache, read
from keras_transformer.search.next_tokens import best_continuations, constrain_logits
from keras_transformer.search.scoring import IMPOSSIBLE, final_scores


class _Beams(NamedTuple):
    """Open hypotheses ("beams") and finished ones. Those that do not exist are at -inf."""

    log_probs: Tensor  # float32 [B, W]
    loop_state: LoopState
    best: tuple[Finished, ...]  # of each group, best first


def beam_search(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    beam_size: int = 4,
    num_translations: int = 1,
    length_penalty: Tensor = 0.6,
    length_penalty_form: Literal["gnmt", "power"] = "gnmt",
    coverage_penalty: Tensor = 0.0,
    beam_groups: int = 1,
    diversity_penalty: Tensor = 0.5,
    early_stop: Literal["exact", "first"] = "exact",
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns the best translations that a beam of `beam_size` hypotheses finds.

    A hypothesis Y is worth log P(Y) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, eq. 14), where
    |Y| counts EOS, and its coverage penalty if there is one. At each step every open hypothesis
    of a sentence is continued. Those of the `beam_size` most probable continuations that end are
    finished, and the best `beam_size` that do not end stay open. (An EOS that is less probable
    than a whole beam of other continuations finishes nothing: it would mostly be too early.) A
    hypothesis with `max_lengths` tokens can only take EOS, at EOS's true probability, so every
    result is complete. Once a sentence is done it does not change, so it gets the same
    translation in any batch.

    With several groups (Vijayakumar et al. 2018), each searches like this with its share of the
    beam, in order. What a group chooses at a step counts as less probable for later groups at that
    step; scores are not affected. Each group finishes its share of the N hypotheses.

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
        num_translations: N, at most `beam_size`.
        length_penalty: alpha, a number or float [B].
        length_penalty_form: "gnmt" for the quotient above, "power" for |Y| ** alpha.
        coverage_penalty: beta, a number or float [B].
        beam_groups: G, a divisor of `beam_size`.
        diversity_penalty: what a token's log-probability loses for each beam of an earlier group
            that takes it at the same step; a number or float [B]. Without groups it has no use.
        early_stop: when a sentence is done. "exact": when no open hypothesis can come to beat its
            N best finished ones, so the result is that of a search to the last step. "first": as
            soon as `beam_size` hypotheses have finished (those of each group, its share), as in
            fairseq and CTranslate2: fewer steps, and longer translations may be missed.
        constraints: on the translations, see `Constraint`.
        max_length_bound: the most that `max_lengths` can be (larger ones are cut to it), where
            shapes must be known before the graph runs, as for XLA: it makes L =
            `max_length_bound` + 1, else L is the largest of `max_lengths` + 1.
        vocabulary: the tokens that `step` gives logits of, and that translations are made of, EOS
            among them; None for all. Probabilities are then over these.
        eos_id, pad_id: the tokens that complete a translation and that follow it.

    Raises:
        InputError: `beam_size` below 1, `num_translations` not in 1 to `beam_size`, groups of
            unequal size, an unknown `early_stop`, or EOS = PAD.
    """
    _check_sizes(beam_size, num_translations, beam_groups)
    check_choice("early_stop", early_stop, ("exact", "first"))
    shared: dict[str, Any] = dict(
        bos_ids=bos_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        constraints=constraints,
        max_length_bound=max_length_bound,
        vocabulary=vocabulary,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    if beam_size == 1:
        return greedy_search(step, state, **shared)
    options = {}
    if beam_groups > 1:
        options["diversity_penalty"] = tf.cast(diversity_penalty, tf.float32)
    spec, inputs, loop_state = prepare_search(step, state, beam_size, options=options, **shared)
    size = beam_size // beam_groups
    share = -(-num_translations // beam_groups)
    num_finished = size if early_stop == "first" else share  # that are kept of each group
    best = decode_loop(
        lambda time, inputs, beams, capacity: _advance(
            time, inputs, beams, capacity, spec, early_stop
        ),
        inputs,
        _first_beams(loop_state, beam_size, beam_groups, num_finished),
        is_open=lambda beams: tf.reduce_max(beams.log_probs, axis=1) > IMPOSSIBLE,
        result_of=lambda beams: beams.best,
        grow_cache=lambda beams, *sizes: beams._replace(
            loop_state=grow_cache(beams.loop_state, *sizes)
        ),
        max_steps=spec.result_length,
        capacities=spec.capacities,
    )
    best = tf.nest.map_structure(lambda leaf: leaf[:, :share], best)
    return make_hypotheses(best_of(best, num_translations), spec)


def _first_beams(
    loop_state: LoopState, beam_size: int, beam_groups: int, num_finished: int
) -> _Beams:
    """Returns an empty hypothesis of each group; the others do not exist yet."""
    is_first = tf.range(beam_size) % (beam_size // beam_groups) == 0
    first = tf.where(is_first, 0.0, IMPOSSIBLE)  # [W]
    return _Beams(
        log_probs=tf.broadcast_to(first, tf.shape(loop_state.ids)),
        loop_state=loop_state,
        best=(none_finished(loop_state.tokens, num_finished),) * beam_groups,
    )


def _check_sizes(beam_size: int, num_translations: int, beam_groups: int) -> None:
    if not 1 <= num_translations <= beam_size:
        raise InputError(
            f"num_translations must be from 1 to beam_size, got {num_translations} with beam_size "
            f"{beam_size}; raise beam_size or ask for fewer"
        )
    if beam_groups < 1 or beam_size % beam_groups:
        raise InputError(
            f"beam_groups must divide beam_size, got {beam_groups} with beam_size {beam_size}"
        )


def _advance(
    time: Tensor,
    inputs: SentenceInputs,
    beams: _Beams,
    capacity: int | None,
    spec: SearchSpec,
    early_stop: str,
) -> _Beams:
    """Reads the last token of every beam and replaces the beams with their best continuations."""
    logits, loop_state = read(spec, inputs, beams.loop_state, time, capacity)
    constrained = constrain_logits(logits, time, spec, inputs, loop_state)
    size = spec.num_hypotheses // len(beams.best)
    # A constraint may prefer any of a hypothesis's own best continuations to all of another.
    is_guided = any(isinstance(each, ProgressConstraint) for each in spec.constraints)
    num_sets = spec.num_hypotheses if is_guided else len(beams.best)
    # Of a set's continuations 2A are enough, and as many more as earlier groups may take.
    taken = spec.num_hypotheses // num_sets * (spec.num_hypotheses - size)
    found = best_continuations(
        constrained, beams.log_probs, num_sets, 2 * size + taken, time, inputs, spec
    )

    best: list[Finished] = []
    kept: list[Candidates] = []
    for group, old in enumerate(beams.best):
        candidates = of_group(found, group, len(beams.best))
        index = best_indices(candidates, 2 * size, kept, spec, inputs, loop_state)
        candidates = take(candidates, index)
        first = Candidates(*(part[:, :size] for part in candidates))
        best.append(_finish(time, inputs, loop_state, old, first, spec))
        kept.append(keep_open(candidates, size, spec.eos_id, spec.pad_id))
    log_probs, parents, ids = (tf.concat(parts, axis=1) for parts in zip(*kept, strict=True))
    if early_stop == "first":
        is_open = lacks_finished(best)
    else:
        is_open = may_improve(time, best, kept, inputs, spec.length_penalty_form)
    return _Beams(
        # Without an open hypothesis a sentence finishes no more, and so stays as it is.
        log_probs=tf.where(is_open, log_probs, IMPOSSIBLE),
        loop_state=extend(spec, inputs, loop_state, ids, parents, time),
        best=tuple(best),
    )


def _finish(
    time: Tensor,
    inputs: SentenceInputs,
    loop_state: LoopState,
    old: Finished,
    candidates: Candidates,
    spec: SearchSpec,
) -> Finished:
    """Returns the best of the old finished hypotheses and of the candidates that end."""
    has_ended = tf.equal(candidates.ids, spec.eos_id)
    log_probs = tf.where(has_ended, candidates.log_probs, IMPOSSIBLE)
    coverage = loop_state.model.get("coverage")
    if coverage is not None:
        coverage = tf.gather(coverage, candidates.parents, batch_dims=1)  # [B, A, S]
    new = Finished(
        scores=final_scores(log_probs, time + 1, coverage, inputs, spec.length_penalty_form),
        log_probs=log_probs,
        tokens=tf.gather(loop_state.tokens, candidates.parents, batch_dims=1),
        lengths=tf.zeros_like(candidates.ids) + time + 1,
    )
    return best_of([old, new], old.scores.shape[1])
