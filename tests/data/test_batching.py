"""Batches of ids for Keras."""

import itertools

import numpy as np
import pytest

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data import batching
from keras_transformer.data.batching import (
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.data.token_cache import TokenizedCorpus
from keras_transformer.errors import InputError


def a_corpus(pairs=300, longest=20):
    """Pair n's sentences begin with the id 100 + n, the same on both sides."""
    random = np.random.default_rng(3)
    source, target = (
        [
            [100 + n, *random.integers(4, 100, random.integers(0, longest)).tolist()]
            for n in range(pairs)
        ]
        for _ in range(2)
    )
    return TokenizedCorpus.from_ids(source, target), source, target


def as_lists(batches):
    return [(x["source"].tolist(), x["target"].tolist(), y.tolist()) for x, y in batches]


def test_a_batch_worked_by_hand():
    corpus = TokenizedCorpus.from_ids([[5, 6], [7]], [[8], [9, 10]])
    ((inputs, labels),) = evaluation_batches(corpus, batch_tokens=6)
    assert inputs["source"].tolist() == [[5, 6, EOS_ID], [7, EOS_ID, PAD_ID]]
    assert inputs["target"].tolist() == [[BOS_ID, 8, PAD_ID], [BOS_ID, 9, 10]]
    assert labels.tolist() == [[8, EOS_ID, PAD_ID], [9, 10, EOS_ID]]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype(np.int32)}


def test_an_epoch_holds_every_pair_exactly_once_and_whole():
    corpus, source, target = a_corpus()
    seen = {}
    for inputs, labels in training_batches(corpus, batch_tokens=128, epochs=1):
        for s, t, y in zip(inputs["source"], inputs["target"], labels, strict=True):
            s, t, y = (row[row != PAD_ID].tolist() for row in (s, t, y))
            if s:
                assert s[-1] == y[-1] == EOS_ID
                assert t == [BOS_ID, *y[:-1]]
                assert s[0] not in seen
                seen[s[0]] = (s[:-1], y[:-1])
            else:
                assert t == y == []
    assert seen == {100 + n: pair for n, pair in enumerate(zip(source, target, strict=True))}


def test_shapes_are_those_of_the_buckets_and_within_the_bound():
    corpus, _, _ = a_corpus()
    buckets = set(bucket_corpus(corpus, batch_tokens=128).buckets)
    for inputs, labels in training_batches(corpus, batch_tokens=128, epochs=2):
        rows, source_length = inputs["source"].shape
        assert (rows, source_length, labels.shape[1]) in buckets
        assert inputs["target"].shape == labels.shape == (rows, labels.shape[1])
        assert rows * max(source_length, labels.shape[1]) <= 128


def test_a_resumed_run_goes_on_exactly_where_it_stopped():
    corpus, _, _ = a_corpus()
    whole = as_lists(training_batches(corpus, batch_tokens=128, seed=9, epochs=3))
    per_epoch = sum(bucket_corpus(corpus, batch_tokens=128).batches)
    assert len(whole) == 3 * per_epoch
    for step in (1, per_epoch - 1, per_epoch, 2 * per_epoch + 5, 3 * per_epoch, 5 * per_epoch):
        resumed = training_batches(corpus, batch_tokens=128, seed=9, first_step=step, epochs=3)
        assert as_lists(resumed) == whole[step:]


def test_resuming_far_ahead_makes_no_earlier_batches(count_lines):
    corpus, _, _ = a_corpus()
    beginning, place = (count_lines(first_batch, corpus, 128, step) for step in (0, 10**12))
    assert place < 1.1 * beginning


def rows_of(batches):
    """Gives the rows of each batch that are not empty: source, target, labels."""
    return [
        [
            (s.tolist(), t.tolist(), y.tolist())
            for s, t, y in zip(x["source"], x["target"], labels, strict=True)
            if s.any()
        ]
        for x, labels in batches
    ]


def batches_of(corpus, **changes):
    return list(training_batches(corpus, **{"batch_tokens": 128, "epochs": 2, **changes}))


