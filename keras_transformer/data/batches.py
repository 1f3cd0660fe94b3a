"""Batches of token ids: which sentence pairs make a batch, in which order, and the arrays.

A batch is what Keras calls (x, y), all int32, with R rows of source length S and target length T:

    ({"source": [R, S], "target": [R, T]}, labels [R, T])

`source` ends in EOS_ID; `target` is BOS_ID and the translation; `labels` is the translation and
EOS_ID, so that labels[:, t] follows target[:, t]. The rest is PAD_ID, sometimes in whole rows.

Padding is wasted arithmetic, and XLA compiles a program for each shape (R, S, T). As in most
toolkits pairs of similar length share a batch:

1. Pairs are ordered by cells: by the rung of their longer side on a ladder of lengths (1, 2, ...
   32, 34, ... 64, 68, ...), then by which side is longer. Cuts in this order make at most
   `max_shapes` buckets, those with the least padding, found by dynamic programming. Each bucket is
   a shape.
2. In each epoch the pairs of a bucket are shuffled and spread evenly over as few batches as hold
   them; then the batches are shuffled, but for the largest, which comes first. Each pair comes
   exactly once in an epoch.

How many batches an epoch has depends on lengths, `max_shapes` and the bounds of a batch alone: it
is the same in every epoch and for any number of devices. (XLA has other `max_shapes`, so a run
keeps its own.) So a run resumes in the middle of an epoch by planning that epoch, in a second for
three million pairs; nothing is replayed. A plan takes some 30 bytes a pair. Lengths count EOS.

Shapes: N pairs, C cells of the order, K buckets.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data.corpus import TokenizedCorpus, gather_rows
from keras_transformer.errors import InputError

Ids: TypeAlias = npt.NDArray[np.int32]
Integers: TypeAlias = npt.NDArray[np.int64]
Batch: TypeAlias = tuple[dict[str, Ids], Ids]

MAX_SHAPES = 96  # where a shape costs nothing
MAX_COMPILED_SHAPES = 8  # where XLA compiles a program for each, which takes up to a minute
_ENOUGH_SHARE = 0.93  # of a batch's entries are tokens; no more shapes are added then
_PART_PAIRS = 1 << 20  # whose lengths are in memory at once
_ROWS_STEP = 8  # divides evenly over 2, 4 or 8 devices, and suits vector units
_MAX_CELLS = 1024  # for sentences of up to 10 million tokens
_PREFETCHED_BATCHES = 8  # enough to hide the making of batches, which takes milliseconds


def training_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    batch_sentences: int | None = None,
    max_shapes: int = MAX_SHAPES,
    seed: int = 0,
    first_step: int = 0,
    epochs: int | None = None,
    replicas: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yields batches of pairs that are shuffled over the whole corpus, differently in each epoch.

    Which pairs make a batch does not depend on the number of replicas and shards.

    Args:
        corpus: the pairs to train on.
        batch_tokens, batch_sentences, max_shapes: see `BatchPlan`.
        seed: at least 0; with the other arguments, the order depends on it and the epoch alone.
        first_step: batches to skip from the start of epoch 0, without making them.
        epochs: number of epochs, counted from epoch 0; None is endless.
        replicas: devices that share a batch, over all workers. Batches are padded with empty rows
            to a multiple of it; for 2, 4 or 8 only batches of fewer than 8 rows need that.
        shard: index of a worker and number of workers, which divides the replicas: which equal
            slice of each batch to make.

    Raises:
        InputError: a sentence is longer than `batch_tokens`.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6]], [[7]])
        >>> inputs, labels = next(training_batches(corpus, batch_tokens=3))
        >>> inputs["source"].tolist(), inputs["target"].tolist(), labels.tolist()
        ([[5, 6, 3]], [[2, 7]], [[7, 3]])
    """
    bounds: Any = {"batch_sentences": batch_sentences, "max_shapes": max_shapes}
    plan = BatchPlan(corpus, batch_tokens=batch_tokens, **bounds)
    first_epoch, first_batch = divmod(first_step, plan.batches_per_epoch)

    def generate() -> Iterator[Batch]:
        skipped = first_batch
        for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
            planned = plan.epoch(epoch, seed=seed, first_batch=skipped)
            for batch in planned:
                yield _make_batch(corpus, batch, replicas, shard)
            skipped = 0

    return generate()  # a separate generator, so that wrong arguments raise at the call


def evaluation_batches(corpus: TokenizedCorpus, **options: Any) -> Iterator[Batch]:
    """Yields every pair once, always in the same order; options as in `training_batches`."""
    return training_batches(corpus, epochs=1, **options)


def to_dataset(batches: Callable[[], Iterator[Batch]]) -> Any:
    """Wraps batches in a `tf.data.Dataset` that prefetches them.

    Args:
        batches: called at the start of each iteration over the dataset.

    Returns:
        A dataset of ({"source": [None, None], "target": [None, None]}, [None, None]), int32.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6]], [[7]])
        >>> data = to_dataset(lambda: evaluation_batches(corpus, batch_tokens=64))
    """
    import tensorflow as tf  # slow to import, and needed here only

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = ({"source": ids, "target": ids}, ids)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # With autotuning an iterator is only deleted when its tuner wakes up, which after minutes is
    # once a minute: training would end with half a minute of waiting.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)


