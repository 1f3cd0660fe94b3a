"""Beam search over a step function, with length and coverage penalties.

`beam_search` is the contract, and `_beam_step` is one step of the algorithm. The functions that it
calls follow in the order of the calls, then the step of greedy search and sampling
(`search_paths`), the start of a search and the loop over the steps. They share three arguments:
`spec` is the same for all sentences, `inputs` differ between sentences but never change, and
`state` changes at every step.

Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7.

Shapes: B sentences, W hypotheses ("beams") of a sentence, K continuations, N translations of a
sentence, L longest result, S source length, V vocabulary.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import (
    IMPOSSIBLE,
    NO_SCORE,
    DecodingState,
    StepFunction,
    Tensor,
    newest_attention,
)
from keras_transformer.errors import InputError, check_choice
from keras_transformer.search import scoring
from keras_transformer.search.constraints import Constraint, OpenHypotheses


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than N translations (a tiny vocabulary, a short limit, constraints
    that contradict each other), the last places are empty: length 0, only PAD, and `NO_SCORE`,
    which is -1e9, as score and log-probability.

    Attributes:
        ids: int32 [B, N, L], EOS included, then PAD.
        scores: float32 [B, N], log-probability divided by the length penalty; always finite.
        log_probs: float32 [B, N], natural logarithm of the probability; always finite.
        lengths: int32 [B, N], tokens of the translation, EOS included.
        details: empty unless asked for. "token_scores", float32 [B, N, L], the log-probability of
            each token; and, if the model's state has coverage, "attention", float32 [B, N, L, S],
            what each token was predicted from. Both are 0 for padding.
    """

    ids: Tensor
    scores: Tensor
    log_probs: Tensor
    lengths: Tensor
    details: Any = ()


class SearchSpec(NamedTuple):
    """What is the same for all sentences."""

    step: StepFunction
    shared: Any  # the part of the model's state that serves all sentences,
    projection: Any  # and this one
    num_hypotheses: int  # W
    positions: Tensor  # int32 [L], 0 to L - 1; L is the largest of the max lengths, plus EOS
    capacities: tuple[int, ...]  # of the KV cache, now and later; empty if it grows at every step
    constraints: tuple[Constraint, ...]  # in the order in which they are asked
    eos_id: int
    pad_id: int


class SentenceInputs(NamedTuple):
    """What differs from sentence to sentence and never changes; a nest of tensors [B, ...]."""

    context: Any  # the part of the model's state that belongs to the source sentences
    forbidden_ids: Tensor  # int32 [B, 1, 2], never generated: PAD and BOS (unless BOS is EOS)
    max_lengths: Tensor  # int32 [B], tokens before EOS, 0 or more
    length_penalties: Tensor  # float32 [B, L + 2, 1], of translations with 0, 1, 2 ... tokens
    largest_penalties: Tensor  # the same; of the longest translation where that is larger
    beta: Tensor  # float32 [B, 1], weight of the coverage penalty
    constraints: tuple[Any, ...]  # the inputs of each constraint
    options: dict[str, Tensor]  # parameters of one kind of search only, each [B]


class Finished(NamedTuple):
    """Complete translations, best first; those that do not exist have the score -inf."""

    scores: Tensor  # float32 [B, N]
    log_probs: Tensor  # float32 [B, N]
    tokens: Tensor  # int32 [B, N, L], EOS included, then PAD
    ancestors: Any = ()  # int32 [B, N, L], as in `State`; only with `State.history`


class State(NamedTuple):
    """The open hypotheses and the finished ones; changes at every step.

    A sentence whose hypotheses are all at -inf is done, and no longer changes.
    """

    time: Tensor  # int32 [], how many tokens the open hypotheses have
    log_probs: Tensor  # float32 [B, W]; -inf for hypotheses that do not exist or are finished
    ids: Tensor  # int32 [B, W], the newest tokens, not yet read by the model
    tokens: Tensor  # int32 [B, W, L], all of them without BOS, then PAD
    ancestors: Tensor  # int32 [B, W, L], see `DecodingState`; -1 where there is no token yet
    model: dict[str, Any]  # the changing parts of the model's `DecodingState`, by name
    constraints: tuple[Any, ...]  # the state of each constraint
    finished: Finished
    history: dict[str, Tensor]  # [B, L, W, ...], what `_read` notes of each step, for details


