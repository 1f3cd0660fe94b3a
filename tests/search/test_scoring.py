"""The length penalty, the coverage penalty and what they make of log-probabilities."""

import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import DecodingState
from keras_transformer.search import kv_cache_capacities
from keras_transformer.search.beam import (
    coverage_penalty,
    final_scores,
    length_penalty,
    prepare_search,
)


def test_length_penalty_equals_numbers_worked_by_hand():
    lengths = tf.constant([1, 7, 19])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.0)), [1, 1, 1])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(1.0)), [1, 2, 4])
    np.testing.assert_allclose(length_penalty(lengths, tf.constant(0.5)), [1, 2**0.5, 2], rtol=1e-6)


def test_what_is_impossible_stays_so_under_an_infinite_length_penalty():
    _, inputs, _ = prepare_search(
        None, DecodingState(), 1, bos_ids=tf.constant([2]), max_lengths=tf.constant([9]),
        length_penalty=1e6,
    )  # fmt: skip
    log_probs = tf.constant([[-1.0, -float("inf")]])
    scores = final_scores(log_probs, tf.constant(9), None, inputs)
    np.testing.assert_array_equal(scores, [[0.0, -np.inf]])


@pytest.mark.parametrize(
    ("max_length_bound", "expected"),
    [
        (0, (1,)),
        (19, (20,)),
        (22, (23,)),
        (23, (16, 24)),
        (65, (16, 32, 66)),
        (200, (16, 32, 64, 128, 201)),
    ],
)
def test_room_doubles_from_stage_to_stage_and_ends_at_the_longest_translation(
    max_length_bound, expected
):
    assert kv_cache_capacities(max_length_bound) == expected


# Coverage


def test_the_penalty_is_the_sum_of_logs_of_coverage_up_to_one():
    coverage = tf.constant([[[0.5, 2.0, 0.1], [1.0, 1.0, 1.0]]])
    found = coverage_penalty(coverage, tf.constant([0.2]))
    np.testing.assert_allclose(found, [[0.2 * (math.log(0.5) + math.log(0.1)), 0.0]], rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_tokens_without_attention_cost_a_finite_amount(jit_compile):
    coverage = tf.constant([[[0.0], [1e-45], [1e-30]]])
    found = tf.function(coverage_penalty, jit_compile=jit_compile)(coverage, tf.constant([1.0]))
    np.testing.assert_allclose(found, [[-87.34, -87.34, math.log(1e-30)]], rtol=1e-4)


def test_each_sentence_has_its_own_beta_and_zero_turns_it_off():
    found = coverage_penalty(tf.zeros([2, 3, 4]), tf.constant([0.0, 0.1])).numpy()
    assert (found[0] == 0).all() and (found[1] < 0).all()


def test_one_beta_holds_for_all_sentences():
    coverage = tf.fill([2, 3, 4], 0.5)
    found = coverage_penalty(coverage, tf.constant([0.1]))
    np.testing.assert_allclose(found, np.full([2, 3], 0.4 * math.log(0.5)), rtol=1e-6)


def test_a_graph_of_unknown_sizes_takes_an_empty_batch_and_an_empty_source():
    signature = [tf.TensorSpec([None, 3, None]), tf.TensorSpec([None])]
    graph = tf.function(coverage_penalty, input_signature=signature)
    assert graph(tf.zeros([0, 3, 5]), tf.zeros([0])).shape == (0, 3)
    assert (graph(tf.zeros([2, 3, 0]), tf.zeros([1])).numpy() == 0).all()
