"""Batches of ids: shapes, the plan of an epoch, arrays."""

import itertools
import pathlib
import unittest.mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data import batches as module
from keras_transformer.data.batches import BatchPlan, evaluation_batches, training_batches
from keras_transformer.data.corpus import TokenizedCorpus
from keras_transformer.errors import InputError

DATA = pathlib.Path(__file__).parent / "text"


def corpus_of(source, target):
    """A corpus of the given lengths, EOS included, with made-up ids."""
    source, target = (np.cumsum([0, *side]) for side in (source, target))
    return TokenizedCorpus(
        source_ids=np.full(source[-1], 5, np.uint16), source_offsets=source,
        target_ids=np.full(target[-1], 5, np.uint16), target_offsets=target,
    )  # fmt: skip


def sides_of(corpus):
    """The ids and offsets of source and target."""
    return [
        (corpus.source_ids, corpus.source_offsets), (corpus.target_ids, corpus.target_offsets)
    ]  # fmt: skip


def order(planned):
    return np.concatenate([batch.pairs for batch in planned])


# Shapes


@pytest.mark.parametrize(
    ("lengths", "batch_tokens", "shapes", "num_batches"),
    [
        ([(4, 4)] * 16 + [(8, 8)] * 8, 64, [(16, 4, 4), (8, 8, 8)], 2),
        ([(4, 4)] * 33, 128, [(24, 4, 4)], 2),  # 32 rows would fit, but are not needed
        ([(5, 7)], 7, [(1, 5, 7)], 1),
        ([(251, 9), (3, 4)], 251, [(8, 3, 4), (1, 251, 9)], 2),  # the exact bound
        ([(10, 10)] * 99 + [(50, 50)], 200, [(16, 10, 10), (4, 50, 50)], 8),  # alone at the end
        ([(10, 10)] * 16 + [(20, 20)] * 8, 1000, [(24, 20, 20)], 1),  # no small batches
        ([(10**7, 9)], 10**7, [(1, 10**7, 9)], 1),  # the end of the ladder of lengths
    ],
)
def test_shapes_worked_by_hand(lengths, batch_tokens, shapes, num_batches):
    plan = BatchPlan(corpus_of(*zip(*lengths, strict=True)), batch_tokens=batch_tokens)
    assert list(plan.shapes) == shapes  # of 8, 16, ... rows: equal parts for 2, 4 or 8 replicas
    planned = list(plan.epoch())
    assert len(planned) == plan.batches_per_epoch == num_batches
    entries = sum(batch.shape.entries for batch in planned)
    assert plan.real_share == pytest.approx(sum(map(sum, lengths)) / entries)


def test_buckets_are_cut_where_the_least_is_padded():
    """The order is (2, 2), (9, 3), (9, 9), (3, 9): 32 pairs of the first and 8 of each other."""
    source, target = (np.repeat(side, [32, 8, 8, 8]) for side in ([2, 9, 9, 3], [2, 3, 9, 9]))
    corpus = corpus_of(source, target)
    tokens = int(source.sum() + target.sum())
    shapes = {
        1: [(8, 9, 9)],
        2: [(32, 2, 2), (8, 9, 9)],
        3: [(32, 2, 2), (8, 9, 3), (8, 9, 9)],  # or (8, 3, 9) instead of (8, 9, 3)
        4: [(32, 2, 2), (8, 9, 3), (8, 9, 9), (8, 3, 9)],
    }
    entries = {1: 7 * 8 * 18, 2: 32 * 4 + 24 * 18, 3: 32 * 4 + 8 * 12 + 16 * 18, 4: tokens}
    for max_shapes, expected in shapes.items():
        plan = BatchPlan(corpus, batch_tokens=72, max_shapes=max_shapes)
        assert list(plan.shapes) == expected
        assert plan.real_share == tokens / entries[max_shapes]


@pytest.mark.parametrize("batch_tokens", [2048, 25_000])
@pytest.mark.parametrize("corpus", ["multi30k_bpe", "tatoeba_ende", "canlaws_enfr"])
def test_real_corpora_waste_little_on_padding(corpus, batch_tokens):
    with np.load(DATA / "sentence_lengths.npz") as lengths:
        source, target, count = lengths[corpus].astype(np.int64)
    pairs = corpus_of(source.repeat(count), target.repeat(count))
    fine = BatchPlan(pairs, batch_tokens=batch_tokens)
    few = BatchPlan(pairs, batch_tokens=batch_tokens, max_shapes=module.MAX_COMPILED_SHAPES)
    assert fine.real_share >= 0.92
    assert len(fine.shapes) <= module.MAX_SHAPES
    # The law texts have sentences of 2 to 256 tokens, for which 8 shapes are few.
    assert few.real_share >= (0.75 if corpus == "canlaws_enfr" else 0.85)
    assert len(few.shapes) <= module.MAX_COMPILED_SHAPES == 8
    assert few.batches_per_epoch < 1.3 * fine.batches_per_epoch


