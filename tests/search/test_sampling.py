"""Sampling against the probabilities that are sampled from; all seeds are fixed."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from plain_search import (
    Request,
    arguments,
    assert_found,
    assert_same,
    complete,
    greedy,
    next_log_probs,
    sampled,
    tokens_of,
)
from table_model import TableModel

from keras_transformer.decoding import IMPOSSIBLE
from keras_transformer.search import sample, sentence_seeds
from keras_transformer.search.sampling import draw_tokens, keep_most_probable

INF = np.inf
SEEDS = 2000


def search(model, requests, *, rows=None, num_translations=1, **options):
    rows = list(range(len(requests))) if rows is None else rows
    options |= arguments(requests) | dict(num_translations=num_translations)
    return sample(model.step, model.state(rows, num_translations), **options)


def assert_distributed(counts, probabilities):
    """Fails where Pearson's statistic is five standard deviations above its mean, or more."""
    counts, probabilities = np.ravel(counts), np.ravel(probabilities)
    assert counts[probabilities == 0].sum() == 0
    expected = counts.sum() * probabilities / probabilities.sum()
    rare = expected < 5  # too rare for the statistic, these count together
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(counts[~rare], counts[rare].sum())
    statistic = np.sum((observed - expected) ** 2 / np.maximum(expected, 1))
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, {}),
        (dict(temperature=0.5), {}),
        (dict(temperature=1.5, top_k=3, top_p=0.8), {}),
        ({}, dict(min_length=1, repetition_penalty=1.5, banned=(4,))),
        (dict(top_k=2), dict(prefix=(5,), no_repeat_ngram=1)),
    ],
    ids=str,
)
def test_translations_follow_their_probabilities(options, rule):
    model, request = TableModel(sentences=1, vocabulary_size=6, seed=1), Request(2, **rule)
    requests = [request] * SEEDS
    found = search(model, requests, rows=[0] * SEEDS, seed=tf.range(SEEDS), **options)
    counts = collections.Counter(tokens_of(found, row, 0) for row in range(SEEDS))
    probabilities = sampled(model, 0, request, **options)
    assert set(counts) <= set(probabilities)
    assert sum(probabilities.values()) == pytest.approx(1)
    assert_distributed([counts[each] for each in probabilities], [*probabilities.values()])


@pytest.mark.parametrize(
    "rule",
    [{}, dict(beta=0.5), dict(repetition_penalty=1.6), dict(prefix=(6, 5), min_length=4)],
    ids=str,
)
def test_scores_are_those_of_the_model_best_first(rule):
    model = TableModel(sentences=3, vocabulary_size=9, seed=3, source_length=5)
    requests = [Request(limit, **rule) for limit in (7, 0, 4)]
    found = search(model, requests, num_translations=5, temperature=1.7, top_k=4, top_p=0.9, seed=3)
    for row, each in enumerate(requests):
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


def test_a_seed_gives_the_same_samples_in_any_batch():
    model = TableModel(sentences=4, vocabulary_size=9, seed=4, end_bias=1.0)
    requests = [Request(limit) for limit in (9, 2, 0, 12)]
    options = dict(
        temperature=[1.0, 0.5, 1.0, 3.0], top_k=[0, 3, 1, 5], top_p=[1.0, 0.9, 1.0, 0.8],
        seed=[7, 0, -5, 2**40],
    )  # fmt: skip
    together = search(model, requests, num_translations=3, **options)
    for row, each in enumerate(requests):
        own = {name: values[row] for name, values in options.items()}
        alone = search(model, [each], rows=[row], num_translations=3, **own)
        assert_same(alone, together, 0, row)
    twice = search(model, [requests[0]] * 3, rows=[0] * 3, num_translations=3, seed=[7, 7, 8])
    assert_same(twice, twice, 0, 1)
    assert not np.array_equal(twice.ids[0], twice.ids[2])


@pytest.mark.parametrize("options", [dict(temperature=1e-6), dict(top_k=1), dict(top_p=1e-6)])
def test_low_temperature_and_one_candidate_equal_greedy(options):
    model = TableModel(sentences=4, vocabulary_size=9, seed=5, end_bias=1.0)
    requests = [Request(limit) for limit in (9, 2, 0, 12)]
    found = search(model, requests, num_translations=2, **options)
    for row, each in enumerate(requests):
        assert_found([greedy(model, row, each)] * 2, found, row)


def test_sample_without_an_allowed_token_is_no_translation():
    model = TableModel(sentences=1, vocabulary_size=6, seed=6)
    requests = [Request(5, min_length=2, banned=(1, 4, 5)), Request(5)]
    found = search(model, requests, rows=[0, 0], num_translations=2)
    assert_found([], found, 0)
    assert np.all(found.lengths[1] > 0)


# Filters


FEW = [0.1, 0.5, 0.1, 0.25, 0.05]
HALVES = [0.0, 0.5, 0.0, 0.5]  # what is forbidden stays forbidden