def test_any_number_of_replicas_gets_the_same_batches():
    corpus, _, _ = a_corpus()
    alone = batches_of(corpus)
    few_rows = many_rows = 0
    for replicas in (2, 3, 4, 8):
        shared = batches_of(corpus, replicas=replicas)
        assert rows_of(shared) == rows_of(alone)
        for (_, ours), (_, theirs) in zip(shared, alone, strict=True):
            assert len(ours) % replicas == 0
            assert len(ours) - len(theirs) < replicas  # filled up with no more than needed
            if len(theirs) >= 8 and replicas != 3:
                assert len(ours) == len(theirs)
                many_rows += 1
            few_rows += len(theirs) < 8
    assert few_rows and many_rows


@pytest.mark.parametrize(("replicas", "workers"), [(2, 2), (4, 2), (8, 8), (6, 3)])
@pytest.mark.parametrize("resampled", [False, True])
def test_workers_make_equal_slices_of_the_same_batches(replicas, workers, resampled):
    corpus, _, _ = a_corpus()
    options = {"replicas": replicas, "resample": (turn, turn) if resampled else None}
    whole = batches_of(corpus, **options)
    parts = [batches_of(corpus, shard=(index, workers), **options) for index in range(workers)]
    for batch, *slices in zip(whole, *parts, strict=True):
        assert len({len(labels) for _, labels in slices}) == 1
        joined = [
            np.concatenate([get(part) for part in slices])
            for get in (lambda b: b[0]["source"], lambda b: b[0]["target"], lambda b: b[1])
        ]
        for ours, theirs in zip(joined, (*batch[0].values(), batch[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_workers_make_equal_slices_for_evaluation_too():
    corpus, _, _ = a_corpus()
    options = {"batch_tokens": 128, "replicas": 2}
    whole = evaluation_batches(corpus, **options)
    parts = [evaluation_batches(corpus, shard=(index, 2), **options) for index in range(2)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert np.concatenate([first[1], second[1]]).tolist() == batch[1].tolist()


@pytest.mark.parametrize("wrong", [{"shard": (2, 2), "replicas": 2}, {"shard": (0, 2)}])
def test_a_worker_that_cannot_be_is_refused_at_once(wrong):
    corpus, _, _ = a_corpus(pairs=3)
    with pytest.raises(InputError, match="shard must be the number of a worker"):
        training_batches(corpus, batch_tokens=64, **wrong)


def turn(sentences, seed):
    """Stands in for another segmentation: turns each sentence by a number of the seed."""
    turns = np.random.default_rng(seed).integers(0, 5, len(sentences)).tolist()
    return [ids[n:] + ids[:n] for ids, n in zip(sentences, turns, strict=True)]


def test_other_segmentations_come_anew_in_each_epoch_and_again_when_resumed():
    corpus, _, _ = a_corpus()
    options = {"resample": (turn, turn), "seed": 9}
    whole = as_lists(batches_of(corpus, **options))
    assert as_lists(batches_of(corpus, **options)) == whole
    for step in (1, len(whole) // 2 + 3):
        assert as_lists(batches_of(corpus, first_step=step, **options)) == whole[step:]
    plain = rows_of(batches_of(corpus, seed=9))
    pairs = [
        ([*itertools.chain(*new)], [*itertools.chain(*old)])
        for rows, others in zip(rows_of(batches_of(corpus, **options)), plain, strict=True)
        for new, old in zip(rows, others, strict=True)
    ]
    assert all(sorted(new) == sorted(old) for new, old in pairs)
    assert sum(new != old for new, old in pairs) > len(pairs) / 2


def test_a_segmentation_that_does_not_fit_its_batch_is_not_taken():
    corpus, _, _ = a_corpus()
    longer = lambda sentences, seed: [ids + ids for ids in sentences]  # noqa: E731
    shorter = lambda sentences, seed: [ids[:1] for ids in sentences]  # noqa: E731
    for (x, y), (old_x, old_y) in zip(
        batches_of(corpus, resample=(longer, shorter)), batches_of(corpus), strict=True
    ):
        assert x["source"].shape == old_x["source"].shape
        assert y.shape == old_y.shape
        for new, old in zip(x["source"], old_x["source"], strict=True):
            length = np.count_nonzero(old) - 1
            if 2 * length < len(old) and length > 0:
                assert new[: 2 * length].tolist() == [*old[:length]] * 2
                assert new[2 * length] == EOS_ID and not new[2 * length + 1 :].any()
            else:
                assert new.tolist() == old.tolist()
        real = old_y.any(axis=1)
        assert (y[real, 1] == EOS_ID).all() and (x["target"][real, 1] == y[real, 0]).all()
        assert not y[:, 2:].any() and not x["target"][:, 2:].any()


def test_the_place_in_half_a_million_pairs_takes_no_more_work_than_the_beginning(
    count_lines, lengths_of, monkeypatch
):
    def corpus_of(pairs):
        source, target = lengths_of(pairs)
        return TokenizedCorpus(
            source_ids=np.full((source + 1).sum(), 5, np.uint16),
            source_offsets=np.cumsum([0, *(source + 1)]),
            target_ids=np.full(target.sum(), 5, np.uint16),
            target_offsets=np.cumsum([0, *target]),
            part_offsets=np.array([0, 2 * pairs // 5, pairs]),
        )

    made = []
    for name in ("plan_epoch", "make_batch"):
        monkeypatch.setattr(batching, name, counted(getattr(batching, name), made))
    small, large = corpus_of(50_000), corpus_of(500_000)
    for weights in (None, [1, 3]):
        lines = []
        for corpus, step in ((small, 0), (large, 0), (large, 77_777)):
            bucketing = bucket_corpus(corpus, batch_tokens=2048, mix_weights=weights)
            monkeypatch.setattr(batching, "bucket_corpus", lambda *_, found=bucketing, **__: found)
            lines.append(count_lines(first_batch, corpus, 2048, step, weights))
        few, beginning, place = lines
        assert place < 1.1 * beginning  # they are about the same
        assert beginning < 10 * few  # the batches of an epoch are planned
        assert beginning < 100_000  # while pairs are not gone through one by one
    assert made == ["plan_epoch", "make_batch"] * 6  # one epoch and one batch each time


def first_batch(corpus, batch_tokens, step, weights=None):
    return next(
        training_batches(corpus, batch_tokens=batch_tokens, first_step=step, mix_weights=weights)
    )


def counted(function, calls):
    def call(*arguments, **options):
        calls.append(function.__name__)
        return function(*arguments, **options)

    return call


def test_training_goes_on_without_end():
    corpus, _, _ = a_corpus(pairs=3)
    assert len(list(itertools.islice(training_batches(corpus, batch_tokens=64), 50))) == 50


def test_evaluation_keeps_one_order():
    corpus, _, _ = a_corpus()
    first, second = (as_lists(evaluation_batches(corpus, batch_tokens=128)) for _ in range(2))
    assert first == second
    real = sum(np.count_nonzero(labels) for _, _, labels in first)
    assert real == corpus.target_lengths.sum()


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"first_step": -1}])
def test_a_negative_seed_or_step_is_refused_at_once(wrong):
    corpus, _, _ = a_corpus(pairs=3)
    with pytest.raises(InputError, match="must be at least 0"):
        training_batches(corpus, batch_tokens=64, **wrong)


def test_a_sentence_beyond_the_batch_is_refused_at_once():
    corpus = TokenizedCorpus.from_ids([[5] * 64], [[6]])
    with pytest.raises(InputError, match="batch_tokens 64 has no room"):
        training_batches(corpus, batch_tokens=64)


def test_the_dataset_gives_the_same_batches_each_time_through():
    corpus, _, _ = a_corpus()
    dataset = to_dataset(lambda: training_batches(corpus, batch_tokens=128, epochs=1))
    inputs, labels = dataset.element_spec
    shapes = [inputs["source"].shape, inputs["target"].shape, labels.shape]
    assert [shape.as_list() for shape in shapes] == [[None, None]] * 3
    expected = as_lists(training_batches(corpus, batch_tokens=128, epochs=1))
    for _ in range(2):
        assert as_lists(dataset.as_numpy_iterator()) == expected


def test_batches_are_made_without_going_through_their_sentences(count_lines):
    corpus, _, _ = a_corpus(pairs=20_000, longest=40)

    def make(batches):
        made.extend(itertools.islice(training_batches(corpus, batch_tokens=4096), batches))

    lines = []
    for batches in (1, 101):
        made = []
        lines.append(count_lines(make, batches))
    rows = sum(len(labels) for _, labels in made) / len(made)
    assert (lines[1] - lines[0]) / 100 < 90 < rows
