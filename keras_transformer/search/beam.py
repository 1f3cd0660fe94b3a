"""Beam search with length and coverage penalties, optionally in diverse groups.

Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7.

Shapes: B sentences, G groups, A hypotheses ("beams") of a group, W = G * A of a sentence, K
continuations of a set of them, C of a group, N hypotheses a sentence that are returned, L their
longest length, V vocabulary.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState, StepFunction, Tensor, VocabularySubset
from keras_transformer.errors import InputError, check_choice
from keras_transformer.search.constraints import (
    Constraint,
    Groups,
    OpenHypotheses,
    ProgressConstraint,
    in_groups,
    top_k_of_groups,
)

# The loop of every search: advance all sentences, and drop those that are finished.
#
# Shapes: B sentences.

Inputs = TypeVar("Inputs")
State = TypeVar("State")


def decode_loop(
    advance: Callable[[Tensor, Inputs, State, int | None], State],
    inputs: Inputs,
    state: State,
    *,
    is_open: Callable[[State], Tensor],
    result_of: Callable[[State], Any],
    grow_cache: Callable[[State, int, int], State],
    max_steps: Tensor,
    capacities: Sequence[int] = (),
) -> Any:
    """Advances the state of all sentences until none is open, and returns their results.

    Args:
        advance: gives the next state from the number of steps before this one (int32 []), the
            inputs, the state, and the capacity of the state, None where it has no limit. It must
            leave the result of a sentence that is not open as it is.
        inputs: nest of tensors [B, ...]; never changes.
        state: nest of tensors [B, ...]. A dimension of size 0 may grow in every step.
        is_open: gives a bool [B].
        result_of: gives a nest of tensors [B, ...], the same shapes in every step.
        grow_cache: gives a state the second capacity in place of the first.
        max_steps: steps after which no sentence is open, unless the model's logits are NaN.
        capacities: where all shapes must be known, as for XLA: the steps that the state has room
            for, stage by stage. Else the batch shrinks: finished sentences leave it, and no more
            work is done for them.
    """
    if capacities:
        return _loop_in_stages(advance, inputs, state, is_open, result_of, grow_cache, capacities)
    rows = tf.range(tf.shape(tf.nest.flatten(state)[0])[0])

    def shrink_batch(time: Tensor, rows: Tensor, inputs: Any, state: Any, results: Any) -> Any:
        # Dropping sentences copies the others, so it waits until a quarter has finished.
        size = tf.shape(rows)[0]
        min_open = size - (size + 3) // 4
        time, state = _run_steps(
            lambda time, state: advance(time, inputs, state, None),
            (time, state),
            is_open,
            min_open,
            max_steps,
        )
        results = tf.nest.map_structure(
            lambda all_, some: tf.tensor_scatter_nd_update(all_, rows[:, None], some),
            results,
            result_of(state),
        )
        open_rows = tf.where(is_open(state))[:, 0]
        rows, inputs, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, open_rows), (rows, inputs, state)
        )
        return time, rows, inputs, state, results

    variables = (tf.constant(0), rows, inputs, state, result_of(state))
    *_, results = tf.while_loop(
        lambda time, rows, *_: (tf.shape(rows)[0] > 0) & (time < max_steps),
        shrink_batch,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return results


def kv_cache_capacities(max_length_bound: int) -> tuple[int, ...]:
    """Returns how many tokens a KV cache of fixed capacity has room for, stage by stage.

    The first is the `capacity` that `encode` must be given; each next one is twice as large, and
    the last has room for `max_length_bound` tokens and EOS.

    Args:
        max_length_bound: the most tokens that a translation may have before EOS.
    """
    last = max_length_bound + 1
    capacities = []
    capacity = 16
    while capacity * 3 <= last * 2:  # a last stage that is hardly larger is not worth it
        capacities.append(capacity)
        capacity *= 2
    return (*capacities, last)


def _loop_in_stages(
    advance: Callable[..., Any],
    inputs: Any,
    state: Any,
    is_open: Callable[[Any], Tensor],
    result_of: Callable[[Any], Any],
    grow_cache: Callable[[Any, int, int], Any],
    capacities: Sequence[int],
) -> Any:
    """Runs within the first capacity, and in the next ones while sentences are open.

    Work grows with the capacity, and most sentences finish before the largest is needed.
    """

    def stage(number: int, time: Tensor, state: Any) -> Any:
        capacity = capacities[number]
        time, state = _run_steps(
            lambda time, state: advance(time, inputs, state, capacity),
            (time, state),
            is_open,
            tf.constant(0),
            capacity,
        )
        if number + 1 == len(capacities):
            return result_of(state)
        return tf.cond(
            tf.reduce_any(is_open(state)),
            lambda: stage(number + 1, time, grow_cache(state, capacity, capacities[number + 1])),
            lambda: result_of(state),
        )

    return stage(0, tf.constant(0), state)


def _run_steps(
    advance: Callable[[Tensor, Any], Any],
    variables: tuple[Tensor, Any],
    is_open: Callable[[Any], Tensor],
    min_open: Tensor,
    max_steps: Tensor,
) -> tuple[Tensor, Any]:
    """Advances (time, state) while more than `min_open` sentences are open."""
    shapes = tf.nest.map_structure(lambda leaf: _changing_shape(leaf, leaf.shape[:1]), variables)

    def should_continue(time: Tensor, state: Any) -> Tensor:
        num_open = tf.math.count_nonzero(is_open(state), dtype=tf.int32)
        return (num_open > min_open) & (time < max_steps)

    return tf.while_loop(
        should_continue,
        lambda time, state: (time + 1, advance(time, state)),
        variables,
        shape_invariants=shapes,
    )


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """Returns a leaf's shape with another first dimension, and sizes of 0, which grow, unknown.

    The others stay known, since models may need them for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)