# The plan of an epoch.


class BatchShape(NamedTuple):
    """The shape of a batch: source [rows, source_length] and target [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int

    @property
    def entries(self) -> int:
        """Of both matrices."""
        return self.rows * (self.source_length + self.target_length)

    @property
    def memory(self) -> float:
        """Estimated memory of a training step, in units of one source token's activations.

        A target token also has logits and their gradients, about twice as much again. Attention
        has scores for all pairs of positions; in the paper's models 256 of them weigh one token.
        """
        source, target = self.source_length, self.target_length
        scores = source * source + source * target + target * target
        return self.rows * (source + 3 * target + scores / 256)


class PlannedBatch(NamedTuple):
    """A batch to be made: its shape, and the indices of its pairs, at most `shape.rows`."""

    shape: BatchShape
    pairs: Integers


class BatchPlan:
    """The batches of every epoch, as a pure function of lengths, seed and epoch number.

    Args:
        corpus: the pairs; only their lengths are read.
        batch_tokens: bound on rows * max(source_length, target_length) of a batch.
        batch_sentences: bound on the rows of a batch.
        max_shapes: bound on the number of shapes.

    Attributes:
        shapes: of the K buckets, ordered by length.
        batches_per_epoch: the same for every seed and epoch.
        real_share: share of an epoch's entries that hold tokens, not padding.

    Raises:
        InputError: `batch_tokens` has no room for the longest sentence.

    Example:
        >>> plan = BatchPlan(TokenizedCorpus.from_ids([[5, 6]], [[7]]), batch_tokens=8)
        >>> plan.shapes, plan.batches_per_epoch
        ((BatchShape(rows=1, source_length=3, target_length=2),), 1)
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        *,
        batch_tokens: int,
        batch_sentences: int | None = None,
        max_shapes: int = MAX_SHAPES,
    ) -> None:
        cells, longest = _cells_of_corpus(corpus)  # [N], [C, 2]
        if longest.max() > batch_tokens:
            raise InputError(
                f"batch_tokens {batch_tokens} has no room for the longest sentence "
                f"({longest.max()} tokens); raise it, or lower max_length"
            )
        counts = np.bincount(cells)  # [C]
        tokens = int(corpus.source_offsets[-1] + corpus.target_offsets[-1])

        # The buckets: as few as pad little enough, or those of at most `max_shapes` that pad least.
        bounds = batch_tokens, batch_sentences
        starts = _cut_into_buckets(counts, longest, bounds, max_shapes, tokens / _ENOUGH_SHARE)
        bucket_of_cell = np.searchsorted(starts, np.arange(len(longest)), "right") - 1
        self._bucket_of_pair = bucket_of_cell.astype(np.uint16)[cells]  # [N]

        # The batches that the pairs of each bucket fill.
        longest = np.maximum.reduceat(longest, starts)  # [K, 2]
        self._batches, rows = _spread(np.add.reduceat(counts, starts), longest, bounds)  # [K]
        shapes = np.column_stack([rows, longest])
        self.shapes = tuple(BatchShape(*shape) for shape in shapes.tolist())
        self.batches_per_epoch = int(self._batches.sum())
        entries = [shape.entries for shape in self.shapes]
        self.real_share = tokens / float(self._batches @ entries)

    def epoch(
        self, epoch: int = 0, *, seed: int = 0, first_batch: int = 0
    ) -> Iterator[PlannedBatch]:
        """Yields the batches of an epoch in order; the first one needs the most memory, so that
        training runs out of memory at once or never.

        Args:
            epoch: index of the epoch, from 0; each has another order.
            seed: at least 0; the same seed (and NumPy) gives the same order.
            first_batch: batches to skip.
        """
        random = np.random.default_rng((1, seed, 0, epoch))  # 1 and 0: the order of earlier runs
        pairs = random.permutation(len(self._bucket_of_pair))
        buckets = self._bucket_of_pair[pairs]
        ends = np.bincount(buckets).cumsum()
        by_bucket = np.split(pairs[np.argsort(buckets, kind="stable")], ends[:-1])
        planned = [
            PlannedBatch(shape, part)
            for shape, pairs, batches in zip(self.shapes, by_bucket, self._batches, strict=True)
            for part in np.array_split(pairs, batches)
        ]
        shuffled = [planned[index] for index in random.permutation(len(planned))]
        first = max(range(len(shuffled)), key=lambda index: shuffled[index].shape.memory)
        yield from [shuffled.pop(first), *shuffled][first_batch:]


# How many pairs have which lengths.


