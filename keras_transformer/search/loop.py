"""What every search shares: its state, the start, the loop over the steps, and the result.

A search is a function that makes the next `State` from three arguments: `spec` is the same for all
sentences, `inputs` differ between sentences but never change, and `state` changes at every step.

Shapes: B sentences, W hypotheses of a sentence, N translations of a sentence, L longest result,
S source length, V vocabulary.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID, SearchConfig
from keras_transformer.decoding import NO_SCORE, DecodingState, StepFunction, Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import scoring
from keras_transformer.search.constraints import Constraint
from keras_transformer.search.scoring import NOTHING, is_possible


class Hypotheses(NamedTuple):
    """The best translations of each sentence, best first; each field is a tensor [B, ...].

    Where a sentence has fewer than N translations (a tiny vocabulary, a short limit, constraints
    that contradict each other), the last places are empty: length 0, only PAD, and `NO_SCORE`,
    which is -1e9, as score and log-probability.

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


class SearchSpec(NamedTuple):
    """Constants of all sentences."""

    search: SearchConfig  # without the options of `SentenceInputs`
    step: StepFunction
    projection: Any  # of the model's states
    num_hypotheses: int  # W
    positions: Tensor  # int32 [L], 0 to L - 1; L is the largest of the max lengths, plus EOS
    capacities: tuple[int, ...]  # of the KV cache, now and later; empty if it grows at every step
    constraints: tuple[Constraint, ...]  # in the order in which they are called

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether each step has the shapes of the one before it, as XLA needs."""
        return bool(self.capacities)


class SentenceInputs(NamedTuple):
    """Constants of each sentence; a nest of tensors [B, ...]."""

    context: Any  # of the model's state
    max_lengths: Tensor  # int32 [B], tokens before EOS, 0 or more
    length_divisors: Tensor  # float32 [B, L + 1, 1], of translations with 0, 1, 2 ... tokens
    longest_divisor: Tensor  # float32 [B, 1], of the longest translation of the sentence
    constraints: tuple[Any, ...]  # the inputs of each constraint
    options: dict[str, Tensor]  # each [B]


class Finished(NamedTuple):
    """Complete translations, best first; those that do not exist have the score `NOTHING`."""

    scores: Tensor  # float32 [B, N]
    log_probs: Tensor  # float32 [B, N]
    tokens: Tensor  # int32 [B, N, L], EOS included, then PAD


class State(NamedTuple):
    """The open hypotheses and the finished ones; changes at every step.

    A sentence without open hypotheses is done: its finished translations no longer change.
    """

    time: Tensor  # int32 [], how many tokens the open hypotheses have
    log_probs: Tensor  # float32 [B, W]; `NOTHING` for hypotheses that do not exist or are finished
    ids: Tensor  # int32 [B, W], the newest tokens, not yet read by the model
    tokens: Tensor  # int32 [B, W, L], all of them without BOS, then PAD
    ancestors: Tensor  # int32 [B, W, L], see `DecodingState`; -1 where there is no token yet
    memory: dict[str, Any]  # the changing fields of a `DecodingState`: tokens that were read
    constraints: tuple[Any, ...]  # the state of each constraint
    finished: Finished


SearchStep = Callable[[SearchSpec, SentenceInputs, State], State]


# Options of searches: the same for all sentences, or with a value for each sentence.
_SHARED = ("beam_size", "num_translations", "length_penalty_form", "early_stop")
_TYPES = {
    "length_penalty": tf.float32,
    "coverage_penalty": tf.float32,
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "seed": tf.int64,
}


def start_search(
    method: Literal["beam", "sampling"],
    step: StepFunction,
    state: DecodingState,
    max_lengths: Tensor,
    constraints: Sequence[Constraint],
    max_length_bound: int | None,
    options: Mapping[str, Any],
) -> tuple[SearchSpec, SentenceInputs, State]:
    """Makes the constants of a search, and its first state, of empty hypotheses.

    Args:
        method, options: fields of `SearchConfig`.
        step, state, max_lengths, constraints, max_length_bound: as in `beam_search`.

    Raises:
        InputError: an option is unknown or out of range. Tensors of a graph have no values yet, and
            pass.
    """
    known = {*_SHARED, *_TYPES}.difference(SearchConfig.unused_by(method))
    if unknown := sorted(options.keys() - known):
        raise InputError(
            f"the method {method} has no option {', '.join(unknown)}; it has "
            f"{', '.join(sorted(known))}"
        )
    for name, values in options.items():
        if name in _TYPES and name != "seed" and not hasattr(values, "graph"):
            for value in np.unique(values).tolist():
                SearchConfig(method=method, **{name: value})
    shared = {name: options[name] for name in _SHARED if name in options}
    search = SearchConfig(method=method, **shared)
    num_hypotheses = search.num_translations
    if method == "beam":
        num_hypotheses = search.beam_size
        if num_hypotheses == 1:
            search = search.replace(early_stop="first")  # greedy search ends with its first EOS
    # Finished hypotheses to keep; the last one decides whether a sentence is done (`early_stop`).
    num_finished = search.num_translations if search.early_stop == "exact" else num_hypotheses
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    batch_size = tf.shape(max_lengths)[0]
    if max_length_bound is None:
        result_length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, max_length_bound)
        result_length = max_length_bound + 1
    sentence_options = repeat_for_each_sentence(
        {
            name: tf.cast(options.get(name, getattr(search, name)), dtype)
            for name, dtype in _TYPES.items()
            if name in known
        },
        batch_size,
    )
    alpha = sentence_options["length_penalty"][:, None]
    # All that a step looks up. A power of each length in the loop would be several operations.
    divisors, longest_divisor = (
        scoring.length_penalty(lengths, alpha, search.length_penalty_form)
        for lengths in (tf.range(result_length + 1), max_lengths[:, None] + 1)
    )
    inputs = SentenceInputs(
        context=state.context,
        max_lengths=max_lengths,
        length_divisors=divisors[..., None],
        longest_divisor=longest_divisor,
        constraints=repeat_for_each_sentence(
            tuple(constraint.inputs for constraint in constraints), batch_size
        ),
        options=sentence_options,
    )
    spec = SearchSpec(
        search=search,
        step=step,
        projection=state.projection,
        num_hypotheses=num_hypotheses,
        positions=tf.range(result_length),
        capacities=() if max_length_bound is None else kv_cache_capacities(max_length_bound),
        constraints=tuple(constraints),
    )

    def filled(count: int, value: int) -> Tensor:  # [B, count, L]
        tokens = tf.fill([batch_size, count, result_length], value)
        return tf.ensure_shape(tokens, [None, count, *spec.positions.shape])

    log_probs = tf.zeros([num_hypotheses])
    if method == "beam":  # one empty hypothesis; the others do not exist yet
        log_probs = tf.where(tf.range(num_hypotheses) == 0, log_probs, NOTHING)
    memory = {"recurrent_state": state.recurrent_state, "kv_cache": state.kv_cache}
    if state.coverage is not None:
        memory["coverage"] = state.coverage
    first = State(
        time=tf.constant(0),
        log_probs=tf.broadcast_to(log_probs, [batch_size, num_hypotheses]),
        ids=tf.fill([batch_size, num_hypotheses], BOS_ID),
        tokens=filled(num_hypotheses, PAD_ID),
        ancestors=filled(num_hypotheses, -1),
        memory=memory,
        constraints=tuple(
            constraint.initial_state(parameters, num_hypotheses)
            for constraint, parameters in zip(constraints, inputs.constraints, strict=True)
        ),
        finished=Finished(
            scores=tf.fill([batch_size, num_finished], NOTHING),
            log_probs=tf.fill([batch_size, num_finished], NOTHING),
            tokens=filled(num_finished, PAD_ID),
        ),
    )
    return spec, inputs, first


def repeat_for_each_sentence(values: Any, batch_size: Tensor) -> Any:
    """Makes all leaves of a nest [B, ...]: those of shape [] or [1, ...] are repeated."""

    def repeat(value: Tensor) -> Tensor:
        value = tf.convert_to_tensor(value)
        if value.shape.rank == 0:
            value = value[None]
        if value.shape.rank is None or value.shape[0] != 1:
            return value
        return tf.broadcast_to(value, tf.concat([[batch_size], tf.shape(value)[1:]], axis=0))

    return tf.nest.map_structure(repeat, values)


def run_search(
    step: SearchStep, spec: SearchSpec, inputs: SentenceInputs, state: State
) -> Hypotheses:
    """Runs steps until every sentence is done, and returns the best translations."""
    run = _run_in_stages if spec.has_fixed_shapes else _run_on_shrinking_batch
    return _make_hypotheses(run(step, spec, inputs, state), spec.search.num_translations)


def _run_on_shrinking_batch(
    step: SearchStep, spec: SearchSpec, inputs: SentenceInputs, state: State
) -> Finished:
    """Runs steps; sentences that are done leave the batch and cost no more work."""
    max_time = tf.size(spec.positions)  # a bound for the loop: EOS is forced by then

    def shrink_batch(rows: Tensor, inputs: Any, state: State, finished: Finished) -> Any:
        # Dropping sentences copies the others, so it waits until a quarter are done.
        state = _run_steps(functools.partial(step, spec, inputs), state, 0.75, max_time)
        all_rows = tf.range(tf.shape(finished.scores)[0])
        finished = tf.nest.map_structure(
            lambda old, new: tf.dynamic_stitch([all_rows, rows], [old, new]),
            finished,
            state.finished,
        )
        open_rows = tf.where(_has_open_hypotheses(state))[:, 0]
        rows, inputs, state = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, open_rows) if leaf.shape.rank else leaf,
            (rows, inputs, state),
        )
        return rows, inputs, state, finished

    rows = tf.range(tf.shape(state.ids)[0])
    variables = (rows, inputs, state, state.finished)
    *_, finished = tf.while_loop(
        lambda rows, inputs, state, _: (tf.shape(rows)[0] > 0) & (state.time < max_time),
        shrink_batch,
        variables,
        shape_invariants=tf.nest.map_structure(_changing_shape, variables),
    )
    return finished


def _has_open_hypotheses(state: State) -> Tensor:
    """Which sentences are not done, bool [B]."""
    return is_possible(tf.reduce_max(state.log_probs, axis=1))


def _run_steps(
    step: Callable[[State], State], state: State, share: float, max_time: Tensor
) -> State:
    """Runs steps while more than this share of the sentences are open, up to `max_time`."""
    (state,) = tf.while_loop(
        lambda state: tf.reduce_mean(tf.cast(_has_open_hypotheses(state), tf.float32)) > share,
        lambda state: (step(state),),
        (state,),
        shape_invariants=tf.nest.map_structure(
            lambda leaf: _changing_shape(leaf, leaf.shape[:1]), (state,)
        ),
        maximum_iterations=max_time - state.time,
    )
    return state


def _changing_shape(leaf: Tensor, first: Any = (None,)) -> tf.TensorShape:
    """The shape of a leaf with another first dimension, and sizes of 0, which grow, unknown.

    The others stay known, since models may need them for reshaping.
    """
    if leaf.shape.rank == 0:
        return leaf.shape
    rest = [None if size == 0 else size for size in leaf.shape[1:]]
    return tf.TensorShape(first).concatenate(rest)


# XLA needs all shapes before the graph runs: the batch does not shrink, and the KV cache has a
# fixed capacity, which grows in a few stages. On a CPU without XLA that form takes a quarter more
# time, since each step reads and writes all of the room.


def kv_cache_capacities(max_length_bound: int) -> tuple[int, ...]:
    """How many tokens a KV cache of fixed capacity has room for, stage by stage.

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


