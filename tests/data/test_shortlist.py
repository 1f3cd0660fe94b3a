"""What source tokens become by IBM model 1, and the shortlist that is made of it."""

import collections

import numpy as np
import pytest

from keras_transformer.data import Shortlist, TokenizedCorpus
from keras_transformer.data import shortlist as module
from keras_transformer.data.shortlist import lexical_probabilities
from keras_transformer.errors import InputError


def probabilities(corpus, iterations):
    parts = lexical_probabilities(corpus, 50, iterations)
    return {(source, target): value for source, target, value in zip(*parts, strict=True)}


def test_two_iterations_worked_by_hand():
    # 0 is the empty token. At first 7 and 8 come from it by half, and by half from 5, or 6. So 0
    # has 0.5 of 7 and 1 of 8: 1/3 and 2/3. Then 5 makes 7 by 1/2 : (1/2 + 1/3) = 3/5 and 8 by 1/2 :
    # (1/2 + 2/3) = 3/7, of which 7 is 7/12.
    found = probabilities(TokenizedCorpus.from_ids([[5], [6]], [[7, 8], [8]]), 2)
    expected = {(0, 7): 7 / 24, (0, 8): 17 / 24, (5, 7): 7 / 12, (5, 8): 5 / 12, (6, 8): 1.0}
    assert found == pytest.approx(expected)


def test_probabilities_match_plain_loops():
    random = np.random.default_rng(0)
    pairs = [
        [random.integers(4, 9, random.integers(1, 5)).tolist() for _ in range(2)] for _ in range(30)
    ]
    table = collections.defaultdict(lambda: 1.0)
    for _ in range(4):
        counts = collections.Counter()
        for source, target in pairs:
            for token in target:
                total = sum(table[each, token] for each in [0, *source])
                for each in [0, *source]:
                    counts[each, token] += table[each, token] / total
        totals = collections.Counter()
        for (source, _), count in counts.items():
            totals[source] += count
        table = {pair: count / totals[pair[0]] for pair, count in counts.items()}
    corpus = TokenizedCorpus.from_ids(*zip(*pairs, strict=True))
    assert probabilities(corpus, 4) == pytest.approx(table)


def small_corpus():
    return TokenizedCorpus.from_ids([[5, 6], [5], [6], [6, 9]], [[11, 12], [11], [12], [12]])


def test_candidates_are_ordered_by_probability():
    shortlist = Shortlist.learn(small_corpus(), 10, 14).first(2)
    assert shortlist.common.tolist() == [0, 1, 2, 3, 12, 11]  # by frequency
    assert shortlist.candidates.shape == (10, 2)
    assert shortlist.candidates[[5, 6, 9, 4]].tolist() == [[11, 12], [12, 11], [12, 0], [0, 0]]


def test_large_corpus_is_sampled_evenly(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ENTRIES", 7)  # of 13: each second pair
    sources, targets, _ = lexical_probabilities(small_corpus(), 14)
    assert set(zip(sources.tolist(), targets.tolist(), strict=True)) == {
        (0, 11), (0, 12), (5, 11), (5, 12), (6, 11), (6, 12)
    }  # fmt: skip


def test_shortlist_file_round_trip_and_damage(tmp_path):
    path = tmp_path / "shortlist.npz"
    shortlist = Shortlist.learn(small_corpus(), 10, 14)
    shortlist.save(path)
    loaded = Shortlist.load(path)
    np.testing.assert_array_equal(loaded.common, shortlist.common)
    np.testing.assert_array_equal(loaded.candidates, shortlist.candidates)
    whole = path.read_bytes()
    for damaged in (b"", whole[:99], whole[:200] + bytes(40) + whole[240:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="remove it: it will be learned again"):
            Shortlist.load(path)


@pytest.mark.parametrize("count", [0, 101])
def test_impossible_number_of_candidates_is_an_error(count):
    with pytest.raises(InputError, match=f"from 1 to 100 candidates a token, got {count}"):
        Shortlist.learn(small_corpus(), 10, 14).first(count)
