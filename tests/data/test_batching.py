"""Batches of ids for Keras."""

import itertools
import time

import numpy as np
import pytest

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.data.batching import (
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.data.tokenized import TokenizedCorpus
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
    assert inputs["source"].tolist() == [[5, 6, END_ID], [7, END_ID, PAD_ID]]
    assert inputs["target"].tolist() == [[START_ID, 8, PAD_ID], [START_ID, 9, 10]]
    assert labels.tolist() == [[8, END_ID, PAD_ID], [9, 10, END_ID]]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype(np.int32)}


def test_an_epoch_holds_every_pair_exactly_once_and_whole():
    corpus, source, target = a_corpus()
    seen = {}
    for inputs, labels in training_batches(corpus, batch_tokens=128, epochs=1):
        for s, t, y in zip(inputs["source"], inputs["target"], labels, strict=True):
            s, t, y = (row[row != PAD_ID].tolist() for row in (s, t, y))
            if s:
                assert s[-1] == y[-1] == END_ID
                assert t == [START_ID, *y[:-1]]
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


def test_resuming_far_ahead_makes_no_earlier_batches():
    corpus, _, _ = a_corpus()
    start = time.process_time()
    next(training_batches(corpus, batch_tokens=128, first_step=10**12))
    assert time.process_time() - start < 1


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


def test_batches_are_made_faster_than_any_model_reads_them():
    corpus, _, _ = a_corpus(pairs=20_000, longest=40)
    dataset = to_dataset(lambda: training_batches(corpus, batch_tokens=2048, epochs=1))
    batches = iter(dataset.as_numpy_iterator())
    next(batches)
    start = time.process_time()  # of all threads together
    tokens = sum(np.count_nonzero(labels) for _, labels in batches)
    assert tokens / (time.process_time() - start) > 100_000
