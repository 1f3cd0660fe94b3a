"""Large corpora: planned a window at a time, for which a small one stands in."""

import itertools

import numpy as np
import pytest

from keras_transformer.data import windows
from keras_transformer.data.buckets import choose_buckets
from keras_transformer.data.epoch_plan import plan_epoch
from keras_transformer.data.length_clusters import length_histogram

SIZES = (7000, 3000)
WINDOW = 2048  # pairs, so 10,000 are five windows


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(windows, "WINDOW_PAIRS", WINDOW)


@pytest.fixture(scope="module")
def lengths():
    random = np.random.default_rng(5)
    source = random.integers(2, 40, sum(SIZES))
    return source, np.maximum(2, source + random.integers(-5, 6, sum(SIZES)))


@pytest.fixture
def offsets():
    return np.cumsum([0, *SIZES])


@pytest.fixture
def bucketing(lengths, offsets):
    return choose_buckets(*lengths, batch_tokens=512, part_offsets=offsets)


def order(planned):
    return np.concatenate([batch.pairs for batch in planned])


def test_windows_partition_each_corpus_evenly(offsets):
    assert windows.count_windows(offsets) == 5
    for part, size in enumerate(SIZES):
        found = [windows.pieces_of(window, part, offsets) for window in range(5)]
        pairs = [sum(piece.stop - piece.start for piece in pieces) for pieces in found]
        assert max(pairs) - min(pairs) <= 16
        everything = np.concatenate([np.r_[tuple(pieces)] for pieces in found])
        assert sorted(everything.tolist()) == list(range(offsets[part], offsets[part] + size))


def test_a_window_is_spread_over_the_whole_corpus(offsets):
    pieces = windows.pieces_of(3, 0, offsets)
    assert len(pieces) == 16
    starts = [piece.start for piece in pieces]
    assert np.diff(starts).max() < 1.1 * SIZES[0] / 16


def test_the_lengths_of_a_slice_come_from_offsets():
    lengths = windows.SentenceLengths(np.array([0, 3, 3, 7]), extra=1)
    assert len(lengths) == 3
    assert lengths[slice(None)].tolist() == [4, 1, 5]
    assert lengths[1:3].tolist() == [1, 5]
    assert lengths[2:2].tolist() == []


def test_the_histogram_counts_every_pair_of_each_window_and_corpus(lengths, offsets):
    histogram = length_histogram(*lengths, offsets)
    assert histogram.counts.shape == (5, 2, len(histogram.keys))
    assert histogram.counts.sum((0, 2)).tolist() == list(SIZES)
    assert histogram.tokens.tolist() == [
        sum(side[first:last].sum() for side in lengths)
        for first, last in itertools.pairwise(offsets)
    ]
    bins = histogram.bins_of(*lengths)
    assert (np.stack(lengths, 1) <= histogram.corners[bins]).all()
    assert np.bincount(bins).tolist() == histogram.counts.sum((0, 1)).tolist()


def test_every_pair_occurs_once_an_epoch_and_fits_its_batch(bucketing, lengths):
    assert bucketing.real_share > 0.9
    for seed in (None, 0, 1):
        planned = list(plan_epoch(bucketing, epoch=2, seed=seed))
        assert len(planned) == sum(bucketing.batches)
        assert sorted(order(planned).tolist()) == list(range(sum(SIZES)))
        for bucket, pairs in planned:
            assert 0 < len(pairs) <= bucket.rows
            assert lengths[0][pairs].max() <= bucket.source_length
            assert lengths[1][pairs].max() <= bucket.target_length


def test_epochs_differ_and_repeat(bucketing):
    first = order(plan_epoch(bucketing, epoch=1, seed=4)).tolist()
    assert first == order(plan_epoch(bucketing, epoch=1, seed=4)).tolist()
    assert first != order(plan_epoch(bucketing, epoch=2, seed=4)).tolist()
    assert first != order(plan_epoch(bucketing, epoch=1, seed=5)).tolist()


def test_windows_come_in_another_order_in_each_epoch(bucketing):
    """The first one always has a batch of the largest shape."""
    most = max(bucket.memory for bucket in bucketing.buckets)
    orders = set()
    for epoch in range(6):
        planned = list(plan_epoch(bucketing, epoch=epoch, seed=1))
        assert planned[0].bucket.memory == most
        orders.add(tuple(np.argsort([batch.pairs.min() for batch in planned[:3]])))
    assert len(orders) > 1


@pytest.mark.parametrize("place", [0, 1, 300, -1])
def test_a_place_is_found_without_planning_what_precedes_it(bucketing, monkeypatch, place):
    whole = list(plan_epoch(bucketing, epoch=3, seed=1))
    place %= len(whole)
    looked_at, look = [], type(bucketing).buckets_of

    def counted(bucketing, pairs):
        looked_at.append(pairs)
        return look(bucketing, pairs)

    monkeypatch.setattr(type(bucketing), "buckets_of", counted)
    first = next(plan_epoch(bucketing, epoch=3, seed=1, first_batch=place))
    assert first.pairs.tolist() == whole[place].pairs.tolist()
    assert len(looked_at) == 2 * 16  # the pieces of one window
    assert order(plan_epoch(bucketing, epoch=3, seed=1, first_batch=place)).tolist() == (
        order(whole[place:]).tolist()
    )


def test_corpora_are_mixed_by_their_weights_in_every_window(lengths, offsets):
    bucketing = choose_buckets(*lengths, batch_tokens=512, part_offsets=offsets, mix_weights=[1, 1])
    seen = np.zeros(sum(SIZES), int)
    for epoch in range(14):
        planned = list(plan_epoch(bucketing, epoch=epoch, seed=1))
        assert len(planned) == sum(bucketing.batches)
        pairs = order(planned)
        assert abs(np.count_nonzero(pairs < SIZES[0]) - 5000) < 20
        seen += np.bincount(pairs, minlength=len(seen))
    # 5,000 of 7,000 and of 3,000 an epoch, up to the rounding within buckets of a window
    assert 8 <= seen[: SIZES[0]].min() <= seen[: SIZES[0]].max() <= 12
    assert 20 <= seen[SIZES[0] :].min() <= seen[SIZES[0] :].max() <= 27
