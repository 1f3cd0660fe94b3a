"""Phrases that a translation must not contain, and phrases that it must contain.

Each hypothesis goes through every phrase with the automaton of Knuth, Morris and Pratt 1977: one
number a phrase, whatever the length of the hypothesis.

Shapes: B sentences, W hypotheses a sentence (or candidates), V vocabulary, P phrases a sentence, M
tokens of the longest phrase. Phrases are int32 [B, P, M], or [1, P, M] if they are the same for all
sentences, each followed by PAD; a phrase of only PAD is neutral.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search.constraints import (
    Constraint,
    OpenHypotheses,
    ProgressConstraint,
    forbid,
    if_any,
    keep_only,
)


class BannedPhrases(Constraint):
    """No translation contains any of the phrases.

    Args:
        phrases: int32 [B, P, M].
        pad_id: the token that follows a phrase.
    """

    def __init__(self, phrases: Tensor, pad_id: int = PAD_ID) -> None:
        self.inputs = _make_automata(phrases, pad_id)

    def initial_state(self, inputs: "Phrases", num_hypotheses: int) -> Tensor:
        return _zeros(inputs, num_hypotheses)

    def update(self, state: Tensor, ids: Tensor, inputs: "Phrases") -> Tensor:
        def advanced() -> Tensor:
            return _advance(inputs, state, ids[..., None])[1]

        return if_any(inputs.lengths > 0, advanced, state)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        phrases, partial = hypotheses.inputs, hypotheses.state

        def restricted() -> Tensor:
            lengths = phrases.lengths[:, None]  # [B, 1, P]
            is_last = (lengths > 0) & (partial == lengths - 1)
            return forbid(allowed, _look_up(phrases.ids, phrases, partial), is_last)

        return if_any(phrases.lengths > 0, restricted, allowed)


class PhraseState(NamedTuple):
    """How far hypotheses are with each required phrase."""

    met: Tensor  # bool [B, W, P], whether they have it anywhere; True where it is empty
    # int32 [B, W, P], how many of its tokens they end with: the longest suffix that begins the
    # phrase but does not complete it
    partial: Tensor


class RequiredPhrases(ProgressConstraint):
    """Every translation contains all phrases, in any order (Post and Vilar 2018; Hu et al. 2019).

    This holds if the maximum length is at least the sum of their lengths and no other constraint
    forbids their tokens. One occurrence is enough, also for a phrase that is given twice or is part
    of another one.

    Args:
        phrases: int32 [B, P, M].
        pad_id: the token that follows a phrase.
    """

    def __init__(self, phrases: Tensor, pad_id: int = PAD_ID) -> None:
        self.inputs = _make_automata(phrases, pad_id)

    def initial_state(self, inputs: "Phrases", num_hypotheses: int) -> PhraseState:
        zeros = _zeros(inputs, num_hypotheses)
        return PhraseState((zeros == 0) & (inputs.lengths == 0)[:, None], zeros)

    def update(self, state: PhraseState, ids: Tensor, inputs: "Phrases") -> PhraseState:
        def advanced() -> PhraseState:
            is_complete, partial = _advance(inputs, state.partial, ids[..., None])
            return PhraseState(state.met | is_complete, partial)

        return if_any(inputs.lengths > 0, advanced, state)

    def bank(self, state: PhraseState, inputs: "Phrases") -> Tensor:
        return phrase_progress(state, inputs).bank

    def next_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        met, partial = hypotheses.state
        ids = _look_up(hypotheses.inputs.ids, hypotheses.inputs, partial)
        return tf.where(met, hypotheses.pad_id, ids)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Forbids tokens after which a phrase could no longer be written.

        EOS is forbidden while a phrase is not met. If too few tokens are left to begin the furthest
        phrase again, only its next token is allowed. A hypothesis of the maximum length may end in
        any case.
        """
        met, partial = hypotheses.state
        left = (hypotheses.max_lengths - hypotheses.time)[:, None]  # [B, 1]
        is_unmet = tf.reduce_any(~met, axis=-1) & (left > 0)  # [B, W]

        def restricted() -> Tensor:
            best, _, needed = phrase_progress(hypotheses.state, hypotheses.inputs)
            # Any other token takes one of those left, and may lose the `best` that are written.
            must_continue = is_unmet & (left <= needed + best)
            is_best = ~met & (partial == best[..., None])  # [B, W, P]
            eos_ids = tf.fill(tf.shape(is_unmet[..., None]), hypotheses.eos_id)
            return tf.where(
                must_continue[..., None],
                keep_only(allowed, self.next_ids(hypotheses), is_best),
                forbid(allowed, eos_ids, is_unmet[..., None]),
            )

        return if_any(is_unmet, restricted, allowed)


class Progress(NamedTuple):
    """What follows from a `PhraseState`."""

    best_partial: Tensor  # int32 [B, W], the largest `partial` of a phrase that is not met
    bank: Tensor  # int32 [B, W], tokens that are done: of phrases that are met, and `best_partial`
    # int32 [B, W], tokens that complete all phrases, written one after the other, beginning with
    # that of the largest `partial`. Phrases that overlap may take fewer.
    needed: Tensor