# What a search loop works on: its fixed parameters, the inputs of each sentence, and its state.
#
# Shapes: B sentences, W hypotheses a sentence, L longest result, V vocabulary.


class SearchSpec(NamedTuple):
    """What is the same for all sentences.

    Attributes:
        step: the model.
        shared, projection: the parts of the model's state that serve all sentences.
        subset: the tokens that the model and the search choose among; None for all.
        places: `VocabularySubset.places` where only the model is limited to a subset; else None.
        num_hypotheses: W.
        result_length: int or int32 [], L: the largest of the max lengths, and one for EOS.
        capacities: of the KV cache, see `kv_cache_capacities`, where shapes must be known before
            the graph runs; else empty.
        constraints: those with `takes_precedence` last.
        eos_id, pad_id: the tokens that complete a translation and that follow it.
        length_penalty_form: see `length_penalty`.
    """

    step: StepFunction
    shared: Any
    projection: Any
    subset: VocabularySubset | None
    places: Tensor | None
    num_hypotheses: int
    result_length: Tensor
    capacities: tuple[int, ...]
    constraints: tuple[Constraint, ...]
    eos_id: int
    pad_id: int
    length_penalty_form: str

    def positions(self) -> Tensor:
        """Returns the positions of a result's tokens, int32 [L]."""
        return tf.range(self.result_length)


class SentenceInputs(NamedTuple):
    """What differs from sentence to sentence, the same at every step; a nest of tensors [B, ...].

    Attributes:
        context: the part of the model's state that belongs to the source sentences.
        bos_ids: int32 [B], read before the first token.
        forbidden_ids: int32 [B], never generated: BOS, or PAD where BOS is EOS.
        max_lengths: int32 [B], tokens a translation may have before EOS; 0 or more.
        alpha: float32 [B], exponent of the length penalty.
        beta: float32 [B], weight of the coverage penalty.
        constraints: the inputs of each constraint.
        options: parameters of one kind of search only, by name.
    """

    context: Any
    bos_ids: Tensor
    forbidden_ids: Tensor
    max_lengths: Tensor
    alpha: Tensor
    beta: Tensor
    constraints: tuple[Any, ...]
    options: dict[str, Tensor]


class LoopState(NamedTuple):
    """Open hypotheses and what is remembered of them; changes at every step.

    Attributes:
        ids: int32 [B, W], the newest tokens, not yet read by the model.
        tokens: int32 [B, W, L], all of them, PAD where there is none yet; BOS is not among them.
        ancestors: int32 [B, W, L], see `DecodingState`; -1 where there is no token yet.
        model: the changing parts of the model's `DecodingState`, by name.
        constraints: the state of each constraint.
    """

    ids: Tensor
    tokens: Tensor
    ancestors: Tensor
    model: dict[str, Any]
    constraints: tuple[Any, ...]


