"""Shares of several corpora in an epoch."""

import numpy as np
import pytest

from keras_transformer.data.mixing import draw_pairs, epoch_quotas, share_out
from keras_transformer.errors import InputError


def test_shares_are_rounded_by_the_largest_remainder():
    assert share_out(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert share_out(10, np.array([0.18, 0.35, 0.47])).tolist() == [2, 3, 5]
    assert share_out(7, np.array([3, 0, 4])).tolist() == [3, 0, 4]


def test_nothing_is_rounded_away_altogether():
    assert share_out(10, np.array([1, 1000])).tolist() == [1, 9]
    assert share_out(2, np.array([1, 1, 1, 0])).tolist() == [1, 1, 1, 0]


def test_a_corpus_without_pairs_has_no_shares():
    assert share_out(0, np.array([0, 0])).tolist() == [0, 0]


def test_quotas_follow_the_weights_and_add_up_to_all_pairs():
    sizes = np.array([900, 100])
    assert epoch_quotas(sizes, None).tolist() == [900, 100]
    assert epoch_quotas(sizes, [1, 1]).tolist() == [500, 500]
    assert epoch_quotas(sizes, [0.2, 0.1]).tolist() == [667, 333]


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], [1, 0], [1, -1], [1, float("nan")], []])
def test_there_must_be_one_weight_above_zero_for_each_corpus(weights):
    with pytest.raises(InputError, match=r"one positive number per corpus \(2 here"):
        epoch_quotas(np.array([3, 4]), weights)


def test_a_corpus_without_pairs_cannot_be_mixed_in():
    with pytest.raises(InputError, match="corpus 2 of 3 has no pairs"):
        epoch_quotas(np.array([3, 0, 4]), [1, 1, 1])
    assert epoch_quotas(np.array([3, 0, 4]), None).tolist() == [3, 0, 4]


@pytest.mark.parametrize("count", [1, 3, 7, 10, 25])
def test_epochs_read_on_in_one_stream_of_shuffled_passes(count):
    pairs = np.arange(100, 110)
    drawn = np.concatenate(
        [draw_pairs(pairs, count, epoch=epoch, seed=1, stratum=(0, 2)) for epoch in range(20)]
    )
    passes = [drawn[start : start + 10].tolist() for start in range(0, len(drawn) - 9, 10)]
    assert all(sorted(one) == pairs.tolist() for one in passes)
    assert len({tuple(one) for one in passes}) == len(passes)


def test_the_order_follows_from_seed_and_stratum():
    pairs = np.arange(50)
    first = draw_pairs(pairs, 50, epoch=3, seed=1, stratum=(0, 2)).tolist()
    assert draw_pairs(pairs, 50, epoch=3, seed=1, stratum=(0, 2)).tolist() == first
    assert draw_pairs(pairs, 50, epoch=3, seed=2, stratum=(0, 2)).tolist() != first
    assert draw_pairs(pairs, 50, epoch=3, seed=1, stratum=(1, 2)).tolist() != first


def test_a_far_epoch_takes_no_longer():
    assert len(draw_pairs(np.arange(10), 4, epoch=10**15, seed=0, stratum=(0, 0))) == 4
