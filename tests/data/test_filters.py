"""Dropping pairs of sentences by their lengths."""

import numpy as np
import pytest

from keras_transformer.data.sources import LengthFilter

SOURCE = np.array([0, 4, 6, 2, 5, 0])
TARGET = np.array([3, 4, 1, 5, 5, 0])


def test_without_limits_only_pairs_with_an_empty_side_are_dropped():
    keep, dropped = LengthFilter()(SOURCE, TARGET)
    assert keep.tolist() == [False, True, True, True, True, False]
    assert dropped == {"empty": 2, "too long": 0, "length ratio": 0}


def test_the_limits_themselves_are_kept():
    keep, _ = LengthFilter(max_length=6, max_length_ratio=6.0)(SOURCE, TARGET)
    assert keep.tolist() == [False, True, True, True, True, False]
    keep, dropped = LengthFilter(max_length=5, max_length_ratio=2.4)(SOURCE, TARGET)
    assert keep.tolist() == [False, True, False, False, True, False]
    assert dropped == {"empty": 2, "too long": 1, "length ratio": 1}


def test_a_pair_is_counted_under_its_first_reason_only():
    _, dropped = LengthFilter(max_length=4, max_length_ratio=2)(np.array([9]), np.array([1]))
    assert dropped == {"empty": 0, "too long": 1, "length ratio": 0}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "no pair of sentences is left of 9 in x.tsv: 2 have an empty side"),
        (
            {"max_length": 5, "max_length_ratio": 1.5},
            "no pair of sentences is left of 9 in x.tsv: 2 have an empty side, 3 are longer than "
            "5 tokens, 4 have a length ratio above 1.5",
        ),
    ],
)
def test_the_error_for_an_empty_corpus_says_why(limits, message):
    dropped = {"empty": 2, "too long": 3, "length ratio": 4}
    assert str(LengthFilter(**limits).nothing_left(dropped, "x.tsv")) == message
