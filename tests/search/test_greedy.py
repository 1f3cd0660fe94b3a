"""Greedy search against a loop written out."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.search import beam_search, greedy_search

LIMITS = [9, 0, 4, 7]


def greedy_loop(model, sentence, limit):
    symbols, log_prob = (), 0.0
    while not symbols or symbols[-1] != END_ID:
        gains = model.log_probs(sentence, symbols)
        gains[[PAD_ID, START_ID]] = -np.inf
        symbol = END_ID if len(symbols) == limit else int(np.argmax(gains))
        symbols, log_prob = (*symbols, symbol), log_prob + gains[symbol]
    return symbols, log_prob


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("end_bias", [-2.0, 2.0])
def test_a_beam_of_one_takes_the_best_symbol_until_the_first_end(table_model, in_graph, end_bias):
    model = table_model(sentences=4, vocabulary_size=9, seed=1, end_bias=end_bias)

    def translate(sentences, limits):
        return beam_search(
            model.step, model.state(sentences), start_ids=tf.fill(tf.shape(sentences), START_ID),
            max_lengths=limits, beam_size=1, length_penalty=0.6,
        )  # fmt: skip

    if in_graph:
        translate = tf.function(translate, input_signature=[tf.TensorSpec([None], tf.int32)] * 2)
    found = translate(tf.range(4), tf.constant(LIMITS))
    assert tuple(found.ids.shape) == (4, 1, 10)
    for row, limit in enumerate(LIMITS):
        symbols, log_prob = greedy_loop(model, row, limit)
        assert tuple(found.ids[row, 0, : len(symbols)].numpy()) == symbols
        np.testing.assert_array_equal(found.ids[row, 0, len(symbols) :], PAD_ID)
        assert int(found.lengths[row, 0]) == len(symbols)
        np.testing.assert_allclose(found.log_probs[row, 0], log_prob, rtol=2e-5)
        score = log_prob / ((5 + len(symbols)) / 6) ** 0.6
        np.testing.assert_allclose(found.scores[row, 0], score, rtol=2e-5)


def test_greedy_search_stops_with_the_last_open_sentence(table_model):
    model = table_model(sentences=3, vocabulary_size=9, seed=2, end_bias=3.0)
    longest = max(len(greedy_loop(model, row, 50)[0]) for row in range(3))
    found = greedy_search(
        model.step, model.state(range(3)), start_ids=tf.fill([3], START_ID),
        max_lengths=tf.fill([3], 50),
    )  # fmt: skip
    assert len(model.calls) == longest == int(tf.reduce_max(found.lengths)) < 50


def test_greedy_search_of_no_sentences_gives_no_translations(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=3)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def translate(sentences):
        return greedy_search(
            model.step, model.state(sentences), start_ids=sentences, max_lengths=sentences
        )

    found = translate(tf.zeros([0], tf.int32))
    assert [tuple(part.shape) for part in found] == [(0, 1, 1), (0, 1), (0, 1), (0, 1)]
