"""Constraints on translations: the contract, and the built-in ones.

A search takes a list of `Constraint` objects, from a task or a caller. At each step it calls them,
in order, with all open hypotheses at once:

1. `adjust` changes the distribution of the next token, before the softmax.
2. `forbid` and `forbidden_ids` make tokens impossible, after it: the others do not get their
   probability.
3. `forced_ids` allows a single token, even if a constraint forbids it.

A pass over the vocabulary costs more than the rest of a step. Where no token is forced, and
`is_active` is False for all constraints, a search makes none: it calls `forbidden_ids` alone.

At its maximum length a translation ends, whatever the constraints are. A hypothesis without an
allowed token is dropped, so a sentence whose constraints contradict each other may get no
translation.

    class NoDigits(Constraint):
        inputs = ()

        def __init__(self, digits: list[int]) -> None:
            self._digits = digits

        def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor:
            return tf.constant([[self._digits]])  # [1, 1, N]: after every hypothesis

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L longest result, N ids; P tokens of
the longest prefix. W and V are static.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding import IMPOSSIBLE, Tensor

_FEW = 4  # tokens that a comparison with each entry forbids faster than a scatter


class OpenHypotheses(NamedTuple):
    """What a constraint sees of the hypotheses that are to be continued.

    Attributes:
        inputs: the constraint's `inputs`, nest of tensors [B, ...].
        state: the constraint's own state, nest of tensors [B, W, ...].
        tokens: int32 [B, W, L], the tokens so far without BOS; PAD from `time` on.
        time: int32 [], how many tokens these are.
        max_lengths: int32 [B], tokens that a translation may have before EOS.
    """

    inputs: Any
    state: Any
    tokens: Tensor
    time: Tensor
    max_lengths: Tensor


class Constraint(Protocol):
    """A rule for translations; the methods do nothing unless a subclass overrides them.

    Attributes:
        inputs: nest of tensors [B, ...], what the constraint is for each sentence. Leaves of shape
            [] or [1, ...] hold for all sentences. A search drops the rows of finished sentences,
            so methods must read the inputs that they are given and never these.
    """

    inputs: Any

    def initial_state(self, inputs: Any, num_hypotheses: int) -> Any:
        """Returns the state of empty hypotheses, nest of tensors [B, W, ...].

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

    def is_active(self, hypotheses: OpenHypotheses) -> Tensor | bool:
        """Returns whether `adjust` or `forbid` changes any logits at this step, bool [].

        By default True if a subclass overrides one of them.
        """
        kind = type(self)
        return kind.adjust is not Constraint.adjust or kind.forbid is not Constraint.forbid

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Returns logits [B, W, V] of the distribution that translations are scored with."""
        return logits

    def forbidden_ids(self, hypotheses: OpenHypotheses) -> Tensor | None:
        """Returns tokens that must not come next, int32 [B or 1, W or 1, N]; PAD for none.

        For a few tokens; N is static. It is cheaper than `forbid`.
        """
        return None

    def forbid(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Returns logits [B, W, V] with those of more tokens at `IMPOSSIBLE`; see `forbid_ids`.

        Args:
            logits: normalized: log-probabilities, `IMPOSSIBLE` for what is forbidden already.
            hypotheses: to continue.
        """
        return logits

    def forced_ids(self, hypotheses: OpenHypotheses) -> Tensor | None:
        """Returns the token that must come next in each sentence, int32 [B]; PAD for any.

        It counts at its true probability. The first constraint that forces a token decides.
        """
        return None


