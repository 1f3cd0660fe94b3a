"""Rows in batches of similar length, and back."""

import random

import pytest

from keras_transformer.results import batches_by_length, in_row_order


def test_the_longest_come_first_and_equal_ones_keep_their_order():
    assert batches_by_length([3, 5, 0, 5, 4], 2) == [[1, 3], [4, 0], [2]]


def test_long_rows_make_small_batches():
    lengths = [10, 100, 30, 10, 31, 1000, 10, 0]
    batches = batches_by_length(lengths, 3, 100)
    assert batches == [[5], [1], [4, 2, 0], [3, 6, 7]]


@pytest.mark.parametrize("most", [None, 1, 50, 10_000])
def test_every_row_is_in_one_batch_that_is_not_too_large(most):
    generator = random.Random(1)
    lengths = [generator.randrange(80) for _ in range(500)]
    batches = batches_by_length(lengths, 16, most)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    for batch in batches:
        assert len(batch) <= 16
        padded = len(batch) * max(lengths[row] for row in batch)
        assert most is None or len(batch) == 1 or padded <= most
    results = [[lengths[row] for row in batch] for batch in batches]
    assert in_row_order(batches, results) == lengths


def test_no_rows_make_no_batches():
    assert batches_by_length([], 4) == in_row_order([], []) == []
