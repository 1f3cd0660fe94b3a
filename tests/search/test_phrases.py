"""Banned and required phrases against examples worked by hand and plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search import BannedPhrases, OpenHypotheses, RequiredPhrases
from keras_transformer.search.beam import repeat_for_each_sentence
from keras_transformer.search.constraints import phrase_progress

PAD, EOS = 0, 3
INF = np.inf
ROOM, VOCABULARY = 12, 10


def table(*lists):
    """Returns the phrases of one sentence as int32 [1, P, M]."""
    longest = max((len(phrase) for phrase in lists), default=0)
    rows = [list(phrase) + [PAD] * (longest - len(phrase)) for phrase in lists]
    return tf.reshape(tf.constant(rows, tf.int32), [1, len(rows), longest])


def past(*tokens):
    """Returns the tokens of one hypothesis, int32 [1, 1, L], and how many there are."""
    return tf.constant([[[*tokens] + [PAD] * (ROOM - len(tokens))]]), len(tokens)


def read(constraint, tokens, time, logits=None, max_lengths=None):
    """Returns what the constraint sees of hypotheses after it has read their tokens."""
    inputs = repeat_for_each_sentence(constraint.inputs, tf.shape(tokens)[0])
    state = constraint.initial_state(inputs, tokens.shape[1])
    unknown = tf.nest.map_structure(lambda leaf: tf.TensorShape([None] * leaf.shape.rank), state)
    _, state = tf.while_loop(
        lambda number, _: number < time,
        lambda number, state: (
            number + 1,
            constraint.update(state, tf.gather(tokens, number, axis=2), inputs),
        ),
        (0, state),
        shape_invariants=(tf.TensorShape([]), unknown),
    )
    return OpenHypotheses(inputs, state, tokens, time, max_lengths, EOS, PAD, logits)


def forbid_phrases(logits, tokens, time, phrases):
    constraint = BannedPhrases(phrases)
    return constraint.restrict(logits, read(constraint, tokens, time, logits))


def require_phrases(logits, tokens, time, phrases, max_lengths):
    constraint = RequiredPhrases(phrases)
    hypotheses = read(constraint, tokens, time, logits, max_lengths)
    return constraint.restrict(logits, hypotheses)


def progress_after(tokens, time, phrases):
    """Returns met, partial, bank, needed and next_ids after the tokens."""
    constraint = RequiredPhrases(phrases)
    hypotheses = read(constraint, tokens, time)
    progress = phrase_progress(hypotheses.state, hypotheses.inputs)
    assert np.array_equal(progress.bank, constraint.bank(hypotheses.state, hypotheses.inputs))
    next_ids = constraint.next_ids(hypotheses)
    return *hypotheses.state, progress.bank, progress.needed, next_ids


def progress_of(tokens, *required):
    found = progress_after(*past(*tokens), table(*required))
    return tuple(field.numpy()[0, 0].tolist() for field in found)


def forbidden(logits):
    return np.flatnonzero(np.asarray(logits)[0, 0] == -INF).tolist()


# Banned phrases


@pytest.mark.parametrize(
    "tokens, banned, expected",
    [
        ([4, 5], [[4, 5, 6]], [6]),
        ([5], [[4, 5, 6]], []),
        ([], [[4, 5]], []),
        ([], [[7]], [7]),
        ([4, 5], [[5, 8], [4, 5, 6], [6, 5, 9]], [6, 8]),
        ([4, 4], [[4, 4, 4]], [4]),
        ([4, 4], [[4, 5], [4, 5]], [5]),
        ([4, 5], [[], []], []),
        ([4, 5], [], []),
        ([4, 6, 5], [[4, 5, 7]], []),
        ([4, 5], [[EOS], [4, 5, EOS]], [EOS]),
    ],
)
def test_last_token_of_a_banned_phrase_is_forbidden(tokens, banned, expected):
    logits = tf.zeros([1, 1, VOCABULARY])
    assert forbidden(forbid_phrases(logits, *past(*tokens), table(*banned))) == expected


# Progress through required phrases


@pytest.mark.parametrize(
    "tokens, required, met, partial, bank, needed, next_ids",
    [
        ([], [[4, 5]], [False], [0], 0, 2, [4]),
        ([4], [[4, 5]], [False], [1], 1, 1, [5]),
        ([4, 6], [[4, 5]], [False], [0], 0, 2, [4]),
        ([4, 5, 8], [[4, 5]], [True], [0], 2, 0, [PAD]),
        # After 4 4, the second 4 begins the phrase again.
        ([4, 4], [[4, 5]], [False], [1], 1, 1, [5]),
        # After 4 5 4, the longest end that begins the phrase is the whole, then 5 is next.
        ([4, 5, 4], [[4, 5, 4, 6]], [False], [3], 3, 1, [6]),
        ([4, 5, 4, 5], [[4, 5, 4, 6]], [False], [2], 2, 2, [4]),
        # Two phrases begun at once: only the further one counts.
        ([4, 5], [[4, 5, 6], [5, 7]], [False, False], [2, 1], 2, 3, [6, 7]),
        # The same phrase twice is met by one occurrence.
        ([4, 5], [[4, 5], [4, 5]], [True, True], [0, 0], 4, 0, [PAD, PAD]),
        # A phrase that is part of another, and phrases that overlap.
        ([7, 4, 5], [[7, 4, 5, 8], [4, 5]], [False, True], [3, 0], 5, 1, [8, PAD]),
        ([4, 5, 6], [[4, 5], [5, 6]], [True, True], [0, 0], 4, 0, [PAD, PAD]),
        # An empty phrase is met and needs nothing.
        ([4], [[], [4, 5]], [True, False], [0, 1], 1, 1, [PAD, 5]),
        ([4], [], [], [], 0, 0, []),
        # What is met can be begun again, which counts for nothing.
        ([4, 5, 4], [[4, 5]], [True], [1], 2, 0, [PAD]),
    ],
)
def test_progress_counts_met_and_begun_phrases(
    tokens, required, met, partial, bank, needed, next_ids
):
    assert progress_of(tokens, *required) == (met, partial, bank, needed, next_ids)


# Requiring them


def required_at(tokens, max_length, *required):
    """Returns what required phrases forbid."""
    logits = tf.zeros([1, 1, VOCABULARY])
    limits = tf.constant([max_length])
    return forbidden(require_phrases(logits, *past(*tokens), table(*required), limits))


def all_but(*allowed):
    return [token for token in range(VOCABULARY) if token not in allowed]


@pytest.mark.parametrize(
    "tokens, max_length, required, expected",
    [
        ([], 9, [[4, 5]], [EOS]),
        ([4, 5], 9, [[4, 5]], []),
        ([], 9, [], []),
        ([], 9, [[]], []),
        ([], 3, [[4, 5]], [EOS]),
        ([], 2, [[4, 5]], all_but(4)),
        ([], 3, [[4, 5], [6]], all_but(4, 6)),
        ([4], 2, [[4, 5]], all_but(5)),
        # Two tokens are left and one is needed, but any other would lose the 4.
        ([4], 3, [[4, 5]], all_but(5)),
        ([4], 4, [[4, 5]], [EOS]),
        # The phrase that is begun is finished first.
        ([4], 3, [[4, 5], [6]], all_but(5)),
        # The limit allows no more: the translation may end as it is.
        ([4], 1, [[4, 5]], []),
        ([], 0, [[4, 5]], []),
        # It never allowed all of it: as much is written as there is room for.
        ([], 1, [[4, 5]], all_but(4)),
    ],
)
def test_required_phrases_forbid_what_would_lose_them(tokens, max_length, required, expected):
    assert required_at(tokens, max_length, *required) == expected
