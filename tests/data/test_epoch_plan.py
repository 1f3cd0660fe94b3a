"""The order of batches in an epoch."""

import numpy as np

from keras_transformer.data.buckets import choose_buckets
from keras_transformer.data.epoch_plan import plan_epoch


def a_bucketing(pairs=3000, batch_tokens=512):
    random = np.random.default_rng(5)
    source = random.integers(2, 40, pairs)
    target = np.maximum(2, source + random.integers(-5, 6, pairs))
    return choose_buckets(source, target, batch_tokens=batch_tokens), source, target


def order(planned):
    return np.concatenate([batch.pairs for batch in planned]).tolist()


def test_every_pair_occurs_exactly_once_and_fits_its_batch():
    bucketing, source, target = a_bucketing()
    for seed in (None, 0, 1):
        planned = list(plan_epoch(bucketing, epoch=2, seed=seed))
        assert sorted(order(planned)) == list(range(3000))
        for bucket, pairs in planned:
            assert 0 < len(pairs) <= bucket.rows
            assert source[pairs].max() <= bucket.source_length
            assert target[pairs].max() <= bucket.target_length


def test_every_epoch_has_the_same_number_of_batches():
    bucketing, _, _ = a_bucketing()
    counts = {len(list(plan_epoch(bucketing, epoch=epoch, seed=3))) for epoch in range(4)}
    assert counts == {sum(bucketing.batches)}


def test_the_order_follows_from_seed_and_epoch():
    bucketing, _, _ = a_bucketing()
    first = order(plan_epoch(bucketing, epoch=1, seed=4))
    assert first == order(plan_epoch(bucketing, epoch=1, seed=4))
    assert first != order(plan_epoch(bucketing, epoch=2, seed=4))
    assert first != order(plan_epoch(bucketing, epoch=1, seed=5))


def test_batches_are_made_up_anew_in_each_epoch():
    bucketing, _, _ = a_bucketing()
    epochs = [
        {frozenset(batch.pairs.tolist()) for batch in plan_epoch(bucketing, epoch=epoch, seed=1)}
        for epoch in (0, 1)
    ]
    # A bucket of a single batch, without leftovers from others, holds the same pairs each time.
    assert len(epochs[0] & epochs[1]) <= bucketing.batches.count(1) < len(epochs[0]) / 3


def test_the_shape_that_needs_most_memory_comes_first():
    bucketing, _, _ = a_bucketing()
    most = max(bucket.memory for bucket in bucketing.buckets)
    for epoch in range(3):
        first, *others = plan_epoch(bucketing, epoch=epoch, seed=2)
        assert first.bucket.memory == most
        assert sorted(others, key=lambda b: -b.bucket.memory)[0] is not others[0]


def test_shapes_are_mixed_over_the_epoch():
    bucketing, _, _ = a_bucketing()
    planned = list(plan_epoch(bucketing, seed=0))
    cells = np.array([batch.bucket.row_cells for batch in planned])
    half = len(cells) // 2
    assert abs(cells[:half].mean() - cells[half:].mean()) < 0.2 * cells.mean()


def test_without_a_seed_the_order_is_that_of_buckets_and_corpus():
    bucketing, _, _ = a_bucketing()
    planned = list(plan_epoch(bucketing))
    cells = [batch.bucket.row_cells for batch in planned]
    assert cells == sorted(cells)
    assert order(planned) == order(plan_epoch(bucketing, epoch=3))


def mixed(weights, pairs=(2000, 500)):
    random = np.random.default_rng(5)
    lengths = random.integers(2, 40, sum(pairs))
    offsets = np.cumsum([0, *pairs])
    return choose_buckets(
        lengths, lengths, batch_tokens=512, part_offsets=offsets, mix_weights=weights
    )


def test_without_weights_every_pair_of_every_corpus_occurs_once_an_epoch():
    for epoch in (0, 3):
        assert sorted(order(plan_epoch(mixed(None), epoch=epoch, seed=1))) == list(range(2500))


def test_a_corpus_of_which_no_pair_is_left_does_no_harm():
    for sizes in ((0, 300), (300, 0), (100, 0, 200)):
        bucketing = mixed(None, sizes)
        assert sorted(order(plan_epoch(bucketing, epoch=1, seed=1))) == list(range(300))
        assert sorted(order(plan_epoch(bucketing))) == list(range(300))


def test_corpora_are_mixed_by_their_weights():
    bucketing = mixed([1, 4])
    planned = [list(plan_epoch(bucketing, epoch=epoch, seed=1)) for epoch in range(12)]
    assert {len(batches) for batches in planned} == {sum(bucketing.batches)}
    numbers = [np.array(order(batches)) for batches in planned]
    assert {len(pairs) for pairs in numbers} == {2500}
    assert {int((pairs < 2000).sum()) for pairs in numbers} == {500}


def test_over_the_epochs_all_pairs_of_a_corpus_occur_equally_often():
    bucketing = mixed([1, 4])
    seen = np.bincount(
        np.concatenate([order(plan_epoch(bucketing, epoch=epoch, seed=1)) for epoch in range(40)]),
        minlength=2500,
    )
    # 500 of 2,000 and 2,000 of 500 an epoch, up to the rounding within a bucket.
    assert 8 <= seen[:2000].min() <= seen[:2000].max() <= 12
    assert 155 <= seen[2000:].min() <= seen[2000:].max() <= 165


def test_planning_half_a_million_pairs_goes_through_batches_and_not_through_pairs(count_lines):
    bucketing, _, _ = a_bucketing(500_000, 4096)
    lines = count_lines(lambda: list(plan_epoch(bucketing, epoch=1, seed=1)))
    assert lines < 20 * sum(bucketing.batches) < 200_000
