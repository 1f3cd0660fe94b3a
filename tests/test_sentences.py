"""Sentences in batches of similar length; calls of translators are in the tests of each kind."""

import random

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.sentences import batches_by_length, in_row_order, text_input


@pytest.mark.parametrize("make", [list, np.array, tf.constant], ids=["list", "array", "tensor"])
def test_sentences_may_be_a_list_an_array_or_an_eager_tensor(make):
    assert text_input("text", make(["Ein Hund", "木"])) == ["Ein Hund", "木"]


def test_tensor_of_a_graph_is_reported():
    def translate(texts):
        return text_input("text", texts)

    message = "InputError: text must be a list of sentences, got a tensor of a graph: translate out"
    with pytest.raises(Exception, match=message):
        tf.function(translate)(tf.constant(["a"]))
    with pytest.raises(InputError, match="got a tensor of a graph"):
        tf.function(translate, autograph=False)(tf.constant(["a"]))


@pytest.mark.parametrize(
    ("lengths", "size", "most", "batches"),
    [
        ([3, 5, 0, 5, 4], 2, None, [[1, 3], [4, 0], [2]]),  # the longest come first
        ([10, 100, 30, 10, 31, 1000, 10, 0], 3, 100, [[5], [1], [4, 2, 0], [3, 6, 7]]),
        ([], 4, None, []),
    ],
)
def test_rows_of_similar_length_share_a_batch(lengths, size, most, batches):
    assert batches_by_length(lengths, size, most) == batches
    assert in_row_order(batches, [[lengths[row] for row in batch] for batch in batches]) == lengths


@pytest.mark.parametrize("most", [None, 1, 50, 10_000])
def test_each_row_is_in_one_batch_of_limited_size(most):
    generator = random.Random(1)
    lengths = [generator.randrange(80) for _ in range(500)]
    batches = batches_by_length(lengths, 16, most)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    for batch in batches:
        assert len(batch) <= 16
        padded = len(batch) * max(lengths[row] for row in batch)
        assert most is None or len(batch) == 1 or padded <= most


def test_batches_have_at_least_one_sentence():
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        batches_by_length([1, 2], 0)