class Candidates(NamedTuple):
    """Continuations of hypotheses, of which the next beam is chosen."""

    log_probs: Tensor  # float32 [B, ..., K], -inf where impossible
    parents: Tensor  # int32 [B, ..., K], the hypotheses that they continue, 0 to W - 1
    ids: Tensor  # int32 [B, ..., K]

    def take(self, index: Tensor) -> "Candidates":
        """Returns the candidates [B, K] at index [B, any]."""
        return Candidates(*(tf.gather(part, index, batch_dims=1) for part in self))


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
    early_stop: Literal["exact", "first"] = "exact",
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    details: bool = False,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns the best translations that a beam of `beam_size` hypotheses finds.

    A hypothesis Y is worth log P(Y) / ((5 + |Y|) / 6) ** alpha (Wu et al. 2016, eq. 14), where
    |Y| counts EOS, plus its coverage penalty if there is one. Each step continues every open
    hypothesis of a sentence. Those of the `beam_size` most probable continuations that end with EOS
    are finished, and the best `beam_size` others stay open. (An EOS that is less probable than a
    whole beam of other continuations finishes nothing: it would mostly be too early.) A hypothesis
    with `max_lengths` tokens can only take EOS, at EOS's true probability, so every result is
    complete. A sentence that is done no longer changes, so it gets the same translation in any
    batch.

    Probabilities are over the whole vocabulary, although PAD and BOS are never generated. Scores
    are float32. Ties go to the lower beam, then to the lower id. With `beam_size` 1 this is greedy
    search: the most probable token at every step, up to the first EOS.

    Args:
        step: gives logits [B, W, V] of the token after ids [B, W], and the next state.
        state: the model's state before BOS, made for W = `beam_size` hypotheses; with coverage if
            there is a coverage penalty.
        bos_ids: int [B], the token that each translation starts with; not in the result.
        max_lengths: int [B], tokens a translation may have before EOS; 0 or more.
        beam_size: hypotheses that stay open, W.
        num_translations: N, at most `beam_size`.
        length_penalty: alpha, a number or float [B].
        length_penalty_form: "gnmt" for the quotient above, "power" for |Y| ** alpha.
        coverage_penalty: beta, a number or float [B].
        early_stop: when a sentence is done. "exact": when no open hypothesis can beat its N best
            finished ones, so the result is that of a search to the last step. "first": as soon as
            `beam_size` hypotheses have finished, as in fairseq and CTranslate2: fewer steps, but
            longer translations may be missed.
        constraints: on the translations, see `Constraint`.
        max_length_bound: the largest value of `max_lengths` (larger ones are cut to it), where
            shapes must be known before the graph runs, as for XLA. L is then `max_length_bound` +
            1; otherwise it is the largest of `max_lengths` + 1.
        details: whether to return `Hypotheses.details`, which takes memory for L * W * S numbers of
            a sentence if there is coverage.
        eos_id, pad_id: the tokens that complete a translation and that follow it.

    Raises:
        InputError: `beam_size` below 1, `num_translations` not in 1 to `beam_size`, an unknown
            `early_stop`, or EOS = PAD.
    """
    if not 1 <= num_translations <= beam_size:
        raise InputError(
            f"num_translations must be from 1 to beam_size, got {num_translations} with beam_size "
            f"{beam_size}; raise beam_size or ask for fewer"
        )
    check_choice("early_stop", early_stop, ("exact", "first"))
    spec, inputs, first = start_search(
        step,
        state,
        beam_size,
        bos_ids=bos_ids,
        max_lengths=max_lengths,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        coverage_penalty=coverage_penalty,
        constraints=constraints,
        max_length_bound=max_length_bound,
        details=details,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    if beam_size == 1:
        return search_paths(spec, inputs, first, _most_probable)
    num_finished = beam_size if early_stop == "first" else num_translations
    first = first._replace(
        # One empty hypothesis; the others do not exist yet.
        log_probs=tf.where(tf.range(beam_size) == 0, first.log_probs, IMPOSSIBLE),
        finished=_no_translations(spec, inputs, num_finished, details),
    )
    step_of_beam = functools.partial(_beam_step, early_stop=early_stop)
    finished, history = _run_search(step_of_beam, spec, inputs, first)
    return make_hypotheses(_best_of([finished], num_translations), spec, history)


def _beam_step(spec: SearchSpec, inputs: SentenceInputs, state: State, early_stop: str) -> State:
    """Replaces the open hypotheses with their best continuations by one token."""
    size = spec.num_hypotheses

    # 1. The model reads the newest tokens; constraints change or forbid the next ones.
    logits, state = _read(spec, inputs, state)  # [B, W, V]
    constrained = constrain(logits, spec, inputs, state)

    # 2. The 2W most probable continuations of all hypotheses, best first.
    found = best_continuations(constrained, state.log_probs, 1, 2 * size, spec)  # [B, 1, K]
    found = Candidates(*(tf.squeeze(part, 1) for part in found))
    best = found.take(tf.math.top_k(found.log_probs, 2 * size).indices)

    # 3. EOS among the W best finishes a hypothesis, and the W best others stay open.
    has_ended = best.ids == spec.eos_id  # [B, 2W]
    finished = _finish(best, has_ended, spec, inputs, state)  # [B, N]
    opened = _keep_open(best, has_ended, size)  # [B, W]

    # 4. A sentence is done if no open hypothesis can get among its best finished ones, or, with
    # "first", if there are enough of these.
    if early_stop == "first":
        is_open = finished.scores[:, -1:] == IMPOSSIBLE  # [B, 1]
    else:
        # A log-probability, at most 0, only falls, and the coverage penalty is at most 0, so a
        # score to come is at most the log-probability divided by the largest length penalty: that
        # of one more token and EOS, or of the longest translation, by the sign of alpha.
        largest_penalty = tf.gather(inputs.largest_penalties, state.time + 2, axis=1)  # [B, 1]
        highest = tf.reduce_max(opened.log_probs, axis=1, keepdims=True) / largest_penalty
        is_open = highest > finished.scores[:, -1:]

    # 5. The hypotheses that stay open become the next beam.
    return _extend(spec, inputs, state, opened.ids, opened.parents)._replace(
        log_probs=tf.where(is_open, opened.log_probs, IMPOSSIBLE), finished=finished
    )


def _read(spec: SearchSpec, inputs: SentenceInputs, state: State) -> tuple[Tensor, State]:
    """Runs the model on the newest tokens.

    Returns:
        float32 logits [B, W, V] of the next tokens, and the state after reading.
    """
    is_now = spec.positions == state.time  # [L]
    ancestors = tf.where(is_now, tf.range(spec.num_hypotheses)[:, None], state.ancestors)
    decoding_state = DecodingState(
        shared=spec.shared,
        projection=spec.projection,
        context=inputs.context,
        time=state.time,
        ancestors=ancestors[:, :, : spec.capacities[0] if spec.capacities else state.time + 1],
        **state.model,
    )
    before = decoding_state
    logits, decoding_state = spec.step(state.ids, before)
    logits.set_shape([None, spec.num_hypotheses, None])
    logits = tf.cast(logits, tf.float32)
    model = {name: getattr(decoding_state, name) for name in state.model}
    history = dict(state.history)
    if history:
        noted = {"log_probs": state.log_probs}  # without the next token's
        if "attention" in history:
            noted["attention"] = newest_attention(before, decoding_state)
        for name, new in noted.items():  # [B, W, ...]
            is_row = tf.reshape(is_now, [-1, *[1] * (new.shape.rank - 1)])  # [L, 1, ...]
            history[name] = tf.where(is_row, new[:, None], history[name])
    return logits, state._replace(ancestors=ancestors, model=model, history=history)


class ConstrainedLogits(NamedTuple):
    """Logits of the next tokens, and what constraints say of them."""

    logits: Tensor  # float32 [B, W, V], of the distribution that translations are scored with
    allowed: Tensor  # the same with -inf for forbidden tokens; `logits` itself if there are none
    forbidden_ids: tuple[Tensor, ...]  # more of them, int32 [B, W, any] or [B or 1, 1, any] each
    forced_ids: Tensor  # int32 [B] or [], the only token that may come next, where `is_forced`
    is_forced: Tensor  # bool [B]

    def is_forbidden(self, ids: Tensor, parents: Tensor | None = None) -> Tensor:
        """Returns whether ids are among `forbidden_ids`, a bool of their shape or [B, W, any].

        Args:
            ids: int32 [any], after each hypothesis; with `parents` [B, any, any].
            parents: int32, the hypotheses that the ids continue, of the same shape.
        """

        def is_among(forbidden: Tensor) -> Tensor:
            if parents is None or forbidden.shape[1] == 1:
                of_parents = forbidden[:, :, None]
            else:
                of_parents = tf.gather(forbidden, parents, batch_dims=1)
            return tf.reduce_any(ids[..., None] == of_parents, axis=-1)

        return functools.reduce(operator.or_, map(is_among, self.forbidden_ids))


def constrain(
    logits: Tensor, spec: SearchSpec, inputs: SentenceInputs, state: State
) -> ConstrainedLogits:
    """Applies all constraints to logits [B, W, V] of the next tokens."""
    limits = (state.tokens, state.time, inputs.max_lengths, spec.eos_id, spec.pad_id, logits)
    asked = [
        (constraint, OpenHypotheses(its_inputs, its_state, *limits))
        for constraint, its_inputs, its_state in _each_constraint(spec, inputs, state)
    ]
    for constraint, hypotheses in asked:
        logits = constraint.adjust(logits, hypotheses)
    allowed = logits
    forbidden = [inputs.forbidden_ids]
    forced = None
    for constraint, hypotheses in asked:
        hypotheses = hypotheses._replace(logits=logits)
        allowed = constraint.restrict(allowed, hypotheses)
        if (ids := constraint.forbidden_ids(hypotheses)) is not None:
            forbidden.append(ids)
        if (ids := constraint.forced_ids(hypotheses)) is not None:
            forced = ids if forced is None else tf.where(forced == spec.pad_id, ids, forced)
    must_end = state.time >= inputs.max_lengths  # [B]
    if forced is None:
        forced, is_forced = tf.constant(spec.eos_id), must_end
    else:
        forced = tf.where(must_end, spec.eos_id, forced)
        is_forced = forced != spec.pad_id
    return ConstrainedLogits(logits, allowed, tuple(forbidden), forced, is_forced)


def _each_constraint(
    spec: SearchSpec, inputs: SentenceInputs, state: State
) -> list[tuple[Constraint, Any, Any]]:
    """Returns each constraint with its inputs and its state."""
    return list(zip(spec.constraints, inputs.constraints, state.constraints, strict=True))


def best_continuations(
    constrained: ConstrainedLogits,
    log_probs: Tensor,
    num_sets: int,
    count: int,
    spec: SearchSpec,
) -> Candidates:
    """Returns the most probable continuations of each set of hypotheses.

    Probabilities are over all tokens that there are logits of, as in training: PAD, BOS and what
    constraints forbid are dropped afterwards, and the others do not get their share.

    Args:
        constrained: the logits.
        log_probs: float32 [B, W], of the hypotheses.
        num_sets: each set has W / `num_sets` consecutive hypotheses.
        count: how many continuations of each set.
        spec: of the search.

    Returns:
        Candidates, each part [B, `num_sets`, K]: first the most probable ones in order, then the
        forced token of each hypothesis. Those that are not allowed have log-probability -inf.
    """
    allowed = constrained.allowed
    num_hypotheses, vocabulary_size = allowed.shape[1:]
    size = num_hypotheses // num_sets
    # The best tokens of each set: more than `count`, since forbidden ones may be among them.
    num_candidates = count + size * sum(ids.shape[2] for ids in constrained.forbidden_ids)
    width = min(num_candidates, size * (vocabulary_size or num_candidates))
    blocks, shift, log_sum = scoring.normalize(
        constrained.logits, allowed, scoring.in_blocks(allowed, width, size)
    )
    offsets = log_probs - log_sum  # [B, W]
    found = Candidates(*scoring.top_k_of_blocks(blocks, width, offsets, num_sets))
    parents = tf.reshape(tf.range(num_hypotheses), [num_sets, size])
    # Forbidden tokens are impossible, and all but the forced one where there is one.
    is_forced = constrained.is_forced[:, None, None]
    is_forbidden = is_forced | constrained.is_forbidden(found.ids, found.parents)
    found = found._replace(log_probs=tf.where(is_forbidden, IMPOSSIBLE, found.log_probs))
    forced = _logits_of(constrained.forced_ids, constrained.logits) - shift + offsets
    forced = tf.where(is_forced, tf.reshape(forced, [-1, num_sets, size]), IMPOSSIBLE)
    forced_ids = tf.reshape(constrained.forced_ids, [-1, 1, 1])
    forced_parts = (tf.broadcast_to(each, tf.shape(forced)) for each in (parents, forced_ids))
    found = _join(found, Candidates(forced, *forced_parts))
    if width < num_candidates:  # the vocabulary is smaller than the beam
        padding = [[0, 0], [0, 0], [0, num_candidates - width]]
        log_probs = tf.pad(found.log_probs, padding, constant_values=IMPOSSIBLE)
        found = Candidates(log_probs, *(tf.pad(part, padding) for part in found[1:]))
    return found


def _join(*parts: Candidates) -> Candidates:
    return Candidates(*(tf.concat(fields, axis=-1) for fields in zip(*parts, strict=True)))


def _logits_of(ids: Tensor, logits: Tensor) -> Tensor:
    """Returns the logits [B, W] of one token in each sentence, ids int32 [B] or []."""
    return tf.gather(logits, ids, axis=2, batch_dims=ids.shape.rank)


def _finish(
    candidates: Candidates,
    has_ended: Tensor,
    spec: SearchSpec,
    inputs: SentenceInputs,
    state: State,
) -> Finished:
    """Returns the best of the finished hypotheses and of the first W candidates that have ended."""
    size, old = spec.num_hypotheses, state.finished
    log_probs = tf.where(has_ended, candidates.log_probs, IMPOSSIBLE)[:, :size]  # [B, W]
    parents = candidates.parents[:, :size]
    coverage, tokens = _of_parents((state.model.get("coverage"), state.tokens), parents)
    penalty = tf.gather(inputs.length_penalties, state.time + 1, axis=1)  # [B, 1]
    scores = scoring.final_scores(log_probs, penalty, coverage, inputs.beta)
    tokens = tf.where(spec.positions == state.time, spec.eos_id, tokens)  # [B, W, L]
    ancestors = _of_parents(state.ancestors, parents) if state.history else ()
    return _best_of([old, Finished(scores, log_probs, tokens, ancestors)], old.scores.shape[1])


def _best_of(parts: Sequence[Finished], count: int) -> Finished:
    """Returns the `count` best translations of all parts; ties go to the earlier part."""
    merged = tf.nest.map_structure(lambda *fields: tf.concat(fields, axis=1), *parts)
    _, index = tf.math.top_k(merged.scores, count)  # [B, count]
    return tf.nest.map_structure(lambda field: tf.gather(field, index, batch_dims=1), merged)


def _keep_open(candidates: Candidates, has_ended: Tensor, size: int) -> Candidates:
    """Returns the first W = `size` of 2W candidates that have not ended.

    At most one possible continuation of each hypothesis ends, so at least W have not, or are
    impossible.
    """
    log_probs = tf.where(has_ended, IMPOSSIBLE, candidates.log_probs)
    order = tf.where(has_ended, -2 * size, -tf.range(2 * size))
    return candidates._replace(log_probs=log_probs).take(tf.math.top_k(order, size).indices)


def _of_parents(nest: Any, parents: Tensor) -> Any:
    """Returns a nest of [B, W, ...] for the hypotheses `parents` [B, any]."""
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.gather(leaf, parents, batch_dims=1), nest
    )


def _extend(
    spec: SearchSpec,
    inputs: SentenceInputs,
    state: State,
    ids: Tensor,
    parents: Tensor | None = None,
) -> State:
    """Appends the tokens `ids` [B, W] to the hypotheses `parents` [B, W], or each to its own."""
    if parents is not None:
        # The KV cache stays where it is; the ancestors say which of its entries belong to whom.
        moved = {name: part for name, part in state.model.items() if name != "kv_cache"}
        tokens, ancestors, moved, states = _of_parents(
            (state.tokens, state.ancestors, moved, state.constraints), parents
        )
        state = state._replace(
            tokens=tokens, ancestors=ancestors, model=state.model | moved, constraints=states
        )
    return state._replace(
        time=state.time + 1,
        ids=ids,
        tokens=tf.where(spec.positions == state.time, ids[..., None], state.tokens),
        constraints=tuple(
            constraint.update(its_state, ids, its_inputs)
            for constraint, its_inputs, its_state in _each_constraint(spec, inputs, state)
        ),
    )


# Hypotheses that never branch: greedy search and sampling.

# Returns the next ids and their log-probabilities, both [B, W].
Choose = Callable[[ConstrainedLogits, SearchSpec, SentenceInputs, State], tuple[Tensor, Tensor]]


def search_paths(
    spec: SearchSpec, inputs: SentenceInputs, state: State, choose: Choose
) -> Hypotheses:
    """Returns the W translations of each sentence whose tokens `choose` takes, best first."""

    def step(spec: SearchSpec, inputs: SentenceInputs, state: State) -> State:
        logits, state = _read(spec, inputs, state)  # [B, W, V]
        constrained = constrain(logits, spec, inputs, state)
        ids, gains = choose(constrained, spec, inputs, state)
        state = _extend(spec, inputs, state, ids)
        log_probs = state.log_probs + gains
        has_ended = ids == spec.eos_id
        scores = scoring.final_scores(
            tf.where(has_ended, log_probs, IMPOSSIBLE),
            tf.gather(inputs.length_penalties, state.time, axis=1),
            state.model.get("coverage"),
            inputs.beta,
        )
        old = state.finished
        is_new = scores > old.scores  # those that ended before are at -inf now
        new = Finished(
            tf.where(is_new, scores, old.scores),
            tf.where(is_new, log_probs, old.log_probs),
            tf.where(is_new[..., None], state.tokens, old.tokens),
            old.ancestors,  # their own places
        )
        log_probs = tf.where(has_ended, IMPOSSIBLE, log_probs)
        return state._replace(log_probs=log_probs, finished=new)

    finished, history = _run_search(step, spec, inputs, state)
    return make_hypotheses(_best_of([finished], spec.num_hypotheses), spec, history)


def _most_probable(
    constrained: ConstrainedLogits, spec: SearchSpec, inputs: SentenceInputs, state: State
) -> tuple[Tensor, Tensor]:
    """Returns the choice of greedy search, W = 1."""
    found = best_continuations(constrained, tf.zeros([1, 1]), 1, 1, spec)  # [B, 1, K]
    best = tf.argmax(found.log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
    return tf.gather(found.ids, best, batch_dims=2), tf.reduce_max(found.log_probs, axis=-1)


# Before the first step, the loop over the steps, and after the last one.


def start_search(
    step: StepFunction,
    state: DecodingState,
    num_hypotheses: int,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor,
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    details: bool = False,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
    options: Mapping[str, Tensor] | None = None,
) -> tuple[SearchSpec, SentenceInputs, State]:
    """Returns what a search's loop needs; the state has W empty hypotheses, all open.

    `options` are parameters of one kind of search only; for the others see `beam_search`.
    """
    if eos_id == pad_id:
        raise InputError(f"eos_id and pad_id must differ, both are {eos_id}; give PAD its own id")
    bos_ids = tf.cast(bos_ids, tf.int32)
    batch_size = tf.shape(bos_ids)[0]
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if max_length_bound is None:
        result_length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, max_length_bound)
        result_length = max_length_bound + 1
    alpha, beta = (
        repeat_for_each_sentence(tf.cast(each, tf.float32), batch_size)[:, None]
        for each in (length_penalty, coverage_penalty)
    )
    # All that a step looks up. A power of each length in the loop would be several operations.
    lengths, longest = tf.range(result_length + 2), max_lengths[:, None] + 1
    penalties, largest = (
        scoring.length_penalty(each, alpha, length_penalty_form)[..., None]
        for each in (lengths, longest)
    )
    # Some models start with EOS, and EOS must remain allowed.
    forbidden_bos = tf.where(bos_ids == eos_id, pad_id, bos_ids)
    inputs = SentenceInputs(
        context=state.context,
        forbidden_ids=tf.stack([tf.fill([batch_size], pad_id), forbidden_bos], axis=1)[:, None],
        max_lengths=max_lengths,
        length_penalties=penalties,
        largest_penalties=tf.maximum(penalties, largest),
        beta=beta,
        constraints=repeat_for_each_sentence(
            tuple(each.inputs for each in constraints), batch_size
        ),
        options=repeat_for_each_sentence(dict(options or {}), batch_size),
    )
    spec = SearchSpec(
        step=step,
        shared=state.shared,
        projection=state.projection,
        num_hypotheses=num_hypotheses,
        positions=tf.range(result_length),
        capacities=() if max_length_bound is None else kv_cache_capacities(max_length_bound),
        constraints=tuple(constraints),
        eos_id=eos_id,
        pad_id=pad_id,
    )
    model = {"recurrent_state": state.recurrent_state, "kv_cache": state.kv_cache}
    if state.coverage is not None:
        model["coverage"] = state.coverage
    history = {}
    if details:
        noted = [tf.shape(bos_ids)[0], result_length, num_hypotheses]
        history["log_probs"] = tf.zeros(noted)
        if state.coverage is not None:
            history["attention"] = tf.zeros([*noted, tf.shape(state.coverage)[2]])
    none = _no_translations(spec, inputs, num_hypotheses, details)
    first = State(
        time=tf.constant(0),
        log_probs=none.log_probs,
        ids=tf.repeat(bos_ids[:, None], num_hypotheses, axis=1),
        tokens=none.tokens,
        ancestors=tf.fill(tf.shape(none.tokens), -1),
        model=model,
        constraints=tuple(
            constraint.initial_state(its_inputs, num_hypotheses)
            for constraint, its_inputs in zip(constraints, inputs.constraints, strict=True)
        ),
        finished=none,
        history=history,
    )
    return spec, inputs, first


def repeat_for_each_sentence(values: Any, batch_size: Tensor) -> Any:
    """Returns a nest whose leaves are [B, ...]; those of shape [] or [1, ...] are repeated."""

    def repeat(value: Tensor) -> Tensor:
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            value = value[None]
        if value.shape.rank is None or value.shape[0] != 1:
            return value
        return tf.broadcast_to(value, tf.concat([[batch_size], tf.shape(value)[1:]], axis=0))

    return tf.nest.map_structure(repeat, values)


def _no_translations(
    spec: SearchSpec, inputs: SentenceInputs, count: int, details: bool
) -> Finished:
    """Returns N = `count` translations that do not exist."""
    shape = [tf.shape(inputs.max_lengths)[0], count]
    tokens = tf.fill([*shape, tf.size(spec.positions)], spec.pad_id)
    tokens = tf.ensure_shape(tokens, [None, count, *spec.positions.shape])
    return Finished(
        scores=tf.fill(shape, IMPOSSIBLE),
        log_probs=tf.zeros(shape),
        tokens=tokens,
        # For hypotheses that never branch; a beam replaces them.
        ancestors=tf.zeros_like(tokens) + tf.range(count)[:, None] if details else (),
    )


# One step of a search.
Step = Callable[[SearchSpec, SentenceInputs, State], State]


# What is finished, and the history, of all sentences.
Results = tuple[Finished, dict[str, Tensor]]


def _run_search(step: Step, spec: SearchSpec, inputs: SentenceInputs, state: State) -> Results:
    """Runs steps until every sentence is done.

    The batch shrinks: sentences that are done leave it and cost no more work.
    """
    if spec.capacities:
        return _run_in_stages(step, spec, inputs, state)
    max_time = tf.size(spec.positions)  # only reached if the model's logits are NaN

    def shrink_batch(rows: Tensor, inputs: Any, state: State, results: Any) -> Any:
        # Dropping sentences copies the others, so it waits until a quarter are done.
        state = _run_steps(functools.partial(step, spec, inputs), state, 0.75, max_time)
        results = tf.nest.map_structure(
            lambda all_, some: tf.tensor_scatter_nd_update(all_, rows[:, None], some),
            results,
            (state.finished, state.history),
        )
        open_rows = tf.where(_is_open(state))[:, 0]
        rows, inputs, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, open_rows) if leaf.shape.rank else leaf,
            (rows, inputs, state),
        )
        return rows, inputs, state, results

    rows = tf.range(tf.shape(state.ids)[0])
    variables = (rows, inputs, state, (state.finished, state.history))
    *_, results = tf.while_loop(
        lambda rows, inputs, state, _: (tf.shape(rows)[0] > 0) & (state.time < max_time),
        shrink_batch,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return results


def _is_open(state: State) -> Tensor:
    """Returns which sentences are not done, bool [B]."""
    return tf.reduce_max(state.log_probs, axis=1) > IMPOSSIBLE


def _run_steps(
    step: Callable[[State], State], state: State, share: float, max_time: Tensor
) -> State:
    """Runs steps while more than this share of the sentences are open, up to `max_time`."""
    shapes = tf.nest.map_structure(lambda leaf: _changing_shape(leaf, leaf.shape[:1]), state)
    (state,) = tf.while_loop(
        lambda state: tf.reduce_mean(tf.cast(_is_open(state), tf.float32)) > share,
        lambda state: (step(state),),
        (state,),
        shape_invariants=(shapes,),
        maximum_iterations=max_time - state.time,
    )
    return state


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """Returns a leaf's shape with another first dimension, and sizes of 0, which grow, unknown.

    The others stay known, since models may need them for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)


