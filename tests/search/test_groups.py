"""Diverse groups of a beam against groups written out (Vijayakumar et al. 2018)."""

import pytest
from plain_search import (
    Wants,
    arguments,
    assert_found,
    assert_same,
    narrow_beam,
    tokens_of,
)

from keras_transformer.errors import InputError
from keras_transformer.search import beam_search


def search(model, wants, beam_size, beam_groups, num_translations=None, **options):
    return beam_search(
        model.step, model.state(range(len(wants)), beam_size), beam_size=beam_size,
        beam_groups=beam_groups, num_translations=num_translations or beam_size,
        diversity_penalty=[each.diversity for each in wants], **arguments(wants), **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("beam_size", "beam_groups"), [(4, 2), (6, 3), (6, 2), (3, 3), (2, 2)])
@pytest.mark.parametrize("end_bias", [-2.0, 1.0, 3.0])
def test_groups_find_what_groups_written_out_without_early_stop_find(
    table_model, beam_size, beam_groups, end_bias
):
    model = table_model(sentences=24, vocabulary_size=13, seed=1, end_bias=end_bias)
    asked = zip([9, 0, 8, 7, 1, 5] * 4, [0.5, 1.0, 0.1, 0.5, 2.0, 9.0] * 4, strict=True)
    wants = [Wants(limit, diversity=penalty) for limit, penalty in asked]
    found = search(model, wants, beam_size, beam_groups)
    share = beam_size // beam_groups
    for row, each in enumerate(wants):
        expected = narrow_beam(model, row, each, beam_size, groups=beam_groups, share=share)
        assert_found(expected, found, row)


@pytest.mark.parametrize("num_translations", [1, 2, 3, 4, 5])
def test_each_group_gives_its_share_of_the_translations_that_are_wanted(
    table_model, num_translations
):
    model = table_model(sentences=3, vocabulary_size=13, seed=2, end_bias=1.0)
    wants = [Wants(8, diversity=0.7)] * 3
    found = search(model, wants, 6, 3, num_translations)
    share = -(-num_translations // 3)
    for row, each in enumerate(wants):
        expected = narrow_beam(model, row, each, 6, groups=3, share=share)[:num_translations]
        assert_found(expected, found, row)


@pytest.mark.parametrize(
    "rule",
    [
        dict(min_length=3, repetition_penalty=1.4),
        dict(required=((5, 6), (4,)), beta=0.4),
        dict(banned=((4,), (5, 6)), no_repeat_ngram=2, prefix=(7,)),
        dict(alpha=-2.0, beta=0.4),
        dict(alpha=8.0),
    ],
    ids=str,
)
def test_groups_follow_the_rules(table_model, rule):
    model = table_model(sentences=4, vocabulary_size=8, seed=3, end_bias=1.0, source_length=4)
    wants = [Wants(limit, diversity=0.6, **rule) for limit in (8, 3, 10, 6)]
    found = search(model, wants, 4, 2)
    for row, each in enumerate(wants):
        expected = narrow_beam(model, row, each, 4, groups=2, share=2)
        assert_found(expected, found, row)


def test_one_group_is_the_ordinary_beam_bit_for_bit(table_model):
    model = table_model(sentences=3, vocabulary_size=13, seed=4)
    wants = [Wants(8, diversity=5.0)] * 3
    ordinary = beam_search(
        model.step, model.state(range(3), 4), beam_size=4, num_translations=4, **arguments(wants)
    )
    found = search(model, wants, 4, 1)
    for row in range(3):
        assert_same(found, ordinary, row, row, rtol=0)


def test_without_a_penalty_every_group_is_the_same_ordinary_beam(table_model):
    model = table_model(sentences=2, vocabulary_size=13, seed=5)
    wants = [Wants(8)] * 2
    found = search(model, wants, 6, 2)
    for row, each in enumerate(wants):
        ordinary = narrow_beam(model, row, each, 3)[:3]
        assert_found([each for each in ordinary for _ in range(2)], found, row)


def test_a_penalty_makes_translations_differ_early(table_model):
    model = table_model(sentences=4, vocabulary_size=13, seed=6, end_bias=-2.0)
    plain = search(model, [Wants(8)] * 4, 3, 3)
    diverse = search(model, [Wants(8, diversity=9.0)] * 4, 3, 3)
    for row in range(4):
        assert len({tokens_of(plain, row, place) for place in range(3)}) == 1
        assert len({tokens_of(diverse, row, place)[0] for place in range(3)}) == 3


@pytest.mark.parametrize("beam_groups", [0, 3, 8])
def test_groups_of_unequal_size_are_refused(table_model, beam_groups):
    model = table_model(sentences=1, vocabulary_size=9, seed=7)
    with pytest.raises(InputError, match=f"got {beam_groups} with beam_size 4"):
        search(model, [Wants(3)], 4, beam_groups)


def test_with_the_first_finished_hypotheses_groups_stop_together(table_model):
    model = table_model(sentences=24, vocabulary_size=13, seed=6, end_bias=1.0)
    wants = [Wants(limit, diversity=0.5) for limit in [9, 0, 8, 7, 1, 5] * 4]
    found = search(model, wants, 6, 2, 4, early_stop="first")
    for row, each in enumerate(wants):
        expected = narrow_beam(model, row, each, 6, groups=2, share=99, early_stop="first")
        by_group = narrow_beam(model, row, each, 6, groups=2, share=2, early_stop="first")
        assert set(by_group) <= set(expected)
        assert_found(by_group, found, row)