def _run_in_stages(
    step: SearchStep, spec: SearchSpec, inputs: SentenceInputs, state: State
) -> Finished:
    """Runs within the first capacity, and in the next ones while sentences are open.

    Work grows with the capacity, and most sentences finish before the largest is needed.
    """
    capacity, *larger = spec.capacities
    state = _run_steps(functools.partial(step, spec, inputs), state, 0.0, capacity)
    if not larger:
        return state.finished
    missing = (larger[0] - capacity) * spec.num_hypotheses

    def continue_with_more_room() -> Finished:
        kv_cache = tf.nest.map_structure(
            lambda leaf: tf.pad(leaf, [[0, 0]] * (leaf.shape.rank - 2) + [[0, missing], [0, 0]]),
            state.memory["kv_cache"],
        )
        return _run_in_stages(
            step,
            spec._replace(capacities=tuple(larger)),
            inputs,
            state._replace(memory=state.memory | {"kv_cache": kv_cache}),
        )

    return tf.cond(
        tf.reduce_any(_has_open_hypotheses(state)),
        continue_with_more_room,
        lambda: state.finished,
    )


def _make_hypotheses(finished: Finished, num_translations: int) -> Hypotheses:
    """Makes the result of a search, with finite scores for places without a translation."""
    finished = tf.nest.map_structure(lambda part: part[:, :num_translations], finished)
    is_there = is_possible(finished.scores)
    ids = tf.where(is_there[..., None], finished.tokens, PAD_ID)
    return Hypotheses(
        ids=ids,
        scores=tf.where(is_there, finished.scores, NO_SCORE),
        log_probs=tf.where(is_there, finished.log_probs, NO_SCORE),
        lengths=tf.math.count_nonzero(ids != PAD_ID, axis=-1, dtype=tf.int32),
    )
