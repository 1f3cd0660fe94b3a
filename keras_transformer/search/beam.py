"""Beam search over a step function, with length and coverage penalties.

`beam_search` is the contract, and `_step` is one step of the algorithm; the functions that it calls
follow in the order of the calls. Sampling calls them too. The state of a search, and the loop that
repeats its step, are in loop.py.

Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7.

Shapes: B sentences, W hypotheses ("beams") of a sentence, N translations of a sentence, L longest
result, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import (
    IMPOSSIBLE,
    DecodingState,
    StepFunction,
    Tensor,
)
from keras_transformer.search import scoring
from keras_transformer.search.constraints import Constraint, OpenHypotheses, forbid_ids
from keras_transformer.search.loop import (
    Finished,
    Hypotheses,
    SearchSpec,
    SentenceInputs,
    State,
    run_search,
    start_search,
)
from keras_transformer.search.scoring import NOTHING, is_possible


def beam_search(
    step: StepFunction,
    state: DecodingState,
    *,
    max_lengths: Tensor,
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    **options: Any,
) -> Hypotheses:
    """Finds the best translations with a beam of `beam_size` hypotheses.

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
        max_lengths: int [B], tokens a translation may have before EOS; 0 or more.
        constraints: on the translations, see `Constraint`.
        max_length_bound: the largest value of `max_lengths` (larger ones are cut to it), where
            shapes must be known before the graph runs, as for XLA. L is then `max_length_bound` +
            1; otherwise it is the largest of `max_lengths` + 1.
        **options: fields of `SearchConfig`: `beam_size` W, `num_translations` N,
            `length_penalty_form`, `early_stop`; and `length_penalty` alpha and `coverage_penalty`
            beta, each a number or float [B].

    Raises:
        InputError: an option is unknown or out of range, see `SearchConfig`.
    """
    start = start_search("beam", step, state, max_lengths, constraints, max_length_bound, options)
    return run_search(_step, *start)


def _step(spec: SearchSpec, inputs: SentenceInputs, state: State) -> State:
    """Replaces the open hypotheses of each sentence with their best continuations by one token."""
    beam_size, early_stop = spec.num_hypotheses, spec.search.early_stop

    # 1. The model reads the newest tokens.
    logits, state = run_model(spec, inputs, state)

    # 2. The 2W best continuations of all hypotheses, best first. At most W of them end.
    rules = read_rules(spec, inputs, state)
    log_probs, parents, ids = best_continuations(logits, spec, state, rules)  # [B, 2W]
    has_ended = ids == EOS_ID
    if early_stop == "narrow":
        num_finished = tf.math.count_nonzero(
            is_possible(state.finished.scores), axis=1, keepdims=True, dtype=tf.int32
        )
        is_in_beam = tf.range(2 * beam_size) < beam_size - num_finished  # [B, 2W]
        log_probs = tf.where(is_in_beam, log_probs, NOTHING)

    # 3. EOS among the W best finishes a hypothesis, and the W best others stay open.
    ending = tf.where(has_ended, log_probs, NOTHING)[:, :beam_size]
    finished = collect_finished(spec, inputs, state, ending, parents[:, :beam_size])
    log_probs = tf.where(has_ended, NOTHING, log_probs)
    log_probs, best = tf.math.top_k(log_probs, beam_size)  # [B, W]
    parents, ids = (tf.gather(part, best, batch_dims=1) for part in (parents, ids))

    # 4. Is the sentence still open (`early_stop`)? The best open hypothesis decides.
    # [B, 1], the last of N places in an exact search, else of W (`start_search`); `NOTHING` while
    # one is empty.
    worst = finished.scores[:, -1:]
    if early_stop in ("first", "narrow"):
        is_open = ~is_possible(worst)
    else:  # "exact" and "current"
        # A log-probability only falls, and the coverage penalty is at most 0, so no score to come
        # is above the log-probability divided by the penalty of the longest translation.
        divisor = inputs.longest_divisor  # [B, 1]
        if early_stop == "current":  # not a bound: with more tokens the score may rise again
            divisor = tf.gather(inputs.length_divisors, state.time + 1, axis=1)
        is_open = log_probs[:, :1] / divisor > worst

    # 5. The hypotheses that stay open become the next beam; a sentence without any is done.
    return advance(spec, inputs, state, ids, parents)._replace(
        log_probs=tf.where(is_open, log_probs, NOTHING), finished=finished
    )


def run_model(spec: SearchSpec, inputs: SentenceInputs, state: State) -> tuple[Tensor, State]:
    """Runs the model on the newest tokens.

    Returns:
        The logits [B, W, V] of the next tokens, and the state after reading.
    """
    is_now = spec.positions == state.time  # [L]
    ancestors = tf.where(is_now, tf.range(spec.num_hypotheses)[:, None], state.ancestors)
    size = spec.capacities[0] if spec.capacities else state.time + 1  # tokens, or room for them
    before = DecodingState(
        projection=spec.projection,
        context=inputs.context,
        time=state.time,
        ancestors=ancestors[:, :, :size],
        **state.memory,
    )
    logits, after = spec.step(state.ids, before)
    memory = {name: getattr(after, name) for name in state.memory}
    return logits, state._replace(ancestors=ancestors, memory=memory)


class Rules(NamedTuple):
    """The constraints on the next tokens."""

    # Each with its view of the hypotheses, and whether it is active.
    constraints: list[tuple[Constraint, OpenHypotheses, Tensor | bool]]
    forced_ids: Tensor  # int32 [B], the only token that may come; PAD for any
    forbidden_ids: Tensor  # int32 [B, W, N], among them PAD and BOS


def read_rules(spec: SearchSpec, inputs: SentenceInputs, state: State) -> Rules:
    """Asks all constraints about the open hypotheses, except for passes over the vocabulary."""
    constraints = [
        (
            constraint,
            OpenHypotheses(parameters, memory, state.tokens, state.time, inputs.max_lengths),
        )
        for constraint, parameters, memory in zip(
            spec.constraints, inputs.constraints, state.constraints, strict=True
        )
    ]
    forced = tf.where(state.time >= inputs.max_lengths, EOS_ID, PAD_ID)
    forbidden = [tf.constant([[[PAD_ID, BOS_ID]]])]
    for constraint, hypotheses in constraints:
        if (ids := constraint.forced_ids(hypotheses)) is not None:
            forced = tf.where(forced == PAD_ID, ids, forced)
        if (ids := constraint.forbidden_ids(hypotheses)) is not None:
            forbidden.append(ids)
    shape = tf.unstack(tf.shape(state.ids))  # [B, W]
    forbidden_ids = tf.concat(
        [tf.broadcast_to(ids, [*shape, ids.shape[2]]) for ids in forbidden], axis=2
    )
    forbidden_ids = tf.where(forbidden_ids == forced[:, None, None], PAD_ID, forbidden_ids)
    active = [(rule, hypotheses, rule.is_active(hypotheses)) for rule, hypotheses in constraints]
    return Rules(active, forced, forbidden_ids)


def best_continuations(
    logits: Tensor, spec: SearchSpec, state: State, rules: Rules
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the 2W best continuations of a sentence's hypotheses by one token, best first.

    A continuation is as probable as its hypothesis times its last token.

    Returns:
        Log-probabilities, float32 [B, 2W], `NOTHING` for what is forbidden; and hypotheses and
        tokens, int32 [B, 2W].
    """
    num_hypotheses, vocabulary_size = spec.num_hypotheses, logits.shape[2]
    count = 2 * num_hypotheses
    blocks, largest, rest = rank_next_tokens(logits, spec, rules)
    # Where the pass over the vocabulary was skipped, up to N forbidden ids of each hypothesis may
    # be among the best: of the best 2W + W * N at least 2W are allowed. XLA never skips it.
    num_forbidden = 0 if spec.has_fixed_shapes else rules.forbidden_ids.shape[2]
    most = min(count + num_hypotheses * num_forbidden, num_hypotheses * vocabulary_size)
    log_probs, parents, ids = scoring.top_k_of_rows(blocks, most, -largest, state.log_probs - rest)
    forbidden = tf.gather(rules.forbidden_ids, parents, batch_dims=1)  # [B, most, N]
    is_forbidden = tf.reduce_any(forbidden == ids[..., None], axis=2) | ~is_possible(log_probs)
    log_probs, best = tf.math.top_k(tf.where(is_forbidden, NOTHING, log_probs), count)
    parents, ids = (tf.gather(part, best, batch_dims=1) for part in (parents, ids))
    return log_probs, parents, tf.minimum(ids, vocabulary_size - 1)  # padding is beyond