def prepare_search(
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
    vocabulary: VocabularySubset | None = None,
    reads_logits: bool = False,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
    options: Mapping[str, Tensor] | None = None,
) -> tuple[SearchSpec, SentenceInputs, LoopState]:
    """Returns the arguments of a search in the form that its loop needs.

    `options` are parameters of one kind of search only, and `reads_logits` says whether it reads
    those of all tokens; others are those of `beam_search`.

    Raises:
        InputError: EOS and PAD are the same token.
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
    ordered = tuple(sorted(constraints, key=lambda constraint: constraint.takes_precedence))
    inputs = SentenceInputs(
        context=state.context,
        bos_ids=bos_ids,
        # Some models start with EOS, and EOS must remain allowed.
        forbidden_ids=tf.where(bos_ids == eos_id, pad_id, bos_ids),
        max_lengths=max_lengths,
        alpha=repeat_for_each_sentence(tf.cast(length_penalty, tf.float32), batch_size),
        beta=repeat_for_each_sentence(tf.cast(coverage_penalty, tf.float32), batch_size),
        constraints=repeat_for_each_sentence(tuple(each.inputs for each in ordered), batch_size),
        options=repeat_for_each_sentence(dict(options or {}), batch_size),
    )
    capacities = () if max_length_bound is None else kv_cache_capacities(max_length_bound)
    fixed = (result_length, capacities, ordered, eos_id, pad_id, length_penalty_form)
    subset, places = vocabulary, None
    if subset is not None and (reads_logits or any(each.reads_logits for each in ordered)):
        places, subset = subset.places, None
    spec = SearchSpec(step, state.shared, state.projection, subset, places, num_hypotheses, *fixed)
    return spec, inputs, _empty_hypotheses(spec, inputs, state)


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


def _empty_hypotheses(spec: SearchSpec, inputs: SentenceInputs, state: DecodingState) -> LoopState:
    """Returns the state before the first step."""
    length = spec.result_length if spec.capacities else None  # static or unknown

    def fill(value: int) -> Tensor:
        shape = (tf.shape(inputs.bos_ids)[0], spec.num_hypotheses, spec.result_length)
        return tf.ensure_shape(tf.fill(shape, value), [None, spec.num_hypotheses, length])

    model = {"recurrent_state": state.recurrent_state, "kv_cache": state.kv_cache}
    if state.coverage is not None:
        model["coverage"] = state.coverage
    return LoopState(
        ids=tf.repeat(inputs.bos_ids[:, None], spec.num_hypotheses, axis=1),
        tokens=fill(spec.pad_id),
        ancestors=fill(-1),
        model=model,
        constraints=tuple(
            constraint.initial_state(its_inputs, spec.num_hypotheses)
            for constraint, its_inputs in zip(spec.constraints, inputs.constraints, strict=True)
        ),
    )


# Finished hypotheses and the result of a search that is made of them.
#
# Shapes: B sentences, N hypotheses a sentence that are returned, L their longest length.

NO_SCORE = -1e9  # of a hypothesis that does not exist; finite, since JSON has no infinity


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than N translations (a tiny vocabulary, a short limit), the last
    ones have length 0, only PAD, and -1e9 as score and log-probability.

    Attributes:
        ids: int32 [B, N, L], EOS included, then PAD.
        scores: float32 [B, N], log-probability divided by the length penalty; always finite.
        log_probs: float32 [B, N], natural logarithm of the probability; always finite.
        lengths: int32 [B, N], tokens of the translation, EOS included.
    """

    ids: Tensor
    scores: Tensor
    log_probs: Tensor
    lengths: Tensor


class Finished(NamedTuple):
    """Complete translations; those that do not exist have the score -inf.

    Attributes:
        scores: float32 [B, N], best first.
        log_probs: float32 [B, N].
        tokens: int32 [B, N, L], of which those before EOS count.
        lengths: int32 [B, N], EOS included.
    """

    scores: Tensor
    log_probs: Tensor
    tokens: Tensor
    lengths: Tensor


def none_finished(tokens: Tensor, count: int) -> Finished:
    """Returns N = `count` translations that do not exist, as long as tokens [B, W, L]."""
    batch_size, _, length = tf.unstack(tf.shape(tokens))
    no_tokens = tf.zeros([batch_size, count, length], tf.int32)
    return Finished(
        scores=tf.fill([batch_size, count], -float("inf")),
        log_probs=tf.zeros([batch_size, count]),
        tokens=tf.ensure_shape(no_tokens, [None, count, tokens.shape[2]]),
        lengths=tf.zeros([batch_size, count], tf.int32),
    )


def best_of(parts: Sequence[Finished], count: int) -> Finished:
    """Returns the `count` best translations of all parts; among equals that of an earlier part."""
    merged = Finished(*(tf.concat(fields, axis=1) for fields in zip(*parts, strict=True)))
    _, index = tf.math.top_k(merged.scores, count)  # [B, count]
    return Finished(*(tf.gather(field, index, batch_dims=1) for field in merged))


def make_hypotheses(finished: Finished, spec: SearchSpec) -> Hypotheses:
    """Appends EOS and PAD to the tokens and replaces infinite scores."""
    exists = tf.math.is_finite(finished.scores)
    lengths = tf.where(exists, finished.lengths, 0)
    positions = spec.positions()
    last = lengths[..., None] - 1  # [B, N, 1]
    ids = tf.where(positions < last, finished.tokens, spec.pad_id)
    return Hypotheses(
        ids=tf.where(positions == last, spec.eos_id, ids),
        scores=tf.where(exists, finished.scores, NO_SCORE),
        log_probs=tf.where(exists, finished.log_probs, NO_SCORE),
        lengths=lengths,
    )


# What translations are worth: log-probability, length penalty and coverage penalty.
#
# All of Wu et al. 2016, section 7. Shapes: B sentences, W hypotheses a sentence, N translations, S
# source length.

IMPOSSIBLE = -float("inf")