# The plan of an epoch


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.builds(
        lambda pairs, longest, seed: np.random.default_rng(seed).integers(1, longest, (2, pairs)),
        st.integers(1, 300),
        st.integers(2, 41),
        st.integers(0, 99),
    ),
    bounds=st.tuples(st.integers(40, 300), st.none() | st.integers(1, 20), st.integers(1, 9)),
    part_pairs=st.sampled_from([16, 1000]),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3) | st.just(10**12),
    place=st.integers(0, 10**6),
    devices=st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (6, 3)]),
)
def test_epoch_has_each_pair_once_from_any_point_for_any_number_of_devices(
    lengths, bounds, part_pairs, seed, epoch, place, devices
):
    source, target = lengths
    corpus = corpus_of(source, target)
    for ids, offsets in sides_of(corpus):
        ids[:] = 4 + np.arange(len(ids))
        ids[offsets[1:] - 1] = EOS_ID
    names = ("batch_tokens", "batch_sentences", "max_shapes")
    options = dict(zip(names, bounds, strict=True))
    with unittest.mock.patch.object(module, "_PART_PAIRS", part_pairs):
        plan = BatchPlan(corpus, **options)
        planned = list(plan.epoch(epoch, seed=seed))
        place %= plan.batches_per_epoch
        rest = list(plan.epoch(epoch, seed=seed, first_batch=place))
        after = list(plan.epoch(epoch + 1, seed=seed))
        replicas, workers = devices
        made = [
            training_batches(
                corpus, **options, seed=seed, first_step=epoch * len(planned) + place,
                epochs=epoch + 2, replicas=replicas, shard=(index, workers),
            )
            for index in range(workers)
        ]  # fmt: skip
        made = [list(batches) for batches in made]
    assert len(planned) == plan.batches_per_epoch
    assert sorted(order(planned).tolist()) == list(range(len(source)))
    assert {shape for shape, _ in planned} == set(plan.shapes) and len(plan.shapes) <= bounds[2]
    assert planned[0].shape.memory == max(shape.memory for shape in plan.shapes)
    for shape, pairs in planned:
        assert 0 < len(pairs) <= shape.rows <= (bounds[1] or bounds[0])
        assert shape.rows * max(shape[1:]) <= bounds[0]
        assert source[pairs].max() <= shape.source_length
        assert target[pairs].max() <= shape.target_length
    assert [batch.pairs.tolist() for batch in rest] == [b.pairs.tolist() for b in planned[place:]]
    for batch, *slices in zip(rest + after, *made, strict=True):
        assert len({labels.shape for _, labels in slices}) == 1  # equal shares
        sides = [
            np.concatenate([get(part) for part in slices])
            for get in (lambda b: b[0]["source"], lambda b: b[1], lambda b: b[0]["target"])
        ]
        for matrix, (ids, offsets) in zip(sides, sides_of(corpus), strict=False):
            rows = [ids[offsets[pair] : offsets[pair + 1]].tolist() for pair in batch.pairs]
            empty = [[]] * (len(matrix) - len(rows))
            assert [row[row != PAD_ID].tolist() for row in matrix] == rows + empty
        for labels, shifted in zip(sides[1].tolist(), sides[2].tolist(), strict=True):
            if any(labels):
                labels.remove(EOS_ID)
                labels.insert(0, BOS_ID)
            assert shifted == labels


def test_order_follows_from_seed_and_epoch():
    random = np.random.default_rng(5)
    source = random.integers(2, 40, 10_000)
    target = np.maximum(2, source + random.integers(-5, 6, len(source)))
    plan = BatchPlan(corpus_of(source, target), batch_tokens=512)
    first = list(plan.epoch(1, seed=4))
    assert order(first).tolist() == order(plan.epoch(1, seed=4)).tolist()
    assert order(first).tolist() != order(plan.epoch(1, seed=5)).tolist()
    together, in_next_epoch = (
        {frozenset(batch.pairs.tolist()) for batch in batches}
        for batches in (first, plan.epoch(2, seed=4))
    )
    assert len(together & in_next_epoch) < len(together) / 20


# Arrays


def as_lists(batches):
    return [(x["source"].tolist(), x["target"].tolist(), y.tolist()) for x, y in batches]


def test_batch_worked_by_hand():
    corpus = TokenizedCorpus.from_ids([[5, 6], [7]], [[8], [9, 10]])
    ((inputs, labels),) = evaluation_batches(corpus, batch_tokens=6)
    rows = zip(*(ids.tolist() for ids in (inputs["source"], inputs["target"], labels)), strict=True)
    assert sorted(rows) == [
        ([5, 6, EOS_ID], [BOS_ID, 8, PAD_ID], [8, EOS_ID, PAD_ID]),
        ([7, EOS_ID, PAD_ID], [BOS_ID, 9, 10], [9, 10, EOS_ID]),
    ]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype(np.int32)}


def test_training_is_endless():
    corpus = TokenizedCorpus.from_ids([[5, 6]] * 3, [[7]] * 3)
    assert len(list(itertools.islice(training_batches(corpus, batch_tokens=64), 50))) == 50


def test_sentence_that_is_longer_than_a_batch_is_rejected_at_once():
    with pytest.raises(InputError, match=r"batch_tokens 63 has no room .* \(64 tokens\)"):
        training_batches(corpus_of([64, 3], [3, 64]), batch_tokens=63)


def test_dataset_gives_the_same_batches_each_time():
    random = np.random.default_rng(3)
    source, target = (
        [random.integers(4, 100, size).tolist() for size in random.integers(1, 20, 300)]
        for _ in range(2)
    )
    corpus = TokenizedCorpus.from_ids(source, target)
    dataset = module.to_dataset(lambda: training_batches(corpus, batch_tokens=128, epochs=1))
    inputs, labels = dataset.element_spec
    shapes = [inputs["source"].shape, inputs["target"].shape, labels.shape]
    assert [shape.as_list() for shape in shapes] == [[None, None]] * 3
    expected = as_lists(training_batches(corpus, batch_tokens=128, epochs=1))
    for _ in range(2):
        assert as_lists(dataset.as_numpy_iterator()) == expected
