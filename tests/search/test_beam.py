"""Beam search: against brute force and a search in plain Python, and by worked numbers."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import (
    NEVER,
    Request,
    arguments,
    assert_found,
    assert_same,
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
from keras_transformer.search import beam_search, kv_cache_capacities, sample

# A vocabulary of 5 has three tokens that may come next: 1, 4 and EOS. A translation of at most 4
# tokens and EOS has at most 8 hypotheses before its last free token, with 24 continuations.
ALL = 24
TOKENS = st.sampled_from([1, 4])


@st.composite
def requests(draw, form):
    """Draws the options of a sentence, neutral ones more often; they may contradict each other."""
    limit = draw(st.integers(0, 4))
    return Request(
        limit=limit,
        alpha=draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        beta=draw(st.sampled_from([0.0, 0.0, 0.4])),
        min_length=draw(st.sampled_from([0, 0, 0, 1, 2, 5])),
        prefix=tuple(draw(st.lists(TOKENS, max_size=limit))) if draw(st.booleans()) else (),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.6, 1.7])),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 1, 2, 3, 10**9])),
        banned=draw(st.sampled_from([(), (), (), (1,), (4,), (1, 4)])),
        form=form,
    )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from(["gnmt", "power"]),
    beam_size=st.sampled_from([1, 2, 3, 5, ALL]),
    early_stop=st.sampled_from(["exact", "current", "first", "narrow"]),
)
def test_search_equals_brute_force(data, seed, form, beam_size, early_stop):
    sentences = data.draw(st.lists(requests(form), min_size=1, max_size=4))
    num_translations = data.draw(st.integers(1, beam_size))
    model = TableModel(
        sentences=len(sentences), vocabulary_size=5, seed=seed, end_bias=-1.0, source_length=4
    )
    found = beam_searched(
        model, sentences, beam_size, early_stop=early_stop, length_penalty_form=form,
        num_translations=num_translations,
    )  # fmt: skip
    oracle = "first" if beam_size == 1 else early_stop  # a beam of one ends with its first EOS
    most_steps = 0
    for row, request in enumerate(sentences):
        expected, steps = stopping_beam(model, row, request, beam_size, oracle)
        most_steps = max(most_steps, steps)
        assert_found(expected, found, row)
        if beam_size == ALL:
            assert_found(every_translation(model, row, request), found, row)
    assert len(model.calls) <= most_steps
    assert early_stop == "exact" or len(model.calls) == most_steps


@pytest.mark.parametrize("beam_size", [1, 4])
def test_longer_searches_equal_plain_ones(beam_size):
    rules = [
        {}, dict(alpha=0.0), dict(alpha=20.0), dict(beta=0.8), dict(prefix=(5, 1), min_length=4),
        dict(repetition_penalty=1.7, no_repeat_ngram=2), dict(banned=(4, 5)),
        dict(min_length=5, no_repeat_ngram=1, banned=(1, 4, 5, 6)),  # a contradiction
    ]  # fmt: skip
    requests = [Request(12, **rule) for rule in rules]
    model = TableModel(
        sentences=len(rules), vocabulary_size=8, seed=8, end_bias=1.0, source_length=5
    )
    found = beam_searched(model, requests, beam_size, num_translations=beam_size)
    assert found.ids.dtype == tf.int32
    for row, each in enumerate(requests):
        if beam_size == 1:
            expected = [best for best in [greedy(model, row, each)] if best]
        else:
            expected = narrow_beam(model, row, each, beam_size)
        assert bool(expected) == (row < len(rules) - 1)
        assert_found(expected, found, row)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_neutral_options_change_nothing(beam_size):
    model = TableModel(sentences=4, vocabulary_size=30, seed=5, end_bias=2.0)
    neutral, others = [Request(6)] * 4, [Request(6, min_length=4, prefix=(5,), banned=(4,))] * 4
    options = dict(num_translations=beam_size)
    expected = beam_searched(model, neutral, beam_size, **options)
    found = beam_searched(model, neutral, beam_size, everything=True, **options)
    beside = beam_searched(model, others + neutral, beam_size, rows=[*range(4)] * 2, **options)
    for row in range(4):
        assert_same(found, expected, row, row, rtol=0)
        assert_same(beside, expected, 4 + row, row)


def test_exact_search_stops_when_no_open_hypothesis_can_win():
    model = TableModel(sentences=4, vocabulary_size=9, seed=6, end_bias=4.0)
    found = beam_searched(model, [Request(40)] * 4, 4)
    assert 2 <= len(model.calls) < 10
    for row in range(4):
        assert_found(narrow_beam(model, row, Request(40), 4), found, row)


# The probability of EOS at first and later; alpha; the early stop; the best translation; steps.
@pytest.mark.parametrize(
    ("ends", "alpha", "form", "early_stop", "steps"),
    [
        # log(0.4) = -0.92 loses to log(0.6 * 0.99) / (7/6) = -0.45, or to -0.52 without a penalty.
        ((0.4, 0.99), 1.0, "gnmt", "exact", None),
        ((0.4, 0.99), 0.0, "gnmt", "exact", None),
        # log(0.51) = -0.67 beats log(0.49) = -0.71, and loses to log(0.49 * 0.99) / (7/6) = -0.62.
        ((0.51, 0.99), 1.0, "gnmt", "exact", None),
        # After two steps log(0.5 * 0.9) / 2 = -0.40 and log(0.5) / 1 = -0.69 have finished. The
        # best open hypothesis has log(0.5 * 0.1) / 2 = -1.50, but might end with log(0.05) / 31.
        ((0.5, 0.9), 1.0, "power", "current", 2),
        ((0.5, 0.9), 1.0, "power", "exact", None),
    ],
)
def test_search_goes_on_while_a_longer_one_may_win(ends, alpha, form, early_stop, steps):
    first, later = (np.log([1e-9, 1e-9, 1e-9, end, 1 - end]).astype("f") for end in ends)
    calls = []

    def step(ids, state):
        calls.append(ids)
        return tf.where((ids == BOS_ID)[..., None], first, later), state

    found = beam_search(
        step, DecodingState(), max_lengths=tf.constant([30, 1]), beam_size=2,
        length_penalty=alpha, length_penalty_form=form, early_stop=early_stop,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[:, 0, :3], [[4, EOS_ID, PAD_ID]] * 2)
    divisor = (7 / 6 if form == "gnmt" else 2) ** alpha
    score = np.log((1 - ends[0]) * ends[1]) / divisor
    np.testing.assert_allclose(found.scores[:, 0], [score] * 2, atol=1e-5)
    assert len(calls) == steps or (steps is None and len(calls) >= 2)


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


@pytest.mark.parametrize(
    ("form", "alpha", "expected"),
    [
        # Open after one token: 1 and 4. Continuations of 1 come first: 1 1 and 1 4.
        ("gnmt", 20.0, [[1, 1, EOS_ID], [1, 4, EOS_ID]]),
        # All translations have the score log(1 / 7).
        ("power", 1.0, [[EOS_ID, PAD_ID, PAD_ID], [1, EOS_ID, PAD_ID]]),
    ],
)
def test_ties_go_to_the_lower_beam_and_id_and_the_first_that_ended(form, alpha, expected):
    found = beam_search(
        lambda ids, state: (tf.zeros([*ids.shape, 7]), state), DecodingState(), beam_size=2,
        num_translations=2, max_lengths=tf.constant([2]), length_penalty=alpha,
        length_penalty_form=form,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[0], expected)


def test_static_sizes_of_the_state_stay_static_in_the_loop():
    seen = []

    def step(ids, state):
        still, grown = state.recurrent_state
        seen.append((tuple(still.shape), tuple(grown.shape)))
        grown = tf.concat([grown, tf.zeros([tf.shape(ids)[0], 4, 1, 8])], axis=2)
        return tf.zeros([tf.shape(ids)[0], 4, 9]), state._replace(recurrent_state=(still, grown))

    tf.function(beam_search, autograph=False).get_concrete_function(
        step, DecodingState(recurrent_state=(tf.zeros([2, 4, 5, 7]), tf.zeros([2, 4, 0, 8]))),
        max_lengths=tf.constant([3, 3]), beam_size=4,
    )  # fmt: skip
    assert seen == [((None, 4, 5, 7), (None, 4, None, 8))]


@pytest.mark.parametrize(
    ("search", "option", "value"),
    [
        (beam_search, "beam_size", 0), (beam_search, "num_translations", 5),
        (beam_search, "early_stop", "soon"), (sample, "num_translations", 0),
        (sample, "temperature", -1.0), (sample, "temperature", [1.0, 0.0]),
        (sample, "top_p", 2.0), (sample, "top_p", float("nan")),
        (sample, "top_k", -2), (sample, "top_k", tf.constant([3, -2])),
    ] + [
        (search, *option)
        for search in (beam_search, sample)
        for option in [
            ("length_penalty", -0.5), ("length_penalty", np.array([0.5, np.nan])),
            ("coverage_penalty", float("inf")), ("length_penalty_form", "mean"),
        ]
    ],
)  # fmt: skip
def test_options_out_of_range_are_rejected(search, option, value):
    model = TableModel(sentences=2, vocabulary_size=9, seed=13)
    options = arguments([Request(3)] * 2) | {option: value}
    with pytest.raises(InputError, match=option) as error:
        search(model.step, model.state(range(2), 4), **options)
    assert "\n" not in str(error.value) and not model.calls


def test_kv_cache_capacities_double_up_to_the_bound():
    bounds = {0: (1,), 19: (20,), 22: (23,), 23: (16, 24), 65: (16, 32, 66)}
    assert {bound: kv_cache_capacities(bound) for bound in bounds} == bounds
