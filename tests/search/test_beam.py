"""Beam search against exhaustive search and against a plain reference without early stop."""

import numpy as np
import pytest
import tensorflow as tf
from plain_search import NEVER, Wants, assert_found, assert_same, every_translation, narrow_beam

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import DecodingState
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search


def search(model, sentences, limits, **options):
    return beam_search(
        model.step,
        model.state(sentences, options["beam_size"]),
        bos_ids=tf.fill([len(sentences)], BOS_ID),
        max_lengths=tf.constant(limits, tf.int32),
        **options,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
def test_a_beam_that_holds_everything_finds_the_true_best_translations(table_model, alpha):
    # After two tokens 9 hypotheses are open, with 27 continuations and 9 ends.
    model = table_model(sentences=3, vocabulary_size=6, seed=1)
    found = search(
        model, [0, 1, 2], [3, 3, 2], beam_size=36, num_translations=27, length_penalty=alpha
    )
    for row, limit in enumerate([3, 3, 2]):
        assert_found(every_translation(model, row, Wants(limit, alpha)), found, row)


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5, -0.5])
@pytest.mark.parametrize("end_bias", [-3.0, 1.5])
def test_a_narrow_beam_equals_a_search_written_out_without_early_stop(
    table_model, beam_size, alpha, end_bias
):
    model = table_model(sentences=6, vocabulary_size=11, seed=2, end_bias=end_bias)
    limits = [8, 0, 5, 12, 1, 9]
    found = search(
        model, range(6), limits, beam_size=beam_size, num_translations=2, length_penalty=alpha
    )
    for row, limit in enumerate(limits):
        assert_found(narrow_beam(model, row, Wants(limit, alpha), beam_size), found, row)


def test_a_long_vocabulary_is_searched_like_a_short_one(table_model):
    model = table_model(sentences=2, vocabulary_size=2003, seed=3, end_bias=6.0)
    found = search(model, [0, 1], [6, 4], beam_size=3, num_translations=3)
    for row, limit in enumerate([6, 4]):
        assert_found(narrow_beam(model, row, Wants(limit), 3), found, row)


def test_sentences_get_in_a_batch_what_they_get_alone(table_model):
    model = table_model(sentences=5, vocabulary_size=9, seed=4, end_bias=1.0)
    limits = [10, 2, 0, 7, 4]
    options = dict(beam_size=4, num_translations=3, length_penalty=tf.fill([5], 0.6))
    batch = search(model, range(5), limits, **options)
    for row, limit in enumerate(limits):
        alone = search(model, [row], [limit], **options | dict(length_penalty=0.6))
        assert_same(alone, batch, 0, row)


def test_every_sentence_may_have_its_own_length_penalty(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=5)
    alphas = [0.0, 1.0, 3.0]
    found = search(model, [0, 0, 0], [6] * 3, beam_size=3, length_penalty=tf.constant(alphas))
    for row, alpha in enumerate(alphas):
        assert_found(narrow_beam(model, 0, Wants(6, alpha), 3), found, row)


def test_search_stops_when_no_open_hypothesis_can_win(table_model):
    model = table_model(sentences=4, vocabulary_size=9, seed=6, end_bias=4.0)
    found = search(model, range(4), [40] * 4, beam_size=4)
    assert 2 <= len(model.calls) < 10
    assert model.calls[0] == (4, 4)
    for row in range(4):
        assert_found(narrow_beam(model, row, Wants(40), 4), found, row)


@pytest.mark.parametrize(("alpha", "end_at_first"), [(1.0, 0.4), (0.0, 0.4), (-1.0, 0.45)])
def test_search_goes_on_while_a_longer_translation_may_still_win(alpha, end_at_first):
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


def test_the_graph_with_unknown_sizes_gives_what_eager_search_gives(table_model):
    model = table_model(sentences=3, vocabulary_size=9, seed=7, end_bias=1.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)] * 2)
    def translate(sentences, limits):
        return beam_search(
            model.step, model.state(sentences, 3), bos_ids=tf.fill(tf.shape(sentences), BOS_ID),
            max_lengths=limits, beam_size=3, num_translations=2,
        )  # fmt: skip

    found = translate(tf.range(3), tf.constant([7, 0, 4]))
    expected = search(model, range(3), [7, 0, 4], beam_size=3, num_translations=2)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    assert all(shape in {(None, 3), (3, 3), (2, 3), (1, 3)} for shape in model.calls)
    nothing = translate(tf.zeros([0], tf.int32), tf.zeros([0], tf.int32))
    assert [tuple(part.shape) for part in nothing] == [(0, 2, 1), (0, 2), (0, 2), (0, 2)]
    shortest = translate(tf.range(2), tf.constant([0, 0]))
    np.testing.assert_array_equal(shortest.ids[:, 0], [[EOS_ID], [EOS_ID]])


def test_the_search_compiles_with_xla_where_shapes_are_known(table_model):
    model = table_model(sentences=2, vocabulary_size=9, seed=8, end_bias=1.0)

    def step(ids, state):  # sees the last token only, and counts the steps in its state
        logits = tf.gather(tf.gather(model.table, state.context), ids, batch_dims=1)
        logits += 0.1 * state.recurrent_state[..., None] * tf.range(9, dtype=tf.float32)
        return logits, state._replace(recurrent_state=state.recurrent_state + 1)

    def translate(sentences, limits):
        return beam_search(
            step, DecodingState(context=sentences, recurrent_state=tf.zeros([2, 3])),
            bos_ids=tf.fill([2], BOS_ID), max_lengths=limits, beam_size=3, num_translations=2,
            max_length_bound=6,
        )  # fmt: skip

    arguments = tf.range(2), tf.constant([4, 9])
    expected = translate(*arguments)
    found = tf.function(translate, jit_compile=True)(*arguments)
    assert expected.ids.shape == (2, 2, 7)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


