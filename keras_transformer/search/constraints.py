"""Constraints on translations: the contract, and the built-in ones.

A search takes a list of `Constraint` objects, from a task or a caller. At each step it calls them,
in order, with all open hypotheses at once:

1. `adjust` changes the distribution of the next token, before the softmax.
2. `restrict` and `forbidden_ids` forbid tokens, after it: the others do not get their probability.
3. `forced_ids` allows a single token, even if another constraint forbids it.

At its maximum length a translation ends, whatever the constraints are. A hypothesis without an
allowed token is dropped, so a sentence whose constraints contradict each other may get no
translation.

    class NoDigits(Constraint):
        inputs = ()

        def __init__(self, digits: list[int]) -> None:
            self._digits = digits

        def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
            return tf.constant([[self._digits]])  # [1, 1, N]: for every sentence and hypothesis

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L longest result, N ids; P phrases a
sentence, M tokens of the longest phrase. W and V are static.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID
from keras_transformer.decoding import IMPOSSIBLE, Tensor


class OpenHypotheses(NamedTuple):
    """What a constraint sees of the hypotheses that are to be continued.

    Attributes:
        inputs: the constraint's `inputs`, nest of tensors [B, ...].
        state: the constraint's own state, nest of tensors [B, W, ...].
        tokens: int32 [B, W, L], the tokens so far without BOS; PAD from `time` on.
        time: int32 [], how many tokens these are.
        max_lengths: int32 [B], tokens that a translation may have before EOS.
        eos_id, pad_id: the tokens that complete a translation and that follow it.
        logits: float32 [B, W, V] of the next tokens, none of them forbidden.
    """

    inputs: Any
    state: Any
    tokens: Tensor
    time: Tensor
    max_lengths: Tensor
    eos_id: int
    pad_id: int
    logits: Tensor


class Constraint(Protocol):
    """A rule for translations; the methods do nothing unless a subclass overrides them.

    Attributes:
        inputs: nest of tensors [B, ...], what the constraint is for each sentence. Leaves of shape
            [] or [1, ...] hold for all sentences. A search drops the rows of finished sentences,
            so methods must read the inputs that they are given and never these.
    """

    inputs: Any

    def initial_state(self, inputs: Any, num_hypotheses: int) -> Any:
        """Returns what the constraint remembers of empty hypotheses, nest of tensors [B, W, ...].

        The search reorders it when hypotheses branch or are dropped. Shapes must not change.
        """
        return ()

    def update(self, state: Any, ids: Tensor, inputs: Any) -> Any:
        """Returns the state of hypotheses after one more token each.

        Complete and impossible hypotheses are updated too, with any token, PAD included; their
        state has no effect.

        Args:
            state: nest of tensors [B, W, ...], of the hypotheses that the tokens continue.
            ids: int32 [B, W].
            inputs: the constraint's inputs.
        """
        return state

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Returns logits [B, W, V] of the distribution that translations are scored with."""
        return logits

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Returns logits [B, W, V] with those of more tokens at -inf.

        Args:
            allowed: `hypotheses.logits`, with -inf for what constraints before this one forbid.
            hypotheses: to continue.
        """
        return allowed

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor | None:
        """Returns tokens that may not come next, int32 [B, W, N] or [B or 1, 1, N].

        PAD stands for none. For a few tokens, N being static: cheaper than `restrict`, since
        searches look for them among the most probable tokens only.
        """
        return None

    def forced_ids(self, hypotheses: OpenHypotheses) -> Tensor | None:
        """Returns the token that must come next in each sentence, int32 [B]; PAD for any.

        It counts at its true probability. The first constraint that forces a token decides.
        """
        return None


# The built-in constraints. Each parameter has an entry for each sentence, or one for all, and a
# neutral value at which the logits stay as they are bit for bit. Where it is neutral for a whole
# batch, a constraint costs next to nothing.


class MinLength(Constraint):
    """Translations have a minimum number of tokens before EOS, one of which is not a space.

    Args:
        lengths: int32 [B], the minimum; 0 is neutral. Above the maximum length it has no effect.
        space_ids: tokens that are only spaces. With a minimum of 1 or more, a translation must also
            have another token; otherwise it would have no text.
    """

    def __init__(self, lengths: Tensor, space_ids: Sequence[int] = ()) -> None:
        self.inputs = tf.cast(lengths, tf.int32)
        self._space_ids = list(space_ids)

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        lengths = hypotheses.inputs[:, None, None]  # [B, 1, 1]
        is_early = hypotheses.time < lengths
        if self._space_ids:
            blank = [*self._space_ids, hypotheses.pad_id]
            is_blank = tf.reduce_any(hypotheses.tokens[..., None] == blank, axis=-1)  # [B, W, L]
            is_early |= tf.reduce_all(is_blank, axis=-1, keepdims=True) & (lengths > 0)
        return tf.where(is_early, hypotheses.eos_id, hypotheses.pad_id)


class ForbidUnknown(Constraint):
    """Translations have no unknown token, except in a prefix."""

    inputs = ()

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        return tf.constant([[[UNK_ID]]])


class Prefix(Constraint):
    """Translations start with given tokens, whatever other constraints say of these.

    Args:
        ids: int32 [B, P], each prefix followed by PAD; only PAD is neutral. A prefix must not be
            longer than the maximum length.
    """

    def __init__(self, ids: Tensor) -> None:
        self.inputs = tf.cast(ids, tf.int32)

    def forced_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        prefix, time = hypotheses.inputs, hypotheses.time
        prefix = tf.pad(prefix, [[0, 0], [0, 1]], constant_values=hypotheses.pad_id)
        return tf.gather(prefix, tf.minimum(time, tf.shape(prefix)[1] - 1), axis=1)


class RepetitionPenalty(Constraint):
    """Makes tokens that a hypothesis already has less probable (Keskar et al. 2019, 4.1).

    Their logits are divided by the penalty if positive and multiplied by it if negative, once for
    each token, however often it occurs. (The paper also divides negative logits, which would make
    these tokens more probable.)

    Args:
        penalty: float32 [B], above 0; 1 is neutral. Below 1 it rewards repetition.
    """

    def __init__(self, penalty: Tensor) -> None:
        self.inputs = tf.cast(penalty, tf.float32)

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        tokens, penalty = hypotheses.tokens, hypotheses.inputs

        def penalized() -> Tensor:
            old = tf.gather(logits, tokens, batch_dims=2)  # [B, W, L]
            factor = penalty[:, None, None]
            new = tf.where(old > 0, old / factor, old * factor)
            new = tf.where(tokens == hypotheses.pad_id, old, new)
            # A token that occurs twice is written twice, with the same value.
            return tf.tensor_scatter_nd_update(logits, _indices(tokens), new)

        return if_any(penalty != 1.0, penalized, logits)


class NoRepeatNgram(Constraint):
    """No n-gram occurs twice in a translation (Paulus et al. 2018, 2.5).

    Args:
        size: int32 [B], n; 0 is neutral.
    """

    def __init__(self, size: Tensor) -> None:
        self.inputs = tf.cast(size, tf.int32)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        time, size, pad_id = hypotheses.time, hypotheses.inputs, hypotheses.pad_id

        def restricted() -> Tensor:
            sizes = size[:, None, None]
            past = recent_tokens(hypotheses.tokens, time, pad_id)  # [B, W, L]

            def compare(distance: Tensor, earlier: Tensor, matches: Tensor) -> tuple[Tensor, ...]:
                # The tokens `distance` before the next token and before each token of the past.
                latest = earlier[..., -1:]  # [B, W, 1]
                earlier = tf.pad(earlier, [[0, 0], [0, 0], [1, 0]], constant_values=pad_id)[
                    ..., :-1
                ]
                is_same = tf.equal(earlier, latest) & (latest != pad_id)
                return distance + 1, earlier, matches & (is_same | (distance >= sizes))

            # No n-gram of more than `time` tokens can have occurred: a huge n costs no more.
            furthest = tf.minimum(tf.reduce_max(size), time + 1)
            *_, matches = tf.while_loop(
                lambda distance, *_: distance < furthest,
                compare,
                (1, past, (past != pad_id) & (sizes > 0)),
            )
            return forbid(allowed, past, matches)

        return if_any(size > 0, restricted, allowed)


def recent_tokens(tokens: Tensor, time: Tensor, pad_id: int) -> Tensor:
    """Moves the `time` tokens of each hypothesis [B, W, L] to the right end, behind PAD.

    Example:
        >>> recent_tokens(tf.constant([[[7, 8, 9, 0]]]), time=3, pad_id=0).numpy().tolist()
        [[[0, 7, 8, 9]]]
    """
    length = tf.shape(tokens)[2]
    padded = tf.pad(tokens, [[0, 0], [0, 0], [1, 0]], constant_values=pad_id)
    return tf.gather(padded, tf.maximum(tf.range(length) + time - length + 1, 0), axis=2)


# Phrases that a translation must not contain. Each hypothesis goes through every phrase with the
# automaton of Knuth, Morris and Pratt 1977: one number a phrase, whatever its length. Phrases are
# int32 [B, P, M], or [1, P, M] if they are the same for all sentences, each followed by PAD; a
# phrase of only PAD is neutral.


class BannedPhrases(Constraint):
    """No translation contains any of the phrases.

    Args:
        phrases: int32 [B, P, M].
        pad_id: the token that follows a phrase.
    """

    def __init__(self, phrases: Tensor, pad_id: int = PAD_ID) -> None:
        self.inputs = _make_automata(phrases, pad_id)

    def initial_state(self, inputs: "Phrases", num_hypotheses: int) -> Tensor:
        return tf.repeat(tf.zeros_like(inputs.lengths)[:, None], num_hypotheses, axis=1)

    def update(self, state: Tensor, ids: Tensor, inputs: "Phrases") -> Tensor:
        def advanced() -> Tensor:
            matched = _match(inputs, state, ids[..., None])
            is_complete = (matched == inputs.lengths[:, None]) & (matched > 0)
            fallback = _look_up(inputs.fallbacks, inputs, matched)
            return tf.where(is_complete, fallback, matched)

        return if_any(inputs.lengths > 0, advanced, state)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        phrases, partial = hypotheses.inputs, hypotheses.state

        def restricted() -> Tensor:
            lengths = phrases.lengths[:, None]  # [B, 1, P]
            is_last = (lengths > 0) & (partial == lengths - 1)
            return forbid(allowed, _look_up(phrases.ids, phrases, partial), is_last)

        return if_any(phrases.lengths > 0, restricted, allowed)


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


# What constraints do with logits.


def if_any(condition: Tensor, changed: Callable[[], Any], unchanged: Any) -> Any:
    """Returns `changed()` where the condition is True anywhere, else `unchanged`; both nests."""
    return tf.cond(tf.reduce_any(condition), changed, lambda: unchanged)


def forbid(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids ids [B, W, N] where `chosen` is True, a bool that broadcasts with them."""
    bounds = tf.where(chosen, IMPOSSIBLE, tf.fill(tf.shape(ids), -IMPOSSIBLE))
    return tf.tensor_scatter_nd_min(logits, _indices(ids), bounds)


def keep_only(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids all but the ids [B, W, N] where `chosen` is True, a bool of that shape."""
    kept = tf.where(chosen, tf.gather(logits, ids, batch_dims=2), IMPOSSIBLE)
    nothing = tf.fill(tf.shape(logits), IMPOSSIBLE)
    return tf.tensor_scatter_nd_max(nothing, _indices(ids), kept)


def _indices(ids: Tensor) -> Tensor:
    """Returns the indices of ids [B, W, N] in logits [B, W, V], int32 [B, W, N, 3]."""
    sentences = tf.range(tf.shape(ids)[0])[:, None, None]
    hypotheses = tf.range(tf.shape(ids)[1])[None, :, None]
    zeros = tf.zeros_like(ids)
    return tf.stack([zeros + sentences, zeros + hypotheses, ids], axis=-1)
