"""Phrases that a translation must not have, and phrases that it must have.

A hypothesis can be followed on its way through each required phrase. Beam search gives places to
hypotheses of every degree of progress ("banks"), so that those which write a phrase are not lost
to more probable ones which put it off (Post and Vilar 2018; Hu et al. 2019).

Shapes: B sentences, W hypotheses a sentence, V vocabulary, L tokens that there is room for, P
phrases a sentence, M tokens of the longest phrase, N recent tokens, C candidates. `phrases` are
int32 [B, P, M] or, the same for all sentences, [1, P, M], each followed by PAD; a phrase of
nothing but PAD means nothing. The rest is as in `rules`.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.search.logits_processors import (
    FORBIDDEN,
    forbid,
    if_any,
    keep_only,
    recent_tokens,
    shift_right,
)


class Progress(NamedTuple):
    """How far hypotheses are with the phrases that they must have.

    Attributes:
        met: bool [B, W, P], whether the phrase is there, wherever; True where it is empty.
        partial: int32 [B, W, P], how many of the phrase's tokens were written last: the longest
            end of the hypothesis that begins the phrase but does not complete it.
        bank: int32 [B, W], tokens of phrases that are done: all tokens of those that are met,
            and the largest `partial` of the others.
        needed: int32 [B, W], tokens that complete all phrases, written one after the other,
            beginning with that of the largest `partial`. Phrases that overlap may take fewer.
        next_ids: int32 [B, W, P], the token that goes on with the phrase; PAD where it is met.
    """

    met: Tensor
    partial: Tensor
    bank: Tensor
    needed: Tensor
    next_ids: Tensor


def forbid_phrases(logits: Tensor, tokens: Tensor, time: Tensor, phrases: Tensor) -> Tensor:
    """Forbids the last token of each phrase whose other tokens were written last.

    Args:
        logits: float32 [B, W, V] of the next tokens.
        tokens: int32 [B, W, L] of the hypotheses.
        time: int32 [], tokens that each hypothesis has.
        phrases: that no translation may have.
    """

    def changed() -> Tensor:
        _, partial = _match(recent_tokens(tokens, time, tf.shape(phrases)[2]), phrases)
        lengths = _lengths(phrases)  # [B, 1, P]
        is_last = (lengths > 0) & (partial == lengths - 1)
        return forbid(logits, _next_ids(phrases, partial), is_last)

    return if_any(phrases != PAD_ID, changed, logits)


def phrase_progress(tokens: Tensor, time: Tensor, phrases: Tensor) -> Progress:
    """Returns how far each hypothesis is with the phrases that it must have.

    One occurrence meets a phrase, also where that is given twice or is part of another phrase.
    """
    past = recent_tokens(tokens, time, tf.shape(tokens)[2])
    met, partial = _match(past, phrases)
    lengths = tf.broadcast_to(_lengths(phrases), tf.shape(met))
    done = tf.reduce_sum(tf.where(met, lengths, 0), axis=-1)
    best = _best_partial(met, partial)
    return Progress(
        met=met,
        partial=partial,
        bank=done + best,
        needed=tf.reduce_sum(lengths, axis=-1) - done - best,
        next_ids=tf.where(met, PAD_ID, _next_ids(phrases, partial)),
    )


def require_phrases(
    logits: Tensor, progress: Progress, time: Tensor, max_lengths: Tensor, eos_id: int
) -> Tensor:
    """Forbids what would leave a phrase unwritten.

    EOS is forbidden while a phrase is not met. Where so few tokens are left that losing what is
    begun of a phrase might leave too few, only the next token of the furthest phrase is allowed.
    So every hypothesis has all phrases at its end, whenever `max_lengths` is at least the sum of
    their lengths and no other rule forbids their tokens. A hypothesis of `max_lengths` tokens
    may end in any case.

    Args:
        logits: float32 [B, W, V] of the next tokens.
        progress: of the hypotheses.
        time: int32 [], tokens that each hypothesis has.
        max_lengths: int32 [B], tokens that a translation may have before EOS.
        eos_id: the token that completes a translation.
    """
    left = (max_lengths - time)[:, None]  # [B, 1]
    is_unmet = tf.reduce_any(~progress.met, axis=-1) & (left > 0)  # [B, W]

    def changed() -> Tensor:
        best = _best_partial(progress.met, progress.partial)  # [B, W]
        # Any other token takes one of those left, and may lose the `best` that are written.
        must_go_on = is_unmet & (left <= progress.needed + best)
        is_best = ~progress.met & (progress.partial == best[..., None])  # [B, W, P]
        eos_ids = tf.fill(tf.shape(is_unmet[..., None]), eos_id)
        return tf.where(
            must_go_on[..., None],
            keep_only(logits, progress.next_ids, is_best),
            forbid(logits, eos_ids, is_unmet[..., None]),
        )

    return if_any(is_unmet, changed, logits)


def spread_over_banks(log_probs: Tensor, banks: Tensor, count: int) -> Tensor:
    """Chooses candidates so that every bank gets its share of places.

    The best candidates of all banks come first, then the second best of all banks, and so on
    (the vectorised allocation of Hu et al. 2019); among these the higher bank first. Of equally
    probable candidates the first is the better one. Impossible ones come last.

    Args:
        log_probs: float32 [B, C], -inf where impossible.
        banks: int32 [B, C], 0 or more.
        count: how many to choose, at most C.

    Returns:
        int32 [B, count], places of the chosen candidates.
    """
    places = tf.range(tf.shape(log_probs)[1])
    mine, others = log_probs[:, :, None], log_probs[:, None, :]
    is_better = (others > mine) | ((others == mine) & (places < places[:, None]))  # [B, C, C]
    is_rival = banks[:, :, None] == banks[:, None, :]
    rank = tf.reduce_sum(tf.cast(is_better & is_rival, tf.int32), axis=-1)  # [B, C]
    num_banks = tf.reduce_max(banks, axis=-1, keepdims=True) + 1
    merit = banks - rank * num_banks  # a rank weighs more than any bank
    merit = tf.where(log_probs > FORBIDDEN, merit, tf.int32.min)
    return tf.math.top_k(merit, count).indices


def _match(tokens: Tensor, phrases: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whether the phrases occur, bool [B, W, P], and the last partial match, int32.

    Args:
        tokens: int32 [B, W, N], the newest last, with PAD before the first.
        phrases: int32 [B, P, M] or [1, P, M].
    """
    lengths = _lengths(phrases)  # [B, 1, P]
    batch_size, width, room = tf.unstack(tf.shape(tokens))
    zeros = tf.zeros([batch_size, width, tf.shape(phrases)[1]], tf.int32)  # [B, W, P]

    def read(place: Tensor, begun: Tensor, met: Tensor, partial: Tensor) -> tuple[Tensor, ...]:
        """Compares one token of every phrase with all tokens.

        begun: bool [B, W, P, N], whether the phrase up to `place` is right before the token.
        """
        wanted = tf.gather(phrases, place, axis=2)[:, None, :, None]  # [B, 1, P, 1]
        is_wanted = tf.equal(tokens[:, :, None], wanted)  # == loses the rank where B is unknown
        goes_on = begun & is_wanted & (wanted != PAD_ID)
        is_complete = (place == lengths - 1) & tf.reduce_any(goes_on, axis=-1)
        is_partial = (place < lengths - 1) & tf.reduce_any(goes_on[..., -1:], axis=-1)
        partial = tf.where(is_partial, place + 1, partial)
        return place + 1, shift_right(goes_on), met | is_complete, partial

    begun = tf.fill([batch_size, width, tf.shape(phrases)[1], room], True)
    *_, met, partial = tf.while_loop(
        lambda place, *_: place < tf.shape(phrases)[2],
        read,
        (0, begun, (zeros == 0) & (lengths == 0), zeros),
    )
    return met, partial


def _lengths(phrases: Tensor) -> Tensor:
    """Returns the tokens of each phrase, int32 [B, 1, P]."""
    return tf.math.count_nonzero(phrases != PAD_ID, axis=-1, dtype=tf.int32)[:, None]


def _next_ids(phrases: Tensor, partial: Tensor) -> Tensor:
    """Returns the token at place `partial` [B, W, P] of each phrase."""
    is_next = tf.range(tf.shape(phrases)[2]) == partial[..., None]  # [B, W, P, M]
    return tf.reduce_sum(tf.where(is_next, phrases[:, None], 0), axis=-1)


def _best_partial(met: Tensor, partial: Tensor) -> Tensor:
    """Returns the largest partial match of a phrase that is not met, or 0, int32 [B, W]."""
    return tf.maximum(tf.reduce_max(tf.where(met, 0, partial), axis=-1), 0)  # also where P = 0
