"""Beam and greedy search against exhaustive search and searches written out in plain Python."""

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    NEVER,
    Request,
    assert_found,
    every_translation,
    greedy,
    narrow_beam,
)
from table_model import TableModel

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search, kv_cache_capacities


def search(model, sentences, limits, **options):
    return beam_search(
        model.step,
        model.state(sentences, options["beam_size"]),
        bos_ids=tf.fill([len(sentences)], BOS_ID),
        max_lengths=tf.constant(limits, tf.int32),
        **options,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
def test_huge_beam_equals_exhaustive_search(alpha):
    # After two tokens 9 hypotheses are open, with 27 continuations and 9 ends.
    model = TableModel(sentences=3, vocabulary_size=6, seed=1)
    found = search(
        model, [0, 1, 2], [3, 3, 2], beam_size=36, num_translations=27, length_penalty=alpha
    )
    for row, limit in enumerate([3, 3, 2]):
        assert_found(every_translation(model, row, Request(limit, alpha)), found, row)


@pytest.mark.slow
@pytest.mark.parametrize(("beam_size", "alpha"), [(2, 0.0), (3, 0.6), (4, 1.5), (5, -0.5)])
@pytest.mark.parametrize("end_bias", [-3.0, 1.5])
def test_narrow_beam_equals_plain_search(beam_size, alpha, end_bias):
    model = TableModel(sentences=6, vocabulary_size=11, seed=2, end_bias=end_bias)
    limits = [8, 0, 5, 12, 1, 9]
    found = search(
        model, range(6), limits, beam_size=beam_size, num_translations=2, length_penalty=alpha
    )
    for row, limit in enumerate(limits):
        assert_found(narrow_beam(model, row, Request(limit, alpha), beam_size), found, row)


def test_large_vocabulary_is_searched_like_a_small_one():
    model = TableModel(sentences=2, vocabulary_size=2003, seed=3, end_bias=6.0)
    found = search(model, [0, 1], [6, 4], beam_size=3, num_translations=3)
    for row, limit in enumerate([6, 4]):
        assert_found(narrow_beam(model, row, Request(limit), 3), found, row)


def test_search_stops_when_no_open_hypothesis_can_win():
    model = TableModel(sentences=4, vocabulary_size=9, seed=6, end_bias=4.0)
    found = search(model, range(4), [40] * 4, beam_size=4)
    assert 2 <= len(model.calls) < 10
    assert model.calls[0] == (4, 4)
    for row in range(4):
        assert_found(narrow_beam(model, row, Request(40), 4), found, row)


@pytest.mark.parametrize(("alpha", "end_at_first"), [(1.0, 0.4), (0.0, 0.4), (-1.0, 0.45)])
def test_search_goes_on_while_a_longer_one_may_win(alpha, end_at_first):
    # EOS's probability is 0.4 at first and 0.99 later. With alpha 1, log(0.4) = -0.92 loses to
    # log(0.6 * 0.99) / (7/6) = -0.45; with alpha -1, log(0.45) = -0.80 loses to -0.71.
    first = np.log([1e-9, 1e-9, 1e-9, end_at_first, 1 - end_at_first]).astype("f")
    later = np.log([1e-9, 1e-9, 1e-9, 0.99, 0.01]).astype("f")

    def step(ids, state):
        return tf.where((ids == BOS_ID)[..., None], first, later), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([BOS_ID]),
        max_lengths=tf.constant([9]), beam_size=2, length_penalty=alpha,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[0, 0, :3], [4, EOS_ID, PAD_ID])
    score = np.log((1 - end_at_first) * 0.99) / (7 / 6) ** alpha
    np.testing.assert_allclose(found.scores[0, 0], score, atol=1e-5)


@pytest.mark.parametrize("vocabulary_size", [4, 5, 6])
def test_vocabulary_smaller_than_the_beam_leaves_empty_places(vocabulary_size):
    model = TableModel(sentences=2, vocabulary_size=vocabulary_size, seed=9)
    found = search(model, [0, 1], [2, 0], beam_size=20, num_translations=20)
    for row, limit in enumerate([2, 0]):
        assert_found(every_translation(model, row, Request(limit)), found, row)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_logits_are_scored_in_float32(dtype):
    model = TableModel(sentences=2, vocabulary_size=9, seed=10)
    rounded = tf.cast(tf.cast(model.table, dtype), tf.float32).numpy()
    model.dtype = dtype
    found = search(model, [0, 1], [5, 5], beam_size=3)
    model.table = rounded
    assert found.scores.dtype == tf.float32
    for row in range(2):
        assert_found(narrow_beam(model, row, Request(5), 3), found, row)


def test_huge_logits_give_finite_exact_scores():
    model = TableModel(sentences=2, vocabulary_size=9, seed=11)
    model.table = np.where(model.table > 0, 1e4, -1e4).astype(np.float32)
    model.table += np.random.default_rng(0).integers(0, 99, model.table.shape, endpoint=True)
    found = search(model, [0, 1], [5, 5], beam_size=4, num_translations=4)
    assert np.all(np.isfinite(found.scores))
    for row in range(2):
        best = narrow_beam(model, row, Request(5), 4)[0]
        np.testing.assert_allclose(found.scores[row, 0], best[0], rtol=1e-5, atol=1e-5)