@pytest.mark.parametrize(
    ("probabilities", "top_k", "top_p", "expected"),
    [
        (FEW, 3, 1.0, [0, 1, 3]),  # 0 and 2 are equal: the lower id stays
        (FEW, 99, 1.0, [0, 1, 2, 3, 4]),
        (FEW, 0, 0.49, [1]),
        (FEW, 0, 0.51, [1, 3]),  # the token that reaches it stays
        (FEW, 0, 0.0, [1]),
        (FEW, 2, 0.6, [1]),  # 0.5 of the 0.75 that two tokens have
        (FEW, 2, 0.7, [1, 3]),
        ([0.25, 0.5, 0.125, 0.125], 0, 0.75, [0, 1]),
        ([1.0] + [1e-12] * 20, 15, 1.0, [*range(15)]),  # no loss to rounding
        (HALVES, 0, 0.6, [1, 3]),
        (HALVES, 3, 1.0, [1, 3]),
        ([0.0, 0.0], 1, 0.5, []),
    ],
)
def test_top_k_and_top_p_keep_the_most_probable_tokens(probabilities, top_k, top_p, expected):
    logits = tf.math.log(tf.constant([[probabilities]], tf.float32))
    found = keep_most_probable(logits, tf.constant([top_k]), tf.constant([top_p])).numpy()
    assert np.flatnonzero(found[0, 0] > IMPOSSIBLE).tolist() == expected
    np.testing.assert_array_equal(found[0, 0, expected], logits.numpy()[0, 0, expected])


@pytest.mark.parametrize("vocabulary", [9, 600])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_filters_equal_plain_loop(vocabulary, scale):
    # The flat distributions need more candidates than are looked at first.
    logits = np.random.default_rng(1).standard_normal((6, 2, vocabulary)).astype("f")
    logits = np.round(logits * scale, 1)  # with ties
    top_k = [0, 5, 300, 0, 500, 0]
    top_p = [0.9, 1.0, 0.973, 0.3, 0.512, 1.0]
    expected = np.full_like(logits, IMPOSSIBLE)
    for row, beam in np.ndindex(6, 2):
        values = logits[row, beam].astype(np.float64)
        best = sorted(range(vocabulary), key=lambda i, values=values: (-values[i], i))
        best = best[: top_k[row] or vocabulary]
        total, reached = np.exp(values[best]).sum(), 0.0
        for token in best:
            expected[row, beam, token] = logits[row, beam, token]
            reached += np.exp(values[token])
            if top_p[row] < 1 and reached >= top_p[row] * total:
                break
    found = keep_most_probable(
        tf.constant(logits), tf.constant(top_k), tf.constant(top_p, tf.float32)
    )
    np.testing.assert_array_equal(found, expected)


# Draws


@pytest.mark.parametrize("other", ["time", "hypothesis", "seed"])
def test_draws_of_times_hypotheses_seeds_are_independent(other):
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    logits = tf.broadcast_to(tf.math.log(tf.constant(probabilities, tf.float32)), [20_000, 2, 4])
    first, later = (draw_tokens(logits, tf.range(20_000), time).numpy() for time in (0, 1))
    second = {
        "time": later[:, 0],
        "hypothesis": first[:, 1],
        "seed": np.roll(first[:, 0], 1),
    }[other]
    pairs = np.bincount(4 * first[:, 0] + second, minlength=16)
    assert_distributed(pairs, np.outer(probabilities, probabilities).ravel())


def test_draws_of_rare_tokens_follow_their_probabilities():
    # Half of the probability lies on token 0; a float32 running sum would blur the others.
    probabilities = np.full(37_000, 0.5 / 36_999)
    probabilities[0] = 0.5
    logits = tf.constant(np.log(np.broadcast_to(probabilities, [1, 60, 37_000])), tf.float32)
    found = np.ravel([draw_tokens(logits, tf.constant([seed]), 0) for seed in range(20)])
    bins = np.bincount(found // 1850, minlength=20)
    assert_distributed(bins, probabilities.reshape(20, 1850).sum(axis=1))


@pytest.mark.parametrize("shift", [1e30, -1e30, 80.0])
def test_draws_take_huge_logits_and_none_allowed(shift):
    logits = tf.constant([[[shift, -INF, shift, -INF]]])
    found = [int(draw_tokens(logits, tf.constant([seed]), 0)[0, 0]) for seed in range(30)]
    assert set(found) == {0, 2}
    nothing_allowed = tf.fill([1, 1, 30], -INF)
    assert int(draw_tokens(nothing_allowed, tf.constant([3]), 0)[0, 0]) == 0


SOURCE = np.array([[5, 6, 3, 0], [6, 5, 3, 0], [5, 3, 0, 0], [5, 6, 3, 0]], "int32")


def test_sentence_seeds_ignore_neighbours_and_padding():
    seeds = sentence_seeds(7, SOURCE).numpy()
    assert seeds.dtype == np.int64
    assert len(set(seeds)) == 3
    assert seeds[0] == seeds[3]
    assert not set(seeds) & set(sentence_seeds(8, SOURCE).numpy())
    for row, ids in enumerate(SOURCE):
        (alone,) = sentence_seeds(7, ids[None, : np.count_nonzero(ids)]).numpy()
        assert alone == seeds[row]
    own = sentence_seeds([7, 8, 7, 8], SOURCE).numpy()
    assert own[2] == seeds[2]
    assert own[3] != own[0] == seeds[0]