def phrase_progress(state: PhraseState, phrases: "Phrases") -> Progress:
    """Returns how far hypotheses are with all phrases together."""
    lengths = phrases.lengths[:, None]  # [B, 1, P]
    done = tf.reduce_sum(tf.where(state.met, lengths, 0), axis=-1)
    best = tf.reduce_max(tf.where(state.met, 0, state.partial), axis=-1)
    best = tf.maximum(best, 0)  # also where P = 0
    return Progress(best, done + best, tf.reduce_sum(lengths, axis=-1) - done - best)


class Phrases(NamedTuple):
    """Phrases as automata, each with the states 0 to M: tokens of the phrase that match.

    Attributes:
        ids: int32 [B, P * (M + 1)], for each state the token that comes next; PAD at the end.
        fallbacks: int32 [B, P * (M + 1)], for each state the one to try where that token does
            not come: the longest proper suffix of what matches that begins the phrase.
        first: int32 [B, P], where the states of each phrase begin in these.
        lengths: int32 [B, P].
    """

    ids: Tensor
    fallbacks: Tensor
    first: Tensor
    lengths: Tensor


def _make_automata(phrases: Tensor, pad_id: int) -> Phrases:
    """Returns the automata of int32 phrases [B, P, M]."""
    phrases = tf.cast(phrases, tf.int32)
    batch_size, num_phrases, max_length = tf.unstack(tf.shape(phrases))
    num_states = max_length + 1
    ids = tf.pad(phrases, [[0, 0], [0, 0], [0, 1]], constant_values=pad_id)
    lengths = tf.math.count_nonzero(phrases != pad_id, axis=-1, dtype=tf.int32)

    def make(fallbacks: Tensor) -> Phrases:
        shape = [batch_size, num_phrases * num_states]
        first = tf.zeros_like(lengths) + tf.range(num_phrases) * num_states
        return Phrases(tf.reshape(ids, shape), tf.reshape(fallbacks, shape), first, lengths)

    def extend(length: Tensor, state: Tensor, fallbacks: Tensor) -> tuple[Tensor, ...]:
        # A phrase falls back to where its own tail would have led from the start.
        tokens = tf.gather(phrases, length, axis=2)[:, None]  # [B, 1, P]
        state = _match(make(fallbacks), state, tokens)
        is_next = tf.range(num_states) == length + 1
        return length + 1, state, tf.where(is_next, state[:, 0, :, None], fallbacks)

    unknown = tf.TensorShape([None, None, None])
    *_, fallbacks = tf.while_loop(
        lambda length, *_: length < max_length,
        extend,
        (1, tf.zeros_like(lengths)[:, None], tf.zeros_like(ids)),
        shape_invariants=(tf.TensorShape([]), unknown, unknown),
    )
    return make(fallbacks)


def _advance(phrases: Phrases, partial: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which phrases [B, W, P] the tokens [B, W, 1] complete, and the states after them."""
    matched = _match(phrases, partial, tokens)
    is_complete = (matched == phrases.lengths[:, None]) & (matched > 0)
    return is_complete, tf.where(
        is_complete, _look_up(phrases.fallbacks, phrases, matched), matched
    )


def _match(phrases: Phrases, partial: Tensor, tokens: Tensor) -> Tensor:
    """Returns how many tokens of each phrase match after one more, int32 [B, W, P].

    Args:
        phrases: the automata.
        partial: int32 [B, W, P], how many matched before, not yet all of a phrase.
        tokens: int32 [B, W, 1 or P].
    """

    def matches(state: Tensor) -> Tensor:
        is_next = tf.equal(_look_up(phrases.ids, phrases, state), tokens)
        return is_next & (state < phrases.lengths[:, None])

    def fall_back(state: Tensor, is_stuck: Tensor) -> tuple[Tensor, Tensor]:
        state = tf.where(is_stuck, _look_up(phrases.fallbacks, phrases, state), state)
        return state, (state > 0) & ~matches(state)

    unknown = tf.TensorShape([None, None, None])
    state, _ = tf.while_loop(
        lambda _, is_stuck: tf.reduce_any(is_stuck),
        fall_back,
        (partial, (partial > 0) & ~matches(partial)),
        shape_invariants=(unknown, unknown),
    )
    state = tf.ensure_shape(state, partial.shape)
    return state + tf.cast(matches(state), tf.int32)


def _look_up(table: Tensor, phrases: Phrases, states: Tensor) -> Tensor:
    """Returns the entries of `ids` or `fallbacks` for states [B, W, P]."""
    return tf.gather(table, phrases.first[:, None] + states, batch_dims=1)


def _zeros(phrases: Phrases, num_hypotheses: int) -> Tensor:
    return tf.repeat(tf.zeros_like(phrases.lengths)[:, None], num_hypotheses, axis=1)
