"""Beam and greedy search against exhaustive search and searches written out in plain Python.

Those of constraints and penalties are in test_constraints.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    NEVER,
    Request,
    assert_found,
    beam_searched,
    every_translation,
    greedy,
    narrow_beam,
    stopping_beam,
)
from table_model import TableModel

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search, kv_cache_capacities


def test_search_stops_when_no_open_hypothesis_can_win():
    model = TableModel(sentences=4, vocabulary_size=9, seed=6, end_bias=4.0)
    found = beam_searched(model, [Request(40)] * 4, 4)
    assert 2 <= len(model.calls) < 10
    assert model.calls[0] == (4, 4)
    for row in range(4):
        assert_found(narrow_beam(model, row, Request(40), 4), found, row)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_search_goes_on_while_a_longer_one_may_win(alpha):
    # EOS's probability is 0.4 at first and 0.99 later. With alpha 1, log(0.4) = -0.92 loses to
    # log(0.6 * 0.99) / (7/6) = -0.45.
    first = np.log([1e-9, 1e-9, 1e-9, 0.4, 0.6]).astype("f")
    later = np.log([1e-9, 1e-9, 1e-9, 0.99, 0.01]).astype("f")

    def step(ids, state):
        return tf.where((ids == BOS_ID)[..., None], first, later), state

    found = beam_search(
        step, DecodingState(),
        max_lengths=tf.constant([9]), beam_size=2, length_penalty=alpha,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[0, 0, :3], [4, EOS_ID, PAD_ID])
    score = np.log(0.6 * 0.99) / (7 / 6) ** alpha
    np.testing.assert_allclose(found.scores[0, 0], score, atol=1e-5)


@pytest.mark.parametrize("vocabulary_size", [4, 5, 6])
def test_vocabulary_smaller_than_the_beam_leaves_empty_places(vocabulary_size):
    model = TableModel(sentences=2, vocabulary_size=vocabulary_size, seed=9)
    requests = [Request(2), Request(0)]
    found = beam_searched(model, requests, 20, num_translations=20)
    for row, each in enumerate(requests):
        assert_found(every_translation(model, row, each), found, row)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "huge", "PAD and BOS are probable"])
def test_odd_logits_are_scored_in_float32(kind):
    model = TableModel(sentences=2, vocabulary_size=9, seed=10)
    if "float" in kind:
        model.dtype = tf.as_dtype(kind)
        model.table = tf.cast(tf.cast(model.table, kind), tf.float32).numpy()
    elif kind == "huge":
        model.table = np.where(model.table > 0, 1e4, -1e4).astype(np.float32)
        model.table += np.random.default_rng(0).integers(0, 99, model.table.shape, endpoint=True)
    else:
        model.table[:, :, NEVER] += 9.0
    found = beam_searched(model, [Request(5)] * 2, 4, num_translations=2)
    assert found.scores.dtype == tf.float32
    for row in range(2):
        assert_found(narrow_beam(model, row, Request(5), 4), found, row)


def test_ties_go_to_the_lower_beam_and_the_lower_id():
    def step(ids, state):
        return tf.zeros([*ids.shape, 7]), state

    found = beam_search(
        step, DecodingState(),
        max_lengths=tf.constant([2]), beam_size=2, num_translations=2, length_penalty=20.0,
    )  # fmt: skip
    # Open after one token: 1 and 4. Continuations of 1 come first: 1 1 and 1 4.
    np.testing.assert_array_equal(found.ids[0], [[1, 1, EOS_ID], [1, 4, EOS_ID]])


def test_static_sizes_of_the_state_stay_static_in_the_loop():
    seen = []

    def step(ids, state):
        still, grown = state.recurrent_state
        seen.append((tuple(still.shape), tuple(grown.shape)))
        grown = tf.concat([grown, tf.zeros([tf.shape(ids)[0], 4, 1, 8])], axis=2)
        return tf.zeros([tf.shape(ids)[0], 4, 9]), state._replace(recurrent_state=(still, grown))

    tf.function(beam_search).get_concrete_function(
        step, DecodingState(recurrent_state=(tf.zeros([2, 4, 5, 7]), tf.zeros([2, 4, 0, 8]))),
        max_lengths=tf.constant([3, 3]), beam_size=4,
    )  # fmt: skip
    assert seen == [((None, 4, 5, 7), (None, 4, None, 8))]


@pytest.mark.parametrize(("beam_size", "num_translations"), [(2, 3), (4, 0), (0, 1)])
def test_invalid_numbers_are_rejected(beam_size, num_translations):
    model = TableModel(sentences=1, vocabulary_size=9, seed=13)
    with pytest.raises(InputError, match="num_translations"):
        beam_searched(model, [Request(3)], beam_size, num_translations=num_translations)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "num_translations"), [(0.0, 1), (0.6, 3), (2.0, 3)])
@pytest.mark.parametrize("end_bias", [-1.0, 1.5])
def test_early_stop_first_ends_when_enough_finished(alpha, end_bias, num_translations):
    model = TableModel(sentences=24, vocabulary_size=11, seed=12, end_bias=end_bias)
    requests = [Request(limit, alpha) for limit in [8, 0, 5, 12, 1, 9] * 4]
    options = dict(num_translations=num_translations)
    found = beam_searched(model, requests, 3, early_stop="first", **options)
    steps = len(model.calls)
    for row, each in enumerate(requests):
        assert_found(narrow_beam(model, row, each, 3, early_stop="first"), found, row)
    model.calls.clear()
    exact = beam_searched(model, requests, 3, **options)
    if alpha == 2.0 and end_bias > 0:  # short ones come first, and lose
        assert steps < len(model.calls)
        assert np.any(exact.scores > found.scores)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "form"), [(0.6, "gnmt"), (1.0, "power"), (2.0, "power")])
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_early_stop_current_ends_at_the_step_that_the_oracle_ends_at(beam_size, alpha, form):
    model = TableModel(sentences=2, vocabulary_size=14, seed=31, end_bias=1.0)
    request = Request(25, alpha, form=form)
    for row in range(2):
        # A beam of one ends with its first EOS.
        early_stop = "first" if beam_size == 1 else "current"
        expected, steps = stopping_beam(model, row, request, beam_size, early_stop)
        for num_translations in {1, beam_size}:
            model.calls.clear()
            found = beam_searched(
                model, [request], beam_size, rows=[row], early_stop="current",
                num_translations=num_translations, length_penalty_form=form,
            )  # fmt: skip
            assert len(model.calls) == steps
            assert_found(expected, found, 0)


def test_early_stop_current_compares_at_the_present_length():
    # EOS has probability 0.5 at first, then 0.9, and scores are divided by the length. After two
    # steps log(0.5 * 0.9) / 2 = -0.40 and log(0.5) / 1 = -0.69 have finished. The best open
    # hypothesis has log(0.5 * 0.1) / 2 = -1.50, but might end with log(0.05) / 31 = -0.10.
    first = np.log([1e-9, 1e-9, 1e-9, 0.5, 0.5]).astype("f")
    later = np.log([1e-9, 1e-9, 1e-9, 0.9, 0.1]).astype("f")
    calls = []

    def step(ids, state):
        calls.append(ids)
        return tf.where((ids == BOS_ID)[..., None], first, later), state

    def search(early_stop):
        calls.clear()
        found = beam_search(
            step, DecodingState(), max_lengths=tf.constant([30]),
            beam_size=2, length_penalty=1.0, length_penalty_form="power", early_stop=early_stop,
        )  # fmt: skip
        return found.ids[0, 0, :3].numpy().tolist(), len(calls)

    assert search("current") == ([4, EOS_ID, PAD_ID], 2)
    assert search("exact")[0] == [4, EOS_ID, PAD_ID]
    assert search("exact")[1] > 2


def test_greedy_search_stops_with_the_last_open_sentence():
    model = TableModel(sentences=3, vocabulary_size=9, seed=2, end_bias=3.0)
    longest = max(len(greedy(model, row, Request(50)).tokens) for row in range(3))
    found = beam_searched(model, [Request(50)] * 3, 1)
    assert len(model.calls) == longest == int(tf.reduce_max(found.lengths)) < 50


def test_kv_cache_capacities_double_up_to_the_bound():
    bounds = {0: (1,), 19: (20,), 22: (23,), 23: (16, 24), 65: (16, 32, 66)}
    assert {bound: kv_cache_capacities(bound) for bound in bounds} == bounds