def _cells_of_corpus(corpus: TokenizedCorpus) -> tuple[npt.NDArray[np.uint16], Integers]:
    """Returns the cell of each pair, uint16 [N], and the longest source and target of each cell,
    int64 [C, 2]. It looks at a part of the corpus at a time.
    """
    cells = np.zeros(len(corpus), np.uint16)
    longest = np.zeros((_MAX_CELLS, 2), np.int64)
    for start in range(0, len(corpus), _PART_PAIRS):
        part = slice(start, start + _PART_PAIRS)
        lengths = corpus.lengths(part)
        cells[part] = _cells_of(*lengths)
        for side in (0, 1):
            np.maximum.at(longest[:, side], cells[part], lengths[side])
    return cells, longest[: int(cells.max()) + 1]


def _cells_of(source: Integers, target: Integers) -> Integers:
    """Returns the place of pairs of these lengths in the order, of which each rung has three.

    First come pairs whose source is longer by three rungs or more, last those whose target is.
    """
    source, target = _rungs_of(source), _rungs_of(target)
    which = (target - source > 2).astype(int) - (source - target > 2)
    return 3 * np.maximum(source, target) + 1 + which


def _rungs_of(lengths: Integers) -> Integers:
    """Returns the rungs of lengths on a ladder with steps of at most 1/16 of each from 32 on."""
    steps = np.maximum(np.frexp(lengths - 1)[1] - 5, 0)  # log2 of the step between rungs
    return ((lengths - 1) >> steps) + 16 * steps


# Buckets of lengths.


def _cut_into_buckets(
    pairs: Integers,
    longest: Integers,
    bounds: tuple[int, int | None],
    max_shapes: int,
    enough: float,
) -> list[int]:
    """Returns the first cell of each bucket, [K]: the cuts that leave the least padding.

    A batch that is less than half full counts as half a batch: small updates are worth less.
    `pairs` [C] are those of each cell, `longest` [C, 2] source and target, `bounds` are on the
    tokens and rows of a batch; no more buckets are made than reach `enough` entries an epoch.
    """
    # Of a bucket from cell i to cell j, [C, C]; it needs i <= j.
    count = len(longest)
    is_bucket = np.triu(np.ones((count, count), bool))
    longest = np.maximum.accumulate(np.where(is_bucket[..., None], longest, 0), axis=1)
    end = np.cumsum(pairs)
    start = np.append(0, end[:-1])
    batches, rows = _spread(end - start[:, None], longest, bounds)
    rows = np.maximum(rows, _most_rows(longest, bounds) / 2)
    entries = np.where(is_bucket, batches * rows * longest.sum(2), np.inf)

    # Of the cells up to j in 1, 2, 3, ... buckets: the fewest entries, and where the last begins.
    fewest, begins = [entries[0]], [np.zeros(count, int)]
    while fewest[-1][-1] > enough and len(fewest) < min(max_shapes, count):
        options = fewest[-1][:-1, None] + entries[1:]  # [C - 1, C]
        fewest.append(options.min(0))
        begins.append(options.argmin(0) + 1)
    best = int(np.argmin([entries_by_end[-1] for entries_by_end in fewest]))
    cuts: list[int] = []
    for begins_by_end in reversed(begins[: best + 1]):
        cuts.insert(0, int(begins_by_end[cuts[0] - 1 if cuts else -1]))
    return cuts


def _spread(
    pairs: Integers, longest: Integers, bounds: tuple[int, int | None]
) -> tuple[Integers, Integers]:
    """Returns over how many batches pairs are spread evenly, and the rows of the fullest one."""
    most = _most_rows(longest, bounds)
    batches = np.ceil(pairs / most).astype(int)
    rows = np.ceil(pairs / np.maximum(batches, 1) / _ROWS_STEP).astype(int) * _ROWS_STEP
    return batches, np.minimum(rows, most)


def _most_rows(longest: Integers, bounds: tuple[int, int | None]) -> Integers:
    """Returns the rows of a batch by its longest pair, [..., 2]; multiples of 8 if 8 rows fit."""
    tokens, sentences = bounds
    rows = np.maximum(tokens // np.maximum(longest.max(-1), 1), 1)
    rows = np.where(rows < _ROWS_STEP, rows, rows - rows % _ROWS_STEP)
    return np.minimum(rows, sentences or tokens)


# From planned batches to arrays.


def _make_batch(
    corpus: TokenizedCorpus, batch: PlannedBatch, replicas: int, shard: tuple[int, int]
) -> Batch:
    """Makes one worker's rows of a planned batch; rows without a pair are all PAD_ID. Arguments as
    in `training_batches`.
    """
    (rows, source_length, target_length), pairs = batch
    rows = math.ceil(rows / replicas) * replicas
    source = gather_rows(corpus.source_ids, corpus.source_offsets, pairs, (rows, source_length))
    labels = gather_rows(corpus.target_ids, corpus.target_offsets, pairs, (rows, target_length))
    target = np.full_like(labels, PAD_ID)
    target[: len(pairs), 0] = BOS_ID
    target[:, 1:] = np.where(labels[:, :-1] == EOS_ID, PAD_ID, labels[:, :-1])
    index, workers = shard
    share = slice(index * rows // workers, (index + 1) * rows // workers)
    return {"source": source[share], "target": target[share]}, labels[share]