_SMALLEST = 2.0**-126  # the smallest normal float32: its logarithm is finite, -87.3


def length_penalty(lengths: Tensor, alpha: Tensor, form: str = "gnmt") -> Tensor:
    """Returns ((5 + length) / 6) ** alpha in float32 (Wu et al. 2016, eq. 14).

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
    return (numbers if form == "power" else (5.0 + numbers) / 6.0) ** alpha


def coverage_penalty(coverage: Tensor, beta: Tensor) -> Tensor:
    """Returns what is added to the score of each hypothesis (Wu et al. 2016, eq. 14).

    beta * sum over source tokens i of log(min(coverage_i, 1)): 0 where every token was attended
    to with a total weight of 1 or more, negative otherwise.

    Args:
        coverage: float32 [B, W, S], the sum of the attention weights that each source token got
            over the tokens of the hypothesis; 1 or more for padding, which needs none.
        beta: float32 [B] or [1]; 0 turns the penalty off.

    Returns:
        float32 [B, W], always finite: a token without any attention counts as log(2**-126).
    """
    logs = tf.math.log(tf.clip_by_value(coverage, _SMALLEST, 1.0))
    return beta[:, None] * tf.reduce_sum(logs, axis=-1)


def final_scores(
    log_probs: Tensor,
    lengths: Tensor,
    coverage: Tensor | None,
    inputs: SentenceInputs,
    form: str = "gnmt",
) -> Tensor:
    """Returns what complete translations are worth (Wu et al. 2016, eq. 14).

    log P(Y) / length penalty + coverage penalty

    Args:
        log_probs: float32 [B, N].
        lengths: int32 [B, N] or [], EOS included.
        coverage: float32 [B, N, S], see `DecodingState`; None without a coverage penalty.
        inputs: of the search.
        form: of the length penalty.
    """
    scores = log_probs / length_penalty(lengths, inputs.alpha[:, None], form)
    if coverage is not None:
        scores += coverage_penalty(coverage, inputs.beta)
    # -inf divided by an infinite length penalty would be NaN.
    return tf.where(log_probs > IMPOSSIBLE, scores, IMPOSSIBLE)


# Candidates of a beam: continuations of its hypotheses, of which the next beam is chosen.
#
# Shapes: B sentences, A hypotheses of a group, K continuations of a set of hypotheses, C candidates
# of a group.


class Candidates(NamedTuple):
    """Continuations of the hypotheses of one group."""

    log_probs: Tensor  # float32 [B, C], -inf where impossible
    parents: Tensor  # int32 [B, C], the hypotheses that they continue, 0 to W - 1
    ids: Tensor  # int32 [B, C]


def of_group(candidates: Candidates, group: int, num_groups: int) -> Candidates:
    """Returns the candidates [B, C] of one group from those of all sets, [B, sets, K].

    A group has one set or several after one another.
    """
    width = candidates.ids.shape[2]
    if width is None:  # the number of required phrases differs from batch to batch
        width = tf.shape(candidates.ids)[2]
    width *= candidates.ids.shape[1] // num_groups
    return Candidates(*(tf.reshape(part, [-1, num_groups, width])[:, group] for part in candidates))


def take(candidates: Candidates, index: Tensor) -> Candidates:
    """Returns the candidates at index [B, any]."""
    return Candidates(*(tf.gather(part, index, batch_dims=1) for part in candidates))


def best_indices(
    candidates: Candidates,
    count: int,
    earlier: Sequence[Candidates],
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
) -> Tensor:
    """Returns the indices of the `count` candidates to consider, int32 [B, count], best first.

    Args:
        candidates: of one group.
        count: at most C.
        earlier: what earlier groups chose at this step.
        spec, inputs, loop_state: of the search.
    """
    value = candidates.log_probs  # [B, C]
    for chosen in earlier:
        is_taken = tf.equal(candidates.ids[..., None], chosen.ids[:, None])  # [B, C, A]
        times = tf.math.count_nonzero(is_taken, axis=-1, dtype=tf.float32)
        value -= inputs.options["diversity_penalty"][:, None] * times
    banks = []
    for constraint, its_inputs, state in zip(
        spec.constraints, inputs.constraints, loop_state.constraints, strict=True
    ):
        if isinstance(constraint, ProgressConstraint):
            state = tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, candidates.parents, batch_dims=1), state
            )
            state = constraint.update(state, candidates.ids, its_inputs)
            banks.append(constraint.bank(state, its_inputs))

    def most_probable() -> Tensor:
        return tf.math.top_k(value, count).indices

    if not banks:
        return most_probable()
    bank = tf.add_n(banks)
    return tf.cond(
        tf.reduce_any(bank > 0), lambda: spread_over_banks(value, bank, count), most_probable
    )


def keep_open(candidates: Candidates, count: int, eos_id: int, pad_id: int) -> Candidates:
    """Returns the first `count` of 2 * `count` candidates that do not end.

    No more than one continuation of a hypothesis ends: at least `count` do not. Impossible ones
    have PAD, which no group chooses.
    """
    is_open = (candidates.ids != eos_id) & (candidates.log_probs > IMPOSSIBLE)
    _, index = tf.math.top_k(tf.where(is_open, -tf.range(2 * count), -2 * count), count)
    kept = take(candidates, index)
    is_open = tf.gather(is_open, index, batch_dims=1)
    return kept._replace(
        log_probs=tf.where(is_open, kept.log_probs, IMPOSSIBLE),
        ids=tf.where(is_open, kept.ids, pad_id),
    )


def spread_over_banks(log_probs: Tensor, banks: Tensor, count: int) -> Tensor:
    """Chooses candidates so that every bank gets its share of the beam.

    The best candidates of all banks come first, then the second best of all banks, and so on
    (the vectorised allocation of Hu et al. 2019); among these the higher bank first. Of equally
    probable candidates the first is the better one. Impossible ones come last.

    Args:
        log_probs: float32 [B, C], -inf where impossible.
        banks: int32 [B, C], 0 or more.
        count: how many to choose, at most C.

    Returns:
        int32 [B, count], indices of the chosen candidates.
    """
    banks = tf.where(log_probs > IMPOSSIBLE, banks, -1)
    order = tf.argsort(log_probs, direction="DESCENDING", stable=True)
    by_bank = tf.argsort(tf.gather(banks, order, batch_dims=1), stable=True)
    order = tf.gather(order, by_bank, batch_dims=1)  # by bank, and the best first in each
    banks = tf.gather(banks, order, batch_dims=1)
    # Ranks beyond `count` are never chosen; the clip keeps the product below within 32 bits.
    rank = tf.range(tf.shape(banks)[1]) - tf.searchsorted(banks, banks, side="left")
    num_banks = tf.reduce_max(banks, axis=-1, keepdims=True) + 1
    merit = banks - tf.minimum(rank, count) * num_banks  # a rank weighs more than any bank
    merit = tf.where(banks >= 0, merit, tf.int32.min)
    return tf.gather(order, tf.math.top_k(merit, count).indices, batch_dims=1)


# Which tokens may come next, and how probable they are.
#
# Shapes: B sentences, W hypotheses a sentence, V vocabulary, K candidates, P tokens to try.

# float32 holds the exponentials of logits below it and their sum over any vocabulary. Far below
# what overflows, so that the difference of two logits loses no digit that matters.
_SMALL = 64.0


class ConstrainedLogits(NamedTuple):
    """Logits of the next tokens, and what constraints say of them.

    Attributes:
        logits: float32 [B, W, V], of the distribution that translations are scored with.
        allowed: the same with -inf for what is forbidden; `logits` itself where nothing can be.
        forbidden_ids: each int32 [B or 1, W or 1, 1]: one more token that is forbidden.
        extra_ids: int32 [B, W, P], tokens to try however improbable; PAD stands for none.
    """

    logits: Tensor
    allowed: Tensor
    forbidden_ids: tuple[Tensor, ...] = ()
    extra_ids: Tensor | None = None

    def is_forbidden(self, ids: Tensor, parents: Tensor | None = None) -> Tensor:
        """Returns whether ids are among `forbidden_ids`, bool that broadcasts with theirs.

        Args:
            ids: int32 [B or 1, W or 1, any], after each hypothesis; with `parents` [B, any, any].
            parents: int32, the hypotheses that the ids continue, of the same shape.
        """

        def of_parents(forbidden: Tensor) -> Tensor:
            if parents is None or forbidden.shape[1] == 1:
                return forbidden
            return tf.gather(forbidden[..., 0], parents, batch_dims=1)

        return functools.reduce(
            operator.or_, [tf.equal(ids, of_parents(each)) for each in self.forbidden_ids]
        )


def constrain_logits(
    logits: Tensor, time: Tensor, spec: SearchSpec, inputs: SentenceInputs, loop_state: LoopState
) -> ConstrainedLogits:
    """Asks all constraints about logits [B, W, V] of the tokens after `time` others."""
    views = [
        OpenHypotheses(
            its_inputs, state, loop_state.tokens, time, inputs.max_lengths, spec.eos_id, logits
        )
        for its_inputs, state in zip(inputs.constraints, loop_state.constraints, strict=True)
    ]
    pairs = list(zip(spec.constraints, views, strict=True))
    for constraint, view in pairs:
        logits = constraint.adjust(logits, view)
    allowed = logits
    forbidden = [tf.constant([[[spec.pad_id]]]), inputs.forbidden_ids[:, None, None]]
    extra = []
    for constraint, view in pairs:
        view = view._replace(logits=logits)
        allowed = constraint.restrict(allowed, view)
        ids = constraint.forbidden_ids(view)
        if ids is not None:
            forbidden += tf.split(ids, ids.shape[2], axis=2)
        if isinstance(constraint, ProgressConstraint):
            extra.append(constraint.next_ids(view))
    return ConstrainedLogits(
        logits, allowed, tuple(forbidden), tf.concat(extra, axis=-1) if extra else None
    )


def best_continuations(
    constrained: ConstrainedLogits,
    log_probs: Tensor,
    num_sets: int,
    count: int,
    time: Tensor,
    inputs: SentenceInputs,
    spec: SearchSpec,
) -> Candidates:
    """Returns the most probable continuations of each set of hypotheses.

    Probabilities are over all tokens that there are logits of, as in training: PAD, BOS and what
    constraints forbid are left out afterwards, and the others do not get their share.

    Args:
        constrained: the logits.
        log_probs: float32 [B, W], of the hypotheses.
        num_sets: sets that the hypotheses of a sentence are cut into, W / `num_sets` after one
            another in each; W where there are `extra_ids`.
        count: how many continuations of each set.
        time: int32 [], tokens that the hypotheses have. At its maximum length a hypothesis has EOS
            as the only continuation.
        inputs, spec: of the search.

    Returns:
        Candidates, each part [B, `num_sets`, K]: the most probable come first, among equals those
        of the lower hypothesis, then of the lower id; then `extra_ids`; at last EOS of each
        hypothesis, where it must end. What is not allowed has log-probability -inf.
    """
    allowed, extra_ids = constrained.allowed, constrained.extra_ids
    num_hypotheses, vocabulary_size = allowed.shape[1:]
    size, subset = num_hypotheses // num_sets, spec.subset
    # Forbidden tokens may be among the best ones.
    num_candidates = count + size * len(constrained.forbidden_ids)
    width = min(num_candidates, size * (vocabulary_size or num_candidates))
    groups, shift, log_sum = _normalize(constrained, in_groups(allowed, width, size))
    offsets = log_probs - log_sum  # [B, W]
    found = Candidates(*top_k_of_groups(groups, width, offsets, num_sets))
    if subset is not None:
        places = tf.minimum(found.ids, tf.size(subset.ids) - 1)  # of none of them, at -inf
        found = found._replace(ids=tf.gather(subset.ids, places))
    numbers = tf.reshape(tf.range(num_hypotheses), [num_sets, size])
    if extra_ids is not None:
        is_new = tf.reduce_all(extra_ids[..., None] != found.ids[:, :, None], axis=-1)  # [B, W, P]
        extra_ids = tf.where(is_new & ~_occurred_before(extra_ids), extra_ids, spec.pad_id)
        logits = tf.gather(allowed, extra_ids, batch_dims=2) - shift[..., None]
        extra = (logits + offsets[..., None], numbers + tf.zeros_like(extra_ids), extra_ids)
        found = _join(found, Candidates(*extra))
    must_end = (time >= inputs.max_lengths)[:, None, None]  # [B, 1, 1]
    is_forbidden = must_end | constrained.is_forbidden(found.ids, found.parents)
    found = found._replace(log_probs=tf.where(is_forbidden, IMPOSSIBLE, found.log_probs))
    eos_place = spec.eos_id if subset is None else subset.places[spec.eos_id]
    end = tf.reshape(constrained.logits[..., eos_place] - shift + offsets, [-1, num_sets, size])
    eos_ids = tf.fill(tf.shape(end), spec.eos_id)
    end = tf.where(must_end, end, IMPOSSIBLE)
    found = _join(found, Candidates(end, numbers + tf.zeros_like(eos_ids), eos_ids))
    padding = [[0, 0], [0, 0], [0, num_candidates - width]]  # of a vocabulary smaller than the beam
    padded = [tf.pad(part, padding) for part in found[1:]]
    return Candidates(tf.pad(found.log_probs, padding, constant_values=IMPOSSIBLE), *padded)


def _join(*parts: Candidates) -> Candidates:
    return Candidates(*(tf.concat(fields, axis=-1) for fields in zip(*parts, strict=True)))


def _normalize(constrained: ConstrainedLogits, groups: Groups) -> tuple[Groups, Tensor, Tensor]:
    """Returns the groups of allowed logits, shifted by a number per hypothesis, and this shift.

    It is 0 unless logits are large, since subtracting it reads and writes all of them. The third
    result is the log-sum-exp of all shifted logits; it and the shift are [B, W].
    """
    logits, allowed, *_ = constrained
    largest = tf.reduce_max(groups.maxima if allowed is logits else logits, axis=2)  # [B, W]
    is_small = tf.reduce_all(tf.abs(largest) < _SMALL)
    shift = tf.where(is_small, 0.0, largest)

    def shifted(values: Tensor) -> Tensor:
        less = tf.reshape(shift, [-1, shift.shape[1], *[1] * (values.shape.rank - 2)])
        return tf.cond(is_small, lambda: values, lambda: values - less)

    shifted_groups = Groups(shifted(groups.values), groups.maxima - shift[..., None])
    if allowed is logits:
        total = tf.reduce_sum(tf.exp(shifted_groups.values), axis=(2, 3))
    else:
        total = tf.reduce_sum(tf.exp(shifted(logits)), axis=2)
    return shifted_groups, shift, tf.math.log(total)


def _occurred_before(ids: Tensor) -> Tensor:
    """Returns whether an id also stands further to the left, bool of the shape of ids [B, W, P]."""
    index = tf.range(tf.shape(ids)[-1])
    is_same = ids[..., None] == ids[:, :, None]  # [B, W, P, P]
    return tf.reduce_any(is_same & (index < index[:, None]), axis=-1)


# What each step of a search does with the state of its loop.
#
# Shapes: B sentences, W hypotheses a sentence, L longest result, V vocabulary, C tokens of a
# subset.


def read(
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
    time: Tensor,
    capacity: int | None,
) -> tuple[Tensor, LoopState]:
    """Has the model read the newest tokens.

    Returns:
        float32 logits [B, W, V] of the next tokens, or [B, W, C] of those of `spec.subset`; and the
        state after reading.
    """
    is_now = spec.positions() == time  # [L]
    ancestors = tf.where(is_now, tf.range(spec.num_hypotheses)[:, None], loop_state.ancestors)
    state = DecodingState(
        shared=spec.shared,
        projection=spec.projection,
        context=inputs.context,
        time=time,
        ancestors=ancestors[:, :, : capacity or time + 1],
        **loop_state.model,
    )
    logits, state = spec.step(loop_state.ids, state)
    logits.set_shape([None, spec.num_hypotheses, None])
    model = {name: getattr(state, name) for name in loop_state.model}
    logits = tf.cast(logits, tf.float32)
    if spec.places is not None:
        padding = [[0, 0], [0, 0], [0, 1]]
        logits = tf.pad(logits, padding, constant_values=-float("inf"))
        logits = tf.gather(logits, spec.places, axis=2)
    return logits, loop_state._replace(ancestors=ancestors, model=model)


def extend(
    spec: SearchSpec,
    inputs: SentenceInputs,
    loop_state: LoopState,
    ids: Tensor,
    parents: Tensor | None,
    time: Tensor,
) -> LoopState:
    """Adds a token to each hypothesis.

    Args:
        spec, inputs: of the search.
        loop_state: after `read`.
        ids: int32 [B, W], the tokens.
        parents: int32 [B, W], the hypotheses that they continue; None where each its own.
        time: int32 [], tokens that the hypotheses have.
    """
    if parents is not None:
        kept = {name: part for name, part in loop_state.model.items() if name != "kv_cache"}
        reordered = (loop_state.tokens, loop_state.ancestors, kept, loop_state.constraints)
        tokens, ancestors, kept, states = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, parents, batch_dims=1), reordered
        )
        loop_state = LoopState(ids, tokens, ancestors, loop_state.model | kept, states)
    return loop_state._replace(
        ids=ids,
        tokens=tf.where(spec.positions() == time, ids[..., None], loop_state.tokens),
        constraints=tuple(
            constraint.update(state, ids, its_inputs)
            for constraint, state, its_inputs in zip(
                spec.constraints, loop_state.constraints, inputs.constraints, strict=True
            )
        ),
    )


def grow_cache(loop_state: LoopState, capacity: int, new_capacity: int) -> LoopState:
    """Gives the model's KV cache room for `new_capacity` tokens in place of `capacity`."""
    missing = (new_capacity - capacity) * loop_state.ids.shape[1]

    def pad(leaf: Tensor) -> Tensor:
        paddings = [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]]
        return tf.pad(leaf, paddings)

    kv_cache = tf.nest.map_structure(pad, loop_state.model["kv_cache"])
    return loop_state._replace(model=loop_state.model | {"kv_cache": kv_cache})