def rank_next_tokens(
    logits: Tensor, spec: SearchSpec, rules: Rules
) -> tuple[scoring.Blocks, Tensor, Tensor]:
    """Applies the constraints to logits [B, W, V].

    If none is active and no token forced, this skips the pass over the vocabulary, and
    `rules.forbidden_ids` are not yet forbidden. Under XLA it never skips.

    Log-probabilities are over all tokens, as in training: the others do not get the share of what
    is forbidden. A forced token counts at its own probability, after `adjust`.

    Returns:
        `blocks`, `IMPOSSIBLE` for what is forbidden, and `largest` and `rest` [B, W]:
        log-probabilities are blocks - largest - rest, in this order.
    """
    count = 2 * spec.num_hypotheses
    logits = tf.cast(logits, tf.float32)

    def constrain(method: str, logits: Tensor) -> Tensor:
        for constraint, hypotheses, is_active in rules.constraints:
            change = functools.partial(getattr(constraint, method), logits, hypotheses)
            logits = _choose(spec, is_active, change, functools.partial(tf.identity, logits))
        return logits

    def with_normalizers(logits: Tensor) -> tuple[scoring.Blocks, Tensor, Tensor]:
        blocks = scoring.cut_into_blocks(logits, count)
        return blocks, *scoring.log_normalizers(blocks, is_compiled=spec.has_fixed_shapes)

    def constrained() -> tuple[scoring.Blocks, Tensor, Tensor]:
        adjusted = constrain("adjust", logits)
        _, largest, rest = with_normalizers(adjusted)
        log_probs = adjusted - largest[..., None] - rest[..., None]
        allowed = constrain("forbid", forbid_ids(log_probs, rules.forbidden_ids))
        forced = rules.forced_ids[:, None, None]  # [B, 1, 1]
        only_forced = tf.where(tf.range(logits.shape[2]) == forced, log_probs, IMPOSSIBLE)
        allowed = tf.where(forced == PAD_ID, allowed, only_forced)
        zeros = tf.zeros_like(largest)
        return scoring.cut_into_blocks(allowed, count), zeros, zeros

    is_forced = rules.forced_ids != PAD_ID  # [B]
    is_constrained = tf.concat([[active for *_, active in rules.constraints], is_forced], axis=0)
    return _choose(
        spec,
        tf.reduce_any(is_constrained),
        constrained,
        functools.partial(with_normalizers, logits),
    )