def test_ties_go_to_the_lower_beam_and_the_lower_id():
    def step(ids, state):
        return tf.zeros([*ids.shape, 7]), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([BOS_ID]),
        max_lengths=tf.constant([2]), beam_size=2, num_translations=2, length_penalty=20.0,
    )  # fmt: skip
    # Open after one token: 1 and 4. Continuations of 1 come first: 1 1 and 1 4.
    np.testing.assert_array_equal(found.ids[0], [[1, 1, EOS_ID], [1, 4, EOS_ID]])


def test_pad_and_bos_are_never_generated():
    model = TableModel(sentences=2, vocabulary_size=9, seed=12)
    model.table[:, :, NEVER] += 9.0
    found = search(model, [0, 1], [5, 5], beam_size=3, num_translations=3)
    for row in range(2):
        assert_found(narrow_beam(model, row, Request(5), 3), found, row)


def test_bos_may_differ_by_sentence_and_be_eos():
    def step(ids, state):  # most probable: EOS after 4, else the last token plus 1
        return 9.0 * tf.one_hot(tf.where(ids == 4, EOS_ID, ids + 1), 9), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([5, EOS_ID]),
        max_lengths=tf.constant([2, 2]), beam_size=2,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[:, 0], [[6, 7, EOS_ID], [4, EOS_ID, PAD_ID]])


def test_static_sizes_of_the_state_stay_static_in_the_loop():
    seen = []

    def step(ids, state):
        still, grown = state.recurrent_state
        seen.append((tuple(still.shape), tuple(grown.shape)))
        grown = tf.concat([grown, tf.zeros([tf.shape(ids)[0], 4, 1, 8])], axis=2)
        return tf.zeros([tf.shape(ids)[0], 4, 9]), state._replace(recurrent_state=(still, grown))

    tf.function(beam_search).get_concrete_function(
        step, DecodingState(recurrent_state=(tf.zeros([2, 4, 5, 7]), tf.zeros([2, 4, 0, 8]))),
        bos_ids=tf.constant([2, 2]), max_lengths=tf.constant([3, 3]), beam_size=4,
    )  # fmt: skip
    assert seen == [((None, 4, 5, 7), (None, 4, None, 8))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(beam_size=2, num_translations=3), "got 3 with beam_size 2"),
        (dict(beam_size=4, num_translations=0), "got 0 with beam_size 4"),
        (dict(beam_size=0), "got 1 with beam_size 0"),
        (dict(beam_size=2, early_stop="last"), "must be one of exact, first, got 'last'"),
        (dict(beam_size=2, pad_id=3), "eos_id and pad_id must differ, both are 3"),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    model = TableModel(sentences=1, vocabulary_size=9, seed=13)
    with pytest.raises(InputError, match=message):
        search(model, [0], [3], **options)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "num_translations"), [(0.0, 1), (0.6, 3), (2.0, 3)])
@pytest.mark.parametrize("end_bias", [-1.0, 1.5])
def test_early_stop_first_ends_when_enough_finished(alpha, end_bias, num_translations):
    model = TableModel(sentences=24, vocabulary_size=11, seed=12, end_bias=end_bias)
    limits = [8, 0, 5, 12, 1, 9] * 4
    options = dict(beam_size=3, num_translations=num_translations, length_penalty=alpha)
    found = search(model, range(24), limits, early_stop="first", **options)
    steps = len(model.calls)
    for row, limit in enumerate(limits):
        expected = narrow_beam(model, row, Request(limit, alpha), 3, early_stop="first")
        assert_found(expected, found, row)
    model.calls.clear()
    exact = search(model, range(24), limits, **options)
    if alpha == 2.0 and end_bias > 0:  # short ones come first, and lose
        assert steps < len(model.calls)
        assert np.any(exact.scores > found.scores)


# Greedy search: a beam of one

LIMITS = [9, 0, 4, 7]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("end_bias", [-2.0, 2.0])
def test_beam_of_one_is_greedy_search(in_graph, end_bias):
    model = TableModel(sentences=4, vocabulary_size=9, seed=1, end_bias=end_bias)

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
        assert_found([greedy(model, row, Request(limit))], found, row)


def test_greedy_search_stops_with_the_last_open_sentence():
    model = TableModel(sentences=3, vocabulary_size=9, seed=2, end_bias=3.0)
    longest = max(len(greedy(model, row, Request(50)).tokens) for row in range(3))
    found = beam_search(
        model.step, model.state(range(3)), bos_ids=tf.fill([3], BOS_ID),
        max_lengths=tf.fill([3], 50), beam_size=1,
    )  # fmt: skip
    assert len(model.calls) == longest == int(tf.reduce_max(found.lengths)) < 50


# KV cache of fixed capacity


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
def test_kv_cache_capacities_double_up_to_the_bound(max_length_bound, expected):
    assert kv_cache_capacities(max_length_bound) == expected