# Hypotheses that never branch: what greedy search and sampling share.
#
# Shapes: B sentences, W hypotheses a sentence, V vocabulary.

# From the logits, time and inputs to the next ids and their log-probabilities, both [B, W].
Choose = Callable[[ConstrainedLogits, Tensor, SentenceInputs], tuple[Tensor, Tensor]]


class _Paths(NamedTuple):
    log_probs: Tensor  # float32 [B, W]
    scores: Tensor  # float32 [B, W], of those that are complete
    lengths: Tensor  # int32 [B, W], EOS included; 0 while the translation is open
    loop_state: LoopState


def search_single_path(
    spec: SearchSpec, inputs: SentenceInputs, loop_state: LoopState, choose: Choose
) -> Hypotheses:
    """Returns the W translations of each sentence whose tokens `choose` takes, best first."""
    zeros = tf.zeros_like(loop_state.ids)
    no_scores = tf.fill(tf.shape(zeros), IMPOSSIBLE)
    finished = decode_loop(
        lambda time, inputs, paths, capacity: _advance(time, inputs, paths, capacity, spec, choose),
        inputs,
        _Paths(tf.zeros_like(no_scores), no_scores, zeros, loop_state),
        is_open=lambda paths: tf.reduce_any(paths.lengths == 0, axis=1),
        result_of=lambda paths: Finished(
            paths.scores, paths.log_probs, paths.loop_state.tokens, paths.lengths
        ),
        grow_cache=lambda paths, *sizes: paths._replace(
            loop_state=grow_cache(paths.loop_state, *sizes)
        ),
        max_steps=spec.result_length,
        capacities=spec.capacities,
    )
    return make_hypotheses(best_of([finished], spec.num_hypotheses), spec)


