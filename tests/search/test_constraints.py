"""Constraints by themselves, and where a search must decide between them; see test_beam.py."""

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    Banned,
    Request,
    arguments,
    assert_found,
    narrow_beam,
    tokens_of,
)
from table_model import TableModel

from keras_transformer.config import UNK_ID
from keras_transformer.decoding import IMPOSSIBLE
from keras_transformer.search import (
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    OpenHypotheses,
    Prefix,
    RepetitionPenalty,
    beam_search,
    forbid_ids,
    sample,
)

PAD, EOS = 0, 3
INF = np.inf
ROOM, VOCABULARY = 10, 9


def view_of(constraint, tokens):
    """Returns what a constraint sees of one hypothesis with these tokens."""
    padded = tf.constant([[tokens + [PAD] * (ROOM - len(tokens))]])
    return OpenHypotheses(constraint.inputs, (), padded, len(tokens), None)


def forbidden(constraint, tokens):
    """Returns the ids that a constraint forbids after the tokens, PAD aside."""
    view, logits = view_of(constraint, tokens), tf.zeros([1, 1, VOCABULARY])
    if (ids := constraint.forbidden_ids(view)) is not None:
        logits = forbid_ids(logits, ids)
    logits = constraint.forbid(logits, view)
    return [
        token
        for token in np.flatnonzero(logits[0, 0] == np.float32(IMPOSSIBLE)).tolist()
        if token != PAD
    ]


def test_repetition_penalty_counts_a_token_once():
    logits = tf.constant([[[5.0, 1.0, 3.0, -3.0, -INF]]])
    tokens = tf.constant([[[2, 3, 2, 4, 0]]])  # and PAD, which does not count
    constraint = RepetitionPenalty([2.0])
    view = OpenHypotheses(constraint.inputs, (), tokens, 4, None)
    found = constraint.adjust(logits, view)
    np.testing.assert_array_equal(found, [[[5.0, 1.0, 1.5, -6.0, -INF]]])


@pytest.mark.parametrize(
    ("tokens", "size", "expected"),
    [
        ([4, 5, 6, 4, 5], 3, [6]),
        ([4, 5, 4, 6, 4], 2, [5, 6]),
        ([4, 5, 6, 4, 5], 1, [4, 5, 6]),
        ([4, 4, 4], 3, [4]),  # overlapping
        ([], 1, []),
        ([4, 5, 6, 4, 5], 1_000_000_000, []),
        ([4, 5, 6, 4, 5], 0, []),
    ],
)
def test_no_repeat_ngram_forbids_repeated_ngrams(tokens, size, expected):
    assert forbidden(NoRepeatNgram([size]), tokens) == expected


def test_prefix_forces_its_next_token_while_it_lasts():
    prefix = Prefix(tf.constant([[4, 6], [5, 0]]))
    view = OpenHypotheses(prefix.inputs, (), None, 0, None)
    forced = [prefix.forced_ids(view._replace(time=time)).numpy().tolist() for time in range(4)]
    assert forced == [[4, 5], [6, PAD], [PAD, PAD], [PAD, PAD]]
    nothing = view._replace(inputs=tf.zeros([2, 0], tf.int32))
    assert prefix.forced_ids(nothing).numpy().tolist() == [PAD, PAD]


# In a search

METHODS = {  # with the number of hypotheses
    "greedy": (beam_search, 1, dict(beam_size=1)),
    "beam": (beam_search, 3, dict(beam_size=3, num_translations=3)),
    "sampling": (sample, 9, dict(num_translations=9)),
}


def test_prefix_overrides_constraints_in_any_order():
    model = TableModel(sentences=3, vocabulary_size=8, seed=6)
    requests = [Request(4, min_length=3, prefix=(5, 5), no_repeat_ngram=2, banned=(5,))] * 3
    options = arguments([Request(4)] * 3)
    for order in (1, -1):
        options["constraints"] = [
            Prefix(tf.constant([[5, 5]])),
            MinLength(3),
            NoRepeatNgram(2),
            Banned([[5]]),
        ][::order]
        found = beam_search(model.step, model.state(range(3), 3), beam_size=3, **options)
        for row, each in enumerate(requests):
            assert_found(narrow_beam(model, row, each, 3), found, row)


@pytest.mark.parametrize("method", ["greedy", "beam", "sampling"])
def test_prefix_may_contain_the_unknown_token(method):
    model = TableModel(sentences=2, vocabulary_size=8, seed=6)
    search, width, options = METHODS[method]
    constraints = arguments([Request(5, prefix=(UNK_ID, 5)), Request(5)])
    constraints["constraints"].insert(0, ForbidUnknown())
    found = search(model.step, model.state(range(2), width), **options, **constraints)
    for place in range(found.ids.shape[1]):
        begun, plain = (tokens_of(found, row, place) for row in range(2))
        assert begun[:2] == (UNK_ID, 5)
        assert UNK_ID not in begun[2:] + plain


@pytest.mark.parametrize("minimum", [0, 1, 3])
def test_min_length_forbids_eos_before_minimum_or_any_text(minimum):
    rows = [[], [7], [7, 7, 7, 7], [5], [5, 7], [5, 5, 7], [5, 7, 7, 7]]
    constraint = MinLength(tf.constant([minimum]), space_ids=[7, 8])
    assert [forbidden(constraint, row) == [EOS] for row in rows] == [
        minimum > 0 and (len(row) < minimum or set(row) <= {7}) for row in rows
    ]