def make_hypotheses(
    finished: Finished, spec: SearchSpec, history: Mapping[str, Tensor]
) -> Hypotheses:
    """Returns the result of a search, with finite scores for places without a translation."""
    exists = tf.math.is_finite(finished.scores)
    ids = tf.where(exists[..., None], finished.tokens, spec.pad_id)
    return Hypotheses(
        ids=ids,
        scores=tf.where(exists, finished.scores, NO_SCORE),
        log_probs=tf.where(exists, finished.log_probs, NO_SCORE),
        lengths=tf.math.count_nonzero(ids != spec.pad_id, axis=-1, dtype=tf.int32),
        details=_trace(history, finished, ids != spec.pad_id) if history else (),
    )


def _trace(
    history: Mapping[str, Tensor], finished: Finished, is_token: Tensor
) -> dict[str, Tensor]:
    """Returns `Hypotheses.details`: what the steps noted of each translation's ancestors.

    `is_token`, bool [B, N, L], is False for padding.
    """
    places = tf.maximum(finished.ancestors, 0)  # -1 after the end
    places = tf.transpose(places, [0, 2, 1])  # [B, L, N]
    traced = {
        name: tf.transpose(
            tf.gather(noted, places, batch_dims=2), [0, 2, 1, *range(3, noted.shape.rank)]
        )
        for name, noted in history.items()
    }  # [B, N, L, ...]
    # The steps noted sums: a token's log-probability is what the next step, or the end, has more.
    before = tf.where(is_token, traced["log_probs"], finished.log_probs[..., None])
    after = tf.concat([before[..., 1:], finished.log_probs[..., None]], axis=-1)
    details = {"token_scores": tf.where(is_token, after - before, 0.0)}
    if "attention" in traced:
        details["attention"] = tf.where(is_token[..., None], traced["attention"], 0.0)
    return details


