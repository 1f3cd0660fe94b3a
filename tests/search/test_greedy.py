"""Greedy search against a loop written out."""

import pytest
import tensorflow as tf
from plain_search import Wants, assert_found, greedy

from keras_transformer.config import BOS_ID
from keras_transformer.search import beam_search, greedy_search

LIMITS = [9, 0, 4, 7]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("end_bias", [-2.0, 2.0])
def test_a_beam_of_one_takes_the_best_token_until_the_first_end(table_model, in_graph, end_bias):
    model = table_model(sentences=4, vocabulary_size=9, seed=1, end_bias=end_bias)

    def translate(sentences, limits):
        return beam_search(
            model.step, model.state(sentences), bos_ids=tf.fill(tf.shape(sentences), BOS_ID),
            max_lengths=limits, beam_size=1, length_penalty=0.6,
        )  # fmt: skip

    if in_graph:
        translate = tf.function(translate, input_signature=[tf.TensorSpec([None], tf.int32)] * 2)
    found = translate(tf.range(4), tf.constant(LIMITS))
    assert tuple(found.ids.shape) == (4, 1, 10)
    for row, limit in enumerate(LIMITS):
        assert_found([greedy(model, row, Wants(limit))], found, row)


def test_greedy_search_stops_with_the_last_open_sentence(table_model):
    model = table_model(sentences=3, vocabulary_size=9, seed=2, end_bias=3.0)
    longest = max(len(greedy(model, row, Wants(50)).tokens) for row in range(3))
    found = greedy_search(
        model.step, model.state(range(3)), bos_ids=tf.fill([3], BOS_ID),
        max_lengths=tf.fill([3], 50),
    )  # fmt: skip
    assert len(model.calls) == longest == int(tf.reduce_max(found.lengths)) < 50


def test_greedy_search_of_no_sentences_gives_no_translations(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=3)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def translate(sentences):
        return greedy_search(
            model.step, model.state(sentences), bos_ids=sentences, max_lengths=sentences
        )

    found = translate(tf.zeros([0], tf.int32))
    assert [tuple(part.shape) for part in found] == [(0, 1, 1), (0, 1), (0, 1), (0, 1)]