def _choose(
    spec: SearchSpec, condition: Tensor | bool, changed: Callable[[], Any], same: Callable[[], Any]
) -> Any:
    """Calls `changed`, or `same`, whose results are equal where the condition, [], is False.

    XLA, for which shapes are fixed, never gets a branch: on a GPU the host would wait for the
    condition, which takes longer than what `changed` computes.
    """
    if condition is False:
        return same()
    if condition is True or spec.has_fixed_shapes:
        return changed()
    return tf.cond(condition, changed, same)


def collect_finished(
    spec: SearchSpec, inputs: SentenceInputs, state: State, log_probs: Tensor, parents: Tensor
) -> Finished:
    """Collects the best of the finished hypotheses and of those that end now.

    These are the hypotheses `parents`, int32 [B, any], with `log_probs`, float32 [B, any], EOS
    included; `NOTHING` for those that do not end.
    """
    old = state.finished
    coverage, tokens = _gather_parents((state.memory.get("coverage", ()), state.tokens), parents)
    divisor = tf.gather(inputs.length_divisors, state.time + 1, axis=1)  # [B, 1]
    scores = log_probs / divisor
    if "coverage" in state.memory:
        scores += scoring.coverage_penalty(coverage, inputs.options["coverage_penalty"])
    new = Finished(
        scores=tf.where(is_possible(log_probs), scores, NOTHING),
        log_probs=log_probs,
        tokens=tf.where(spec.positions == state.time, EOS_ID, tokens),
    )
    both = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=1), old, new)
    _, best = tf.math.top_k(both.scores, old.scores.shape[1])  # ties go to the older one
    return _gather_parents(both, best)


def advance(
    spec: SearchSpec,
    inputs: SentenceInputs,
    state: State,
    ids: Tensor,
    parents: Tensor | None = None,
) -> State:
    """Appends the tokens `ids` [B, W] to the hypotheses `parents` [B, W], or each to its own."""
    if parents is not None and spec.num_hypotheses > 1:
        # The KV cache stays where it is; the ancestors say which of its entries belong to whom.
        moving = {name: part for name, part in state.memory.items() if name != "kv_cache"}
        tokens, ancestors, moved, constraints = _gather_parents(
            (state.tokens, state.ancestors, moving, state.constraints), parents
        )
        state = state._replace(
            tokens=tokens,
            ancestors=ancestors,
            memory=state.memory | moved,
            constraints=constraints,
        )
    return state._replace(
        time=state.time + 1,
        ids=ids,
        tokens=tf.where(spec.positions == state.time, ids[..., None], state.tokens),
        constraints=tuple(
            constraint.update(memory, ids, parameters)
            for constraint, parameters, memory in zip(
                spec.constraints, inputs.constraints, state.constraints, strict=True
            )
        ),
    )


def _gather_parents(nest: Any, parents: Tensor) -> Any:
    """Gathers a nest of [B, W, ...] for the hypotheses `parents` [B, any]."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, parents, batch_dims=1), nest)
