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

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID
from keras_transformer.decoding import Tensor

# Top-k of long rows, such as the logits of a vocabulary.
#
# Rows are cut into groups. The k largest numbers lie in the k groups with the largest maxima, and
# maxima are cheap: only these groups are searched. Between equals the lower index wins, as in
# `tf.math.top_k`: at most k - 1 groups come before the group of a number that belongs to the top,
# whether by a larger maximum or by a lower index.
#
# Shapes: B sentences, R rows of each, V numbers of a row, G groups of a row, N of a group.


class Groups(NamedTuple):
    """Rows cut into groups; the last one may end with -inf that no row has."""

    values: Tensor  # float [B, R, G, N]
    maxima: Tensor  # float [B, R, G]


def in_groups(values: Tensor, k: int, rows_of_set: int = 1) -> Groups:
    """Cuts rows [B, R, V], R static, for the `k` largest of every `rows_of_set` rows."""
    width = values.shape[2]
    if width is None:  # few: a part of a vocabulary
        width = tf.shape(values)[2]
        size = tf.where(rows_of_set * width < 4 * k * 16, 1, 16)
        padding = tf.maximum(-width % size, -(-k // rows_of_set) - width)  # not fewer than k
    else:
        # One that divides V saves padding, and whole vectors of 8 numbers are quicker.
        sizes = (size for size in range(48, 128) if width % size == 0)
        size = min(sizes, key=lambda size: (size % 8 > 0, abs(size - 64)), default=64)
        if rows_of_set * width < 4 * k * size:  # too few groups to leave any out
            return Groups(values[..., None], values)
        padding = -width % size
    if not isinstance(padding, int) or padding:
        paddings = [[0, 0], [0, 0], [0, padding]]
        values = tf.pad(values, paddings, constant_values=-float("inf"))
    values = tf.reshape(values, [-1, values.shape[1], (width + padding) // size, size])
    return Groups(values, tf.reduce_max(values, axis=3))


def top_k_of_groups(
    groups: Groups, k: int, offsets: Tensor, num_sets: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the k largest numbers of each set of rows, largest first.

    Args:
        groups: of all rows.
        k: how many, at most the groups of a set.
        offsets: float [B, R], added to the numbers of each row.
        num_sets: sets that the rows are cut into, R / num_sets after one another.

    Returns:
        The numbers, the row of each (int32, 0 to R - 1) and its place there, all [B, num_sets, k].
    """
    num_rows = groups.values.shape[1]
    num_groups, size = (
        static or dynamic
        for static, dynamic in zip(
            groups.values.shape[2:], tf.unstack(tf.shape(groups.values))[2:], strict=True
        )
    )
    rows_of_set = num_rows // num_sets
    maxima = tf.reshape(groups.maxima + offsets[:, :, None], [-1, rows_of_set * num_groups])
    _, best = tf.math.top_k(maxima, k)
    best = tf.sort(best, axis=-1)  # [B * num_sets, k]
    chosen = tf.gather(
        tf.reshape(groups.values, [-1, rows_of_set * num_groups, size]), best, batch_dims=1
    )
    offsets = tf.reshape(offsets, [-1, rows_of_set])
    chosen += tf.gather(offsets, best // num_groups, batch_dims=1)[..., None]
    top, index = tf.math.top_k(tf.reshape(chosen, [-1, k * size]), k)
    group = tf.reshape(tf.gather(best, index // size, batch_dims=1), [-1, num_sets, k])
    row = group // num_groups + tf.range(0, num_rows, rows_of_set)[:, None]
    place = group % num_groups * size + tf.reshape(index % size, [-1, num_sets, k])
    return tf.reshape(top, [-1, num_sets, k]), row, place


def find_top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns what `tf.math.top_k` returns, three times as fast on a CPU where rows are long.

    Args:
        values: float [B, R, V], R and V static.
        k: how many, at most V.

    Returns:
        The values, largest first, and their int32 indices, both [B, R, k].
    """
    offsets = tf.zeros(tf.shape(values)[:2], values.dtype)
    top, _, place = top_k_of_groups(in_groups(values, k), k, offsets, values.shape[1])
    return top, place


# Functions on the logits of the next tokens, which constraints and sampling are made of.
#
# Each parameter has an entry for each sentence, and a neutral value at which the logits stay as
# they
# are bit for bit; where it is neutral for a whole batch, the function costs next to nothing.
# What is
# forbidden is at -inf.
#
# Shapes: B sentences, W hypotheses a sentence, V vocabulary, L longest result, N ids. A
# parameter of
# shape [1] holds for all sentences. V and W are static. `tokens` are int32 [B, W, L], what each
# hypothesis has so far without BOS, PAD from `time` on; `time` is int32 []; `logits` are float32
# [B, W, V].

FORBIDDEN = -float("inf")

_LOWEST_TEMPERATURE = 1e-6  # below it logits might overflow; samples are the best tokens by then
_FEW = 256  # candidates, which nearly always hold all that sampling keeps


def apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Returns logits divided by the temperature, float32 [B] above 0; 1 is neutral.

    Low temperatures make probable tokens more probable (Ackley, Hinton and Sejnowski 1985).
    """
    divisor = tf.maximum(temperature, _LOWEST_TEMPERATURE)[:, None, None]
    return if_any(temperature != 1.0, lambda: logits / divisor, logits)


def penalize_repetition(logits: Tensor, tokens: Tensor, penalty: Tensor) -> Tensor:
    """Makes tokens less probable that a hypothesis has already (Keskar et al. 2019, 4.1).

    Their logits are divided by the penalty where positive and multiplied by it where negative,
    once however often they occur. The paper divides negative ones too, which would make these
    more probable.

    Args:
        logits: of the next tokens.
        tokens: of the hypotheses.
        penalty: float32 [B], above 0; 1 is neutral. Below 1 it rewards repetition.
    """

    def penalized() -> Tensor:
        old = tf.gather(logits, tokens, batch_dims=2)  # [B, W, L]
        factor = penalty[:, None, None]
        new = tf.where(old > 0, old / factor, old * factor)
        new = tf.where(tokens == PAD_ID, old, new)
        # A token that occurs twice is written twice, with the same value.
        return tf.tensor_scatter_nd_update(logits, _indices(tokens), new)

    return if_any(penalty != 1.0, penalized, logits)


def forbid_repeated_ngrams(logits: Tensor, tokens: Tensor, time: Tensor, size: Tensor) -> Tensor:
    """Forbids tokens that would repeat an n-gram of the hypothesis (Paulus et al. 2018, 2.5).

    Args:
        logits: of the next tokens.
        tokens: of the hypotheses.
        time: tokens that each hypothesis has.
        size: int32 [B], n; 0 is neutral.
    """

    def changed() -> Tensor:
        sizes = size[:, None, None]
        past = recent_tokens(tokens, time, tf.shape(tokens)[2])  # [B, W, L]

        def compare(distance: Tensor, earlier: Tensor, matches: Tensor) -> tuple[Tensor, ...]:
            # The tokens `distance` before the next token and before each token of the past.
            latest = earlier[..., -1:]  # [B, W, 1]
            earlier = shift_right(earlier)  # [B, W, L]
            is_same = tf.equal(earlier, latest) & (latest != PAD_ID)
            return distance + 1, earlier, matches & (is_same | (distance >= sizes))

        # No n-gram of more than `time` tokens can have occurred: a huge n costs no more.
        furthest = tf.minimum(tf.reduce_max(size), time + 1)
        *_, matches = tf.while_loop(
            lambda distance, *_: distance < furthest,
            compare,
            (1, past, (past != PAD_ID) & (sizes > 0)),
        )
        return forbid(logits, past, matches)

    return if_any(size > 0, changed, logits)


def force_prefix(logits: Tensor, time: Tensor, prefix: Tensor, restricted: Tensor) -> Tensor:
    """Forbids all but the next token of the prefix, for as long as it lasts.

    The allowed logit keeps its value, so the prefix counts at its true probability.

    Args:
        logits: of the next tokens.
        time: tokens that each hypothesis has.
        prefix: int32 [B, P], what each translation starts with, then PAD; nothing but PAD is
            neutral. It must not be longer than the translation may be.
        restricted: the logits under other constraints, returned where there is no prefix or it
            has ended.
    """
    length = tf.shape(prefix)[1]
    prefix = tf.pad(prefix, [[0, 0], [0, 1]], constant_values=PAD_ID)
    ids = tf.gather(prefix, tf.minimum(time, length), axis=1)[:, None, None]  # [B, 1, 1]
    is_forced = ids != PAD_ID
    return if_any(
        is_forced, lambda: tf.where(is_forced, keep_only(logits, ids, True), restricted), restricted
    )


def keep_most_probable(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Forbids all but the most probable tokens, for sampling.

    First the `top_k` most probable tokens are kept (Fan et al. 2018), then of these the fewest
    that together have `top_p` of their probability (nucleus sampling, Holtzman et al. 2020, 3.1).
    Of equally probable tokens the lower id comes first. At least one token is kept.

    Args:
        logits: of the next tokens.
        top_k: int32 [B]; 0 is neutral.
        top_p: float32 [B], a probability; 1 is neutral.
    """
    is_filtered = ((top_k > 0) | (top_p < 1.0))[:, None, None]

    def changed() -> Tensor:
        # Sorting the vocabulary takes long: first see whether few candidates are enough.
        kept, is_sure = _keep_among(logits, min(_FEW, logits.shape[-1]), top_k, top_p)
        kept = tf.cond(
            tf.reduce_all(is_sure | ~is_filtered),
            lambda: kept,
            lambda: tf.where(is_sure, kept, _keep_among(logits, logits.shape[-1], top_k, top_p)[0]),
        )
        return tf.where(is_filtered, kept, logits)

    return if_any(is_filtered, changed, logits)


def _keep_among(logits: Tensor, count: int, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what `keep_most_probable` keeps of the `count` most probable tokens.

    Also returns whether more candidates would give the same result, bool [B, W, 1].
    """
    size = logits.shape[-1]
    limit = tf.where(top_k > 0, tf.minimum(top_k, size), size)[:, None, None]
    share = top_p[:, None, None]
    best, ids = find_top_k(logits, count)  # [B, W, count]
    largest = best[..., :1]
    weights = tf.where(tf.range(count) < limit, tf.exp(best - largest), 0.0)
    all_weights = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    limited_weights = tf.reduce_sum(weights, axis=-1, keepdims=True)
    bound = share * tf.where(limit < size, limited_weights, all_weights)  # [B, W, 1]
    is_needed = (tf.cumsum(weights, axis=-1, exclusive=True) < bound) | (share >= 1.0)
    is_kept = is_needed & (tf.range(count) < limit) | (tf.range(count) == 0)
    is_sure = (limit <= count) | ((limit == size) & ~is_kept[..., -1:])
    return keep_only(logits, ids, is_kept), is_sure


def if_any(condition: Tensor, changed: Callable[[], Any], unchanged: Any) -> Any:
    """Returns `changed()` where the condition is True anywhere, else `unchanged`; both nests."""
    return tf.cond(tf.reduce_any(condition), changed, lambda: unchanged)


def forbid(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids ids [B, W, N] where `chosen` is True, a bool that broadcasts with them."""
    bounds = tf.where(chosen, FORBIDDEN, tf.fill(tf.shape(ids), -FORBIDDEN))
    return tf.tensor_scatter_nd_min(logits, _indices(ids), bounds)


def keep_only(logits: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    """Forbids all but the ids where `chosen` is True; both broadcast to [B, W, N]."""
    shape = tf.concat([tf.shape(logits)[:2], tf.shape(ids)[2:]], axis=0)
    ids = tf.broadcast_to(ids, shape)
    kept = tf.where(chosen, tf.gather(logits, ids, batch_dims=2), FORBIDDEN)
    nothing = tf.fill(tf.shape(logits), FORBIDDEN)
    return tf.tensor_scatter_nd_max(nothing, _indices(ids), kept)


def recent_tokens(tokens: Tensor, time: Tensor, count: Tensor) -> Tensor:
    """Returns the last `count` tokens of each hypothesis, [B, W, count]; PAD precedes the first.

    Example:
        >>> recent_tokens(tf.constant([[[7, 8, 9, 0]]]), time=3, count=2).numpy().tolist()
        [[[8, 9]]]
    """
    padded = tf.pad(tokens, [[0, 0], [0, 0], [1, 0]], constant_values=PAD_ID)
    return tf.gather(padded, tf.maximum(tf.range(count) + time - count + 1, 0), axis=2)


def shift_right(values: Tensor) -> Tensor:
    """Shifts the last dimension right by one; 0 or False comes in."""
    paddings = [[0, 0]] * (values.shape.rank - 1) + [[1, 0]]
    return tf.pad(values, paddings)[..., :-1]


def _indices(ids: Tensor) -> Tensor:
    """Returns the indices of ids [B, W, N] in logits [B, W, V], int32 [B, W, N, 3]."""
    sentences = tf.range(tf.shape(ids)[0])[:, None, None]
    hypotheses = tf.range(tf.shape(ids)[1])[None, :, None]
    zeros = tf.zeros_like(ids)
    return tf.stack([zeros + sentences, zeros + hypotheses, ids], axis=-1)


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
