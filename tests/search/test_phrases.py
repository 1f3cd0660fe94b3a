"""Banned phrases against examples worked by hand and plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search import BannedPhrases, OpenHypotheses
from keras_transformer.search.beam import repeat_for_each_sentence

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