# XLA needs all shapes before the graph runs: the batch does not shrink, and the KV cache has a
# fixed capacity, which grows in a few stages.


def kv_cache_capacities(max_length_bound: int) -> tuple[int, ...]:
    """Returns how many tokens a KV cache of fixed capacity has room for, stage by stage.

    The first is the `capacity` for `encode`; each next one is twice as large, and the last has
    room for `max_length_bound` tokens and EOS.

    Args:
        max_length_bound: the most tokens that a translation may have before EOS.
    """
    last = max_length_bound + 1
    capacities = []
    capacity = 16
    while capacity * 3 <= last * 2:  # a last stage that is hardly larger does not pay
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, last)


def _run_in_stages(step: Step, spec: SearchSpec, inputs: SentenceInputs, state: State) -> Results:
    """Runs within the first capacity, and in the next ones while sentences are open.

    Work grows with the capacity, and most sentences finish before the largest is needed.
    """
    capacity, *larger = spec.capacities
    state = _run_steps(functools.partial(step, spec, inputs), state, 0.0, capacity)
    if not larger:
        return state.finished, state.history
    spec = spec._replace(capacities=tuple(larger))
    return tf.cond(
        tf.reduce_any(_is_open(state)),
        lambda: _run_in_stages(step, spec, inputs, _grow_cache(state, larger[0] - capacity)),
        lambda: (state.finished, state.history),
    )


def _grow_cache(state: State, num_tokens: int) -> State:
    """Gives the model's KV cache room for more tokens."""
    missing = num_tokens * state.ids.shape[1]

    def pad(leaf: Tensor) -> Tensor:
        return tf.pad(leaf, [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]])

    kv_cache = tf.nest.map_structure(pad, state.model["kv_cache"])
    return state._replace(model=state.model | {"kv_cache": kv_cache})