def _advance(
    time: Tensor,
    inputs: SentenceInputs,
    paths: _Paths,
    capacity: int | None,
    spec: SearchSpec,
    choose: Choose,
) -> _Paths:
    """Appends a token to every open translation; finished ones stay as they are."""
    logits, loop_state = read(spec, inputs, paths.loop_state, time, capacity)
    constrained = constrain_logits(logits, time, spec, inputs, loop_state)
    ids, gains = choose(constrained, time, inputs)
    is_open = paths.lengths == 0
    has_ended = is_open & (ids == spec.eos_id)
    log_probs = paths.log_probs + tf.where(is_open, gains, 0.0)
    scores = final_scores(
        log_probs, time + 1, loop_state.model.get("coverage"), inputs, spec.length_penalty_form
    )
    return _Paths(
        log_probs=log_probs,
        scores=tf.where(has_ended, scores, paths.scores),
        lengths=tf.where(has_ended, time + 1, paths.lengths),
        loop_state=extend(spec, inputs, loop_state, ids, None, time),
    )


# Greedy search: the most probable token at every step.
#
# Shapes: B sentences.


def greedy_search(
    step: StepFunction,
    state: DecodingState,
    *,
    bos_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor = 0.0,
    length_penalty_form: str = "gnmt",
    coverage_penalty: Tensor = 0.0,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    vocabulary: VocabularySubset | None = None,
    eos_id: int = EOS_ID,
    pad_id: int = PAD_ID,
) -> Hypotheses:
    """Returns one translation of each sentence: the most probable token at every step.

    A translation ends at its first EOS, or takes EOS once it has `max_lengths` tokens.
    Arguments, result and errors are those of `beam_search` with `beam_size` 1, but that
    `length_penalty` is 0 by default.
    """
    spec, inputs, loop_state = prepare_search(
        step,
        state,
        1,
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

    def most_probable(
        constrained: ConstrainedLogits, time: Tensor, inputs: SentenceInputs
    ) -> tuple[Tensor, Tensor]:
        none = tf.zeros_like(inputs.alpha)[:, None]
        found = best_continuations(constrained, none, 1, 1, time, inputs, spec)  # [B, 1, K]
        best = tf.argmax(found.log_probs, axis=-1, output_type=tf.int32)  # [B, 1]
        return tf.gather(found.ids, best, batch_dims=2), tf.reduce_max(found.log_probs, axis=-1)

    return search_single_path(spec, inputs, loop_state, most_probable)


# When a beam search is done with a sentence.
#
# Shapes: B sentences, G groups.


def may_improve(
    time: Tensor,
    best: Sequence[Finished],
    kept: Sequence[Candidates],
    inputs: SentenceInputs,
    form: str = "gnmt",
) -> Tensor:
    """Returns whether an open hypothesis can come to beat a finished one of its group, bool [B, 1].

    A log-probability, at most 0, only falls, and the coverage penalty is at most 0. The length
    penalty is at most that of the shortest translation to come or that of the longest, as alpha
    is negative or positive. Groups stop together, since what one chooses matters to the next.
    """
    shortest = length_penalty(time + 2, inputs.alpha, form)  # a token more, and EOS
    longest = length_penalty(inputs.max_lengths + 1, inputs.alpha, form)
    bounds = tf.maximum(shortest, longest)[:, None]  # [B, 1]
    largest = tf.stack([tf.reduce_max(group.log_probs, axis=1) for group in kept], axis=1)  # [B, G]
    worst = tf.stack([group.scores[:, -1] for group in best], axis=1)
    return tf.reduce_any(largest / bounds > worst, axis=1, keepdims=True)


def lacks_finished(best: Sequence[Finished]) -> Tensor:
    """Returns whether a group has finished fewer hypotheses than it keeps, bool [B, 1]."""
    worst = tf.stack([group.scores[:, -1] for group in best], axis=1)  # [B, G]
    return tf.reduce_any(worst == IMPOSSIBLE, axis=1, keepdims=True)


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
        lambda time, inputs, beams, capacity: _advance_beam(
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


def _advance_beam(
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
