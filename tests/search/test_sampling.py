"""Sampling: whole translations against the probabilities of a tiny model; all seeds are fixed."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    Wants,
    arguments,
    assert_found,
    assert_same,
    complete,
    greedy,
    next_log_probs,
    sampled,
    tokens_of,
)

from keras_transformer.errors import InputError
from keras_transformer.search import sample

SEEDS = 2000


def search(model, wants, *, rows=None, num_translations=1, **options):
    rows = list(range(len(wants))) if rows is None else rows
    options |= arguments(wants) | dict(num_translations=num_translations)
    return sample(model.step, model.state(rows, num_translations), **options)


def many(model, wants, num_translations=1, **options):
    """Returns samples of one sentence with 2,000 seeds: a list of N translations for each."""
    rows, seed = [0] * SEEDS, tf.range(SEEDS)
    found = search(
        model, [wants] * SEEDS, rows=rows, num_translations=num_translations, seed=seed, **options
    )
    ids, lengths = found.ids.numpy(), found.lengths.numpy()
    return [
        tuple(tuple(ids[row, place, : lengths[row, place]]) for place in range(num_translations))
        for row in range(SEEDS)
    ]


def assert_distributed(found, probabilities):
    """Fails where Pearson's statistic is five standard deviations above its mean, or more."""
    counts = collections.Counter(found)
    assert set(counts) <= set(probabilities)
    assert sum(probabilities.values()) == pytest.approx(1)
    expected = np.array([len(found) * each for each in probabilities.values()])
    observed = np.array([counts[each] for each in probabilities])
    # What is too rare for the statistic counts together.
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    statistic = np.sum((observed - expected) ** 2 / np.maximum(expected, 1))
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, {}),
        (dict(temperature=0.5), {}),
        (dict(temperature=2.5), {}),
        (dict(top_k=2), {}),
        (dict(top_p=0.7), {}),
        (dict(temperature=1.5, top_k=3, top_p=0.8), {}),
        ({}, dict(min_length=1, repetition_penalty=1.5, banned=((4, 4),))),
        (dict(top_k=2), dict(prefix=(5,), no_repeat_ngram=1)),
        ({}, dict(required=((4,),))),
    ],
    ids=str,
)
def test_translations_come_as_often_as_they_are_probable(table_model, options, rule):
    model = table_model(sentences=1, vocabulary_size=6, seed=1)
    wants = Wants(2, **rule)
    found = [tokens for (tokens,) in many(model, wants, **options)]
    assert_distributed(found, sampled(model, 0, wants, **options))


def test_samples_of_a_sentence_are_independent(table_model):
    model = table_model(sentences=1, vocabulary_size=6, seed=2)
    wants = Wants(1)
    single = sampled(model, 0, wants)
    pairs = {
        tuple(sorted([one, other])): p * q * (1 if one == other else 2)
        for one, p in single.items()
        for other, q in single.items()
    }
    found = [tuple(sorted(pair)) for pair in many(model, wants, num_translations=2)]
    assert_distributed(found, pairs)


@pytest.mark.parametrize(
    "rule",
    [{}, dict(beta=0.5), dict(repetition_penalty=1.6), dict(prefix=(6, 5), min_length=4)],
    ids=str,
)
def test_scores_are_those_of_the_model_and_the_best_comes_first(table_model, rule):
    model = table_model(sentences=3, vocabulary_size=9, seed=3, source_length=5)
    wants = [Wants(limit, **rule) for limit in (7, 0, 4)]
    found = search(model, wants, num_translations=5, temperature=1.7, top_k=4, top_p=0.9, seed=3)
    for row, each in enumerate(wants):
        translations = []
        for place in range(5):
            tokens = tokens_of(found, row, place)
            log_prob = sum(
                next_log_probs(model, row, tokens[:length], each)[token]
                for length, token in enumerate(tokens)
            )
            translations.append(complete(model, row, tokens, log_prob, each))
        assert_found(translations, found, row)
        assert np.all(np.diff(found.scores[row]) <= 0)
        tokens_counts = found.lengths[row].numpy() - 1
        assert np.all(tokens_counts <= each.limit)
        assert np.all(tokens_counts >= min(each.min_length, each.limit))


def test_a_seed_gives_the_same_samples_in_any_batch(table_model):
    model = table_model(sentences=4, vocabulary_size=9, seed=4, end_bias=1.0)
    wants = [Wants(limit) for limit in (9, 2, 0, 12)]
    options = dict(
        temperature=[1.0, 0.5, 1.0, 3.0], top_k=[0, 3, 1, 5], top_p=[1.0, 0.9, 1.0, 0.8],
        seed=[7, 0, -5, 2**40],
    )  # fmt: skip
    together = search(model, wants, num_translations=3, **options)
    for row, each in enumerate(wants):
        own = {name: values[row] for name, values in options.items()}
        alone = search(model, [each], rows=[row], num_translations=3, **own)
        assert_same(alone, together, 0, row)
    twice = search(model, [wants[0]] * 3, rows=[0] * 3, num_translations=3, seed=[7, 7, 8])
    assert_same(twice, twice, 0, 1)
    assert not np.array_equal(twice.ids[0], twice.ids[2])


@pytest.mark.parametrize("options", [dict(temperature=1e-6), dict(top_k=1), dict(top_p=1e-6)])
def test_almost_no_temperature_and_one_candidate_are_greedy_search(table_model, options):
    model = table_model(sentences=4, vocabulary_size=9, seed=5, end_bias=1.0)
    wants = [Wants(limit) for limit in (9, 2, 0, 12)]
    found = search(model, wants, num_translations=2, **options)
    for row, each in enumerate(wants):
        assert_found([greedy(model, row, each)] * 2, found, row)


def test_a_sample_to_which_the_rules_leave_no_token_is_no_translation(table_model):
    model = table_model(sentences=1, vocabulary_size=6, seed=6)
    wants = [Wants(5, min_length=2, banned=((1,), (4,), (5,))), Wants(5)]
    found = search(model, wants, rows=[0, 0], num_translations=2)
    assert_found([], found, 0)
    assert np.all(found.lengths[1] > 0)


def test_no_samples_are_refused(table_model):
    model = table_model(sentences=1, vocabulary_size=6, seed=7)
    with pytest.raises(InputError, match="num_translations must be at least 1, got 0"):
        search(model, [Wants(3)], num_translations=0)