def forbid_ids(logits: Tensor, ids: Tensor) -> Tensor:
    """Returns logits [B, W, V] with those of some tokens at `IMPOSSIBLE`.

    Args:
        logits: of the next tokens.
        ids: int32 [B or 1, W or 1, N]. PAD, which is never generated, stands for none.
    """
    ids = tf.convert_to_tensor(ids)
    if ids.shape[2] is not None and ids.shape[2] <= _FEW:
        is_forbidden = False
        for number in range(ids.shape[2]):
            is_forbidden |= tf.range(logits.shape[2]) == ids[:, :, number, None]  # [B, W, V]
        return tf.where(is_forbidden, IMPOSSIBLE, logits)
    shape = [*tf.unstack(tf.shape(logits)[:2]), tf.shape(ids)[2]]
    ids = tf.broadcast_to(ids, shape)
    return tf.tensor_scatter_nd_update(logits, indices_of(ids), tf.fill(shape, IMPOSSIBLE))


def indices_of(ids: Tensor) -> Tensor:
    """Returns the indices of ids [B, W, N] in logits [B, W, V], int32 [B, W, N, 3]."""
    sentences = tf.range(tf.shape(ids)[0])[:, None, None]
    hypotheses = tf.range(tf.shape(ids)[1])[None, :, None]
    zeros = tf.zeros_like(ids)
    return tf.stack([zeros + sentences, zeros + hypotheses, ids], axis=-1)


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
            blank = [*self._space_ids, PAD_ID]
            is_blank = tf.reduce_any(hypotheses.tokens[..., None] == blank, axis=-1)  # [B, W, L]
            is_early |= tf.reduce_all(is_blank, axis=-1, keepdims=True) & (lengths > 0)
        return tf.where(is_early, EOS_ID, PAD_ID)


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
        prefix = tf.pad(prefix, [[0, 0], [0, 1]], constant_values=PAD_ID)
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

    def is_active(self, hypotheses: OpenHypotheses) -> Tensor:
        return tf.reduce_any(hypotheses.inputs != 1.0)

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        tokens, penalty = hypotheses.tokens, hypotheses.inputs[:, None, None]
        old = tf.gather(logits, tokens, batch_dims=2)  # [B, W, L]
        new = tf.where(old > 0, old / penalty, old * penalty)
        new = tf.where(tokens == PAD_ID, old, new)
        # A token that occurs twice is written twice, with the same value.
        return tf.tensor_scatter_nd_update(logits, indices_of(tokens), new)


class NoRepeatNgram(Constraint):
    """No n-gram occurs twice in a translation (Paulus et al. 2018, 2.5).

    Args:
        size: int32 [B], n; 0 is neutral.
    """

    def __init__(self, size: Tensor) -> None:
        self.inputs = tf.cast(size, tf.int32)

    def is_active(self, hypotheses: OpenHypotheses) -> Tensor:
        return tf.reduce_any(hypotheses.inputs > 0)

    def forbid(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        time = hypotheses.time
        sizes = hypotheses.inputs[:, None, None]
        # The tokens so far, the last one at the end, behind PAD: [B, W, L].
        length = tf.shape(hypotheses.tokens)[2]
        past = tf.pad(hypotheses.tokens, [[0, 0], [0, 0], [length, 0]], constant_values=PAD_ID)
        past = tf.gather(past, time + tf.range(length), axis=2)

        def compare(distance: Tensor, earlier: Tensor, matches: Tensor) -> tuple[Tensor, ...]:
            # The tokens `distance` before the next token and before each token of the past.
            latest = earlier[..., -1:]  # [B, W, 1]
            earlier = tf.pad(earlier, [[0, 0], [0, 0], [1, 0]], constant_values=PAD_ID)[..., :-1]
            is_same = tf.equal(earlier, latest) & (latest != PAD_ID)
            return distance + 1, earlier, matches & (is_same | (distance >= sizes))

        # No n-gram of more than `time` tokens can have occurred: a huge n costs no more.
        furthest = tf.minimum(tf.reduce_max(sizes), time + 1)
        *_, matches = tf.while_loop(
            lambda distance, *_: distance < furthest,
            compare,
            (1, past, (past != PAD_ID) & (sizes > 0)),
        )
        return forbid_ids(logits, tf.where(matches, past, PAD_ID))
