"""Segmentations drawn at random."""

import concurrent.futures
import functools
import itertools
import operator

import pytest

from keras_transformer.config import UNK_ID
from keras_transformer.text import SubwordSampler, learn_vocabulary

SENTENCES = [
    f"{who} {does} {what} {where} ."
    for who in ("the old captain", "a young gardener", "somebody")
    for does in ("remembers", "photographs", "understands")
    for what in ("three mountains", "his grandmother", "everything")
    for where in ("in the afternoon", "beside the river")
]


@functools.cache
def a_vocabulary(kind):
    return learn_vocabulary(SENTENCES, size=150 if kind == "bpe" else 45, kind=kind)


@pytest.fixture(params=["bpe", "unigram"])
def vocabulary(request):
    return a_vocabulary(request.param)


@pytest.fixture
def sampler(vocabulary):
    return SubwordSampler(vocabulary, alpha=0.2)


def test_sampling_changes_segmentation_not_text(vocabulary, sampler):
    ids = vocabulary.encode(SENTENCES)
    sampled = sampler(ids, seed=1)
    assert vocabulary.decode(sampled) == SENTENCES
    assert sum(new != old for new, old in zip(sampled, ids, strict=True)) > len(ids) / 2


def test_segmentation_follows_from_the_seed_in_any_thread(vocabulary, sampler):
    ids = vocabulary.encode(SENTENCES)
    alone = [sampler(ids, seed=seed) for seed in (*range(20), 2**31 - 1)]
    assert all(one != other for one, other in itertools.combinations(alone, 2))
    assert SubwordSampler(vocabulary, alpha=0.2)(ids, seed=1) == alone[1]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda seed: sampler(ids, seed=seed), range(20))) == alone[:20]


@pytest.mark.parametrize(
    ("kind", "little", "much"),
    [("bpe", 0.01, 0.5), ("unigram", 0.99, 0.01)],  # share of skipped merges; flatness
)
def test_alpha_controls_variation(kind, little, much):
    ids = a_vocabulary(kind).encode(SENTENCES)

    def count_changes(alpha):
        sampler = SubwordSampler(a_vocabulary(kind), alpha=alpha)
        return sum(sum(map(operator.ne, sampler(ids, seed=seed), ids)) for seed in range(10))

    assert count_changes(little) < count_changes(much)


def test_blank_sentence_and_one_with_an_unknown_token_are_unchanged(vocabulary, sampler):
    known, unknown = vocabulary.encode(["everything", "everything \u4e2d remembers"])
    assert UNK_ID in unknown
    blank = [next(id_ for id_ in range(vocabulary.size) if vocabulary.pieces([id_]) == ["\u2581"])]
    for seed in range(20):
        assert sampler([known, unknown, blank, []], seed=seed)[1:] == [unknown, blank, []]