@pytest.mark.parametrize("vocabulary_size", [4, 5, 6])
def test_a_vocabulary_smaller_than_the_beam_fills_the_places_with_nothing(
    table_model, vocabulary_size
):
    model = table_model(sentences=2, vocabulary_size=vocabulary_size, seed=9)
    found = search(model, [0, 1], [2, 0], beam_size=20, num_translations=20)
    for row, limit in enumerate([2, 0]):
        assert_found(every_translation(model, row, Wants(limit)), found, row)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_logits_of_low_precision_are_scored_in_float32(table_model, dtype):
    model = table_model(sentences=2, vocabulary_size=9, seed=10)
    rounded = tf.cast(tf.cast(model.table, dtype), tf.float32).numpy()
    model.dtype = dtype
    found = search(model, [0, 1], [5, 5], beam_size=3)
    model.table = rounded
    assert found.scores.dtype == tf.float32
    for row in range(2):
        assert_found(narrow_beam(model, row, Wants(5), 3), found, row)


def test_scores_stay_finite_and_exact_with_huge_logits(table_model):
    model = table_model(sentences=2, vocabulary_size=9, seed=11)
    model.table = np.where(model.table > 0, 1e4, -1e4).astype(np.float32)
    model.table += np.random.default_rng(0).integers(0, 99, model.table.shape, endpoint=True)
    found = search(model, [0, 1], [5, 5], beam_size=4, num_translations=4)
    assert np.all(np.isfinite(found.scores))
    for row in range(2):
        best = narrow_beam(model, row, Wants(5), 4)[0]
        np.testing.assert_allclose(found.scores[row, 0], best[0], rtol=1e-5, atol=1e-5)


def test_scores_stay_finite_where_the_model_forbids_end():
    def step(ids, state):
        return tf.where(tf.range(6) == EOS_ID, -np.inf, tf.zeros([*ids.shape, 6])), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([BOS_ID]),
        max_lengths=tf.constant([3]), beam_size=3,
    )  # fmt: skip
    assert float(found.scores[0, 0]) == np.float32(-1e9)
    assert int(found.lengths[0, 0]) == 0


def test_equal_scores_go_to_the_lower_beam_and_the_lower_id():
    def step(ids, state):
        return tf.zeros([*ids.shape, 7]), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([BOS_ID]),
        max_lengths=tf.constant([2]), beam_size=2, num_translations=2, length_penalty=20.0,
    )  # fmt: skip
    # Open after one token: 1 and 4. Continuations of 1 come first: 1 1 and 1 4.
    np.testing.assert_array_equal(found.ids[0], [[1, 1, EOS_ID], [1, 4, EOS_ID]])


def test_pad_and_the_start_token_are_never_generated_however_probable(table_model):
    model = table_model(sentences=2, vocabulary_size=9, seed=12)
    model.table[:, :, NEVER] += 9.0
    found = search(model, [0, 1], [5, 5], beam_size=3, num_translations=3)
    for row in range(2):
        assert_found(narrow_beam(model, row, Wants(5), 3), found, row)


def test_each_sentence_starts_with_its_own_token_and_even_with_end():
    def step(ids, state):  # most probable: EOS after 4, else the last token plus 1
        return 9.0 * tf.one_hot(tf.where(ids == 4, EOS_ID, ids + 1), 9), state

    found = beam_search(
        step, DecodingState(), bos_ids=tf.constant([5, EOS_ID]),
        max_lengths=tf.constant([2, 2]), beam_size=2,
    )  # fmt: skip
    np.testing.assert_array_equal(found.ids[:, 0], [[6, 7, EOS_ID], [4, EOS_ID, PAD_ID]])


def test_known_sizes_of_the_cache_stay_known_inside_the_loop():
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


@pytest.mark.parametrize(("beam_size", "num_translations"), [(2, 3), (4, 0), (0, 1)])
def test_impossible_numbers_of_hypotheses_are_refused(table_model, beam_size, num_translations):
    model = table_model(sentences=1, vocabulary_size=9, seed=13)
    with pytest.raises(InputError, match=f"got {num_translations} with beam_size {beam_size}"):
        search(model, [0], [3], beam_size=beam_size, num_translations=num_translations)


def test_end_and_pad_must_differ(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=14)
    with pytest.raises(InputError, match="eos_id and pad_id must differ, both are 3"):
        search(model, [0], [3], beam_size=2, pad_id=3)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("end_bias", [-1.0, 1.5])
@pytest.mark.parametrize("num_translations", [1, 3])
def test_the_first_finished_hypotheses_end_a_search_where_they_are_to(
    table_model, alpha, end_bias, num_translations
):
    model = table_model(sentences=24, vocabulary_size=11, seed=12, end_bias=end_bias)
    limits = [8, 0, 5, 12, 1, 9] * 4
    options = dict(beam_size=3, num_translations=num_translations, length_penalty=alpha)
    found = search(model, range(24), limits, early_stop="first", **options)
    steps = len(model.calls)
    for row, limit in enumerate(limits):
        expected = narrow_beam(model, row, Wants(limit, alpha), 3, early_stop="first")
        assert_found(expected, found, row)
    model.calls.clear()
    exact = search(model, range(24), limits, **options)
    if num_translations == 3 and alpha == 2.0 and end_bias > 0:  # short ones come first, and lose
        assert steps < len(model.calls)
        assert np.any(exact.scores > found.scores)


def test_an_unknown_early_stop_is_refused(table_model):
    model = table_model(sentences=1, vocabulary_size=9, seed=1)
    with pytest.raises(InputError, match="early_stop must be one of exact, first, got 'last'"):
        search(model, [0], [3], beam_size=2, early_stop="last")
