"""Constraints on translations: what every constraint does, and the built-in ones but for phrases.

A task or a caller hands constraints to a search as a list of objects. At each step the search asks
each of them about all open hypotheses at once. A constraint may change the distribution of the next
token (`adjust`, before the softmax) or forbid tokens (`restrict`, after it: the others do not get
their probability). What is forbidden has the logit -inf.

At its maximum length a translation ends, whatever constraints say; then come those that take
precedence, such as a prefix; then the others, of which each can only forbid more. A hypothesis to
which they leave no token is dropped, so a sentence whose constraints contradict each other may get
no translation.

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L longest result, N ids. V and W are
static.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search.logits_processors import (
    forbid_repeated_ngrams,
    force_prefix,
    penalize_repetition,
)


class OpenHypotheses(NamedTuple):
    """What a constraint sees of the hypotheses that are to be continued.

    Attributes:
        inputs: the constraint's `inputs`, nest of tensors [B, ...].
        state: the constraint's own state, nest of tensors [B, W, ...].
        tokens: int32 [B, W, L], the tokens so far without BOS; PAD from `time` on.
        time: int32 [], how many tokens these are.
        max_lengths: int32 [B], tokens that a translation may have before EOS.
        eos_id: the token that completes a translation.
        logits: float32 [B, W, V] of the next tokens, none of them forbidden.
    """

    inputs: Any
    state: Any
    tokens: Tensor
    time: Tensor
    max_lengths: Tensor
    eos_id: int
    logits: Tensor


class Constraint(Protocol):
    """A rule for translations; the methods do nothing unless a subclass overrides them.

    Attributes:
        inputs: nest of tensors [B, ...], what the constraint is for each sentence. Leaves of shape
            [] or [1, ...] hold for all sentences. A search drops the rows of finished sentences,
            so methods read the inputs that they are given and never these.
        takes_precedence: whether `restrict` has the last word over constraints without it.
        reads_logits: whether it defines `adjust`, `restrict` or `next_ids`. A search then passes it
            logits of all tokens: where the model gives those of a subset, the others are -inf.
    """

    inputs: Any
    takes_precedence: bool = False
    reads_logits: bool = True

    def initial_state(self, inputs: Any, num_hypotheses: int) -> Any:
        """Returns what the constraint remembers of empty hypotheses, nest of tensors [B, W, ...].

        The search reorders it when hypotheses branch or are dropped. Shapes must not change.
        """
        return ()

    def update(self, state: Any, ids: Tensor, inputs: Any) -> Any:
        """Returns the state of hypotheses after one more token each.

        Hypotheses that are complete or impossible are updated too, with any token, PAD included;
        what comes of these does not matter.

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
            allowed: `hypotheses.logits`, with -inf for what other constraints forbid.
            hypotheses: to continue.
        """
        return allowed

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor | None:
        """Returns tokens that may not come next, int32 [B, W or 1, N]; PAD stands for none.

        For a few tokens, N being static: cheaper than `restrict`, since searches look for them
        among the most probable tokens only. Constraints that override do not lift it.
        """
        return None


@runtime_checkable
class ProgressConstraint(Constraint, Protocol):
    """A constraint that hypotheses fulfil token by token, which beam search helps them with.

    The beam keeps hypotheses of every degree of progress ("banks", Post and Vilar 2018), so that
    those on their way are not lost to more probable ones which put it off.
    """

    def next_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        """Returns tokens to try however improbable, int32 [B, W, N]; PAD stands for none."""
        ...

    def bank(self, state: Any, inputs: Any) -> Tensor:
        """Returns the progress of hypotheses with this state, int32 [B, W], 0 or more."""
        ...


class MinLength(Constraint):
    """Translations have at least so many tokens before EOS, and do not end in a space.

    Args:
        lengths: int32 [B]; 0 is neutral. What exceeds the maximum length has no effect there.
        space_ids: tokens of nothing but spaces, which EOS may not follow where a length is 1 or
            more: no text ends in one, so only a translation without any text would.
    """

    reads_logits = False

    def __init__(self, lengths: Tensor, space_ids: Sequence[int] = ()) -> None:
        self.inputs = tf.cast(lengths, tf.int32)
        self._space_ids = list(space_ids)

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        lengths: Tensor = hypotheses.inputs[:, None, None]
        is_early = hypotheses.time < lengths
        if self._space_ids:
            last = tf.gather(hypotheses.tokens, tf.maximum(hypotheses.time - 1, 0), axis=2)
            is_space = tf.reduce_any(last[..., None] == self._space_ids, axis=2, keepdims=True)
            is_early |= is_space & (lengths > 0)
        return tf.where(is_early, hypotheses.eos_id, PAD_ID)


class ForbidUnknown(Constraint):
    """Translations have no unknown token.

    Args:
        rows: [B], anything with an entry for each sentence.
    """

    reads_logits = False

    def __init__(self, rows: Tensor) -> None:
        self.inputs = tf.fill(tf.shape(rows), UNK_ID)

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
        unknown: Tensor = hypotheses.inputs
        return unknown[:, None, None]


class Prefix(Constraint):
    """Translations start with given tokens, whatever other constraints say of these.

    Args:
        ids: int32 [B, any], each prefix followed by PAD; nothing but PAD is neutral.
    """

    takes_precedence = True

    def __init__(self, ids: Tensor) -> None:
        self.inputs = tf.cast(ids, tf.int32)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        return force_prefix(hypotheses.logits, hypotheses.time, hypotheses.inputs, allowed)


class RepetitionPenalty(Constraint):
    """Lowers the probability of tokens that a hypothesis already has (Keskar et al. 2019, 4.1).

    Args:
        penalty: float32 [B], above 0; 1 is neutral, see `penalize_repetition`.
    """

    def __init__(self, penalty: Tensor) -> None:
        self.inputs = tf.cast(penalty, tf.float32)

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        return penalize_repetition(logits, hypotheses.tokens, hypotheses.inputs)


class NoRepeatNgram(Constraint):
    """No sequence of so many tokens occurs twice in a translation (Paulus et al. 2018, 2.5).

    Args:
        size: int32 [B]; 0 is neutral.
    """

    def __init__(self, size: Tensor) -> None:
        self.inputs = tf.cast(size, tf.int32)

    def restrict(self, allowed: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        return forbid_repeated_ngrams(
            allowed, hypotheses.tokens, hypotheses.time, hypotheses.inputs
        )
