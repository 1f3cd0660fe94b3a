"""Batches of token ids: which sentence pairs make a batch, in which order, and the arrays.

A batch is what Keras calls (x, y), all int32, with R rows of source length S and target length T:

    ({"source": [R, S], "target": [R, T]}, labels [R, T])

`source` ends in EOS_ID; `target` is BOS_ID and the translation; `labels` is the translation and
EOS_ID, so that labels[:, t] follows target[:, t]. The rest is PAD_ID, sometimes in whole rows.

XLA compiles a program for each shape (R, S, T), and padding is wasted arithmetic. `BatchPlan` keeps
both small. Like most toolkits it takes a large window of the corpus, brings pairs of similar length
together, cuts them into batches of at most `batch_tokens`, and shuffles the batches:

1. Lengths are rounded up to a ladder (1, 2, ... 32, 34, ... 64, 68, ...), and pairs are counted by
   source and target rung. All these cells begin as one box. The box whose split saves the most
   padding is split in two, again and again, until 93 % of a batch's entries are tokens. Each box
   is a shape. (A short ladder for both sides takes three times as many shapes for that.)
2. In each epoch the pairs of a box are shuffled and cut evenly into batches; then the batches are
   shuffled.
3. A corpus of more than two million pairs is planned window by window, in random order. A window
   takes every W-th of many short pieces of the corpus, so it is a sample of the whole.

The number of batches of each window depends on lengths, weights and the bounds of a batch alone: it
is the same in every epoch and for any number of devices. A place in an epoch is found by adding up
these W numbers and planning one window of n pairs, O(W + n log n); nothing is replayed. Counting
the lengths of N pairs is O(N), once, and kept with the tokens; splitting C cells into K boxes is
O(KWC).

Lengths count EOS.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.config.data import check_mix_weights
from keras_transformer.data.corpus import LengthCounts, TokenizedCorpus, gather_rows
from keras_transformer.errors import InputError

Ids: TypeAlias = npt.NDArray[np.int32]
Counts: TypeAlias = npt.NDArray[np.int64]
Batch: TypeAlias = tuple[dict[str, Ids], Ids]
Resample: TypeAlias = Callable[[Sequence[Sequence[int]], int], Sequence[Sequence[int]]]

_PREFETCHED_BATCHES = 8  # enough to hide the making of batches, which takes milliseconds
_MAX_SHAPES = 96
_ENOUGH_SHARE = 0.93  # of a batch's entries are tokens; no more shapes are added then
WINDOW_PAIRS = 1 << 21
_PIECES = 16  # of each corpus, in a window
_ROWS_STEP = 8  # divides evenly over 2, 4 or 8 devices, and suits vector units
# Large groups are fast, as each starts threads in SentencePiece; workers that share one repeat it.
_GROUP_ROWS = 32


def training_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    batch_sentences: int | None = None,
    mix_weights: Sequence[float] | None = None,
    resample: tuple[Resample | None, Resample | None] | None = None,
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
        batch_tokens, batch_sentences, mix_weights: see `BatchPlan`.
        resample: subword regularization: samples segmentations of source and of target sentences
            from ids and a seed, as `SubwordSampler` does; None for a side that has only one.
            Samples that do not fit are discarded.
        seed: at least 0; with the other arguments, the order depends on it and the epoch alone.
        first_step: batches to skip from the start of epoch 0, without making them.
        epochs: number of epochs, counted from epoch 0; None is endless.
        replicas: devices that share a batch, over all workers. Batches are padded with empty rows
            to a multiple of it; for 2, 4 or 8 only batches of fewer than 8 rows need that.
        shard: index of a worker and number of workers: which equal slice of each batch to make.

    Raises:
        InputError: an argument is out of range, or a sentence is longer than `batch_tokens`.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6]], [[7]])
        >>> inputs, labels = next(training_batches(corpus, batch_tokens=3))
        >>> inputs["source"].tolist(), inputs["target"].tolist(), labels.tolist()
        ([[5, 6, 3]], [[2, 7]], [[7, 3]])
    """
    if seed < 0 or first_step < 0:
        raise InputError(f"seed and first_step must be at least 0, got {seed} and {first_step}")
    _check_shard(replicas, shard)
    plan = BatchPlan(
        corpus,
        batch_tokens=batch_tokens,
        batch_sentences=batch_sentences,
        mix_weights=mix_weights,
    )
    first_epoch, first_batch = divmod(first_step, plan.batches_per_epoch)

    def generate() -> Iterator[Batch]:
        skipped = first_batch
        for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
            planned = plan.epoch(epoch, seed=seed, first_batch=skipped)
            for number, batch in enumerate(planned, skipped):
                key = (seed, epoch, number)
                yield _make_batch(corpus, batch, replicas, shard, resample, key)
            skipped = 0

    return generate()  # a separate generator, so that wrong arguments raise at the call


def evaluation_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    replicas: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yields every pair once, in a fixed order; arguments and errors as in `training_batches`."""
    _check_shard(replicas, shard)
    planned = BatchPlan(corpus, batch_tokens=batch_tokens).epoch()
    return (_make_batch(corpus, batch, replicas, shard) for batch in planned)


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


class BatchShape(NamedTuple):
    """The shape of a batch: source [rows, source_length] and target [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int

    @property
    def cells(self) -> int:
        """Entries of both matrices."""
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
    pairs: Counts


class BatchPlan:
    """The batches of every epoch, as a pure function of lengths, seed and epoch number.

    Shapes: P corpora in W windows, K boxes, R rungs of the ladder of lengths.

    Args:
        corpus: the pairs; only their lengths are read.
        batch_tokens: bound on rows * max(source_length, target_length) of a batch.
        batch_sentences: bound on the rows of a batch.
        mix_weights: [P], share of an epoch's pairs that each corpus gives, on any scale; None means
            that an epoch has every pair once.

    Attributes:
        shapes: ordered by length.
        batches_per_epoch: the same for every seed and epoch.
        real_share: share of an epoch's cells that hold tokens, not padding.

    Raises:
        InputError: `batch_tokens` has no room for the longest sentence, or the weights do not
            fit the corpora.

    Example:
        >>> plan = BatchPlan(TokenizedCorpus.from_ids([[5, 6]], [[7]]), batch_tokens=8)
        >>> plan.shapes, plan.batches_per_epoch
        ((BatchShape(rows=2, source_length=3, target_length=2),), 1)
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        *,
        batch_tokens: int,
        batch_sentences: int | None = None,
        mix_weights: Sequence[float] | None = None,
    ) -> None:
        self._corpus = corpus
        ladder, counts = corpus.length_counts or count_lengths(corpus)
        longest = int(ladder[-1])
        if longest > batch_tokens:
            raise InputError(
                f"batch_tokens {batch_tokens} has no room for the longest sentence ({longest} "
                "tokens); raise batch_tokens or drop such sentences with max_length"
            )
        self._rung_of_length = np.searchsorted(ladder, np.arange(longest + 1))
        parts = corpus.part_offsets
        sizes = np.diff(parts)  # [P]
        repeats = _repeats(sizes, mix_weights)  # of each corpus's pairs, in an epoch
        part_tokens = np.diff(corpus.source_offsets[parts] + corpus.target_offsets[parts]) + sizes
        tokens = float(repeats @ part_tokens)

        # The boxes: as few as pad little enough, or those of at most `_MAX_SHAPES` that pad least.
        most_rows = functools.partial(_most_rows, batch_tokens, batch_sentences)
        expected = np.tensordot(counts, repeats, (1, 0))  # [W, R, R], pairs of an epoch
        splits = _split_lengths(expected, ladder, most_rows)
        fewest_cells = np.inf
        for boxes in itertools.islice(splits, _MAX_SHAPES):
            pairs = np.ceil([box.sum_of(expected) for box in boxes]).astype(np.int64).T  # [W, K]
            if (cells := _lay_out(boxes, pairs, most_rows).cells()) < fewest_cells:
                fewest_cells, chosen = cells, boxes
            if tokens >= _ENOUGH_SHARE * cells:
                break

        # How many pairs of each box an epoch has, and the batches that these fill.
        self._box_of_rungs = np.zeros(counts.shape[2:], np.int16)  # [R, R]
        for number, box in enumerate(chosen):
            self._box_of_rungs[box.source_rungs, box.target_rungs] = number
        stock = np.stack([box.sum_of(counts) for box in chosen], 2)  # [W, P, K], pairs
        self._draws = _round_to_whole(stock, repeats)
        self._layout = _lay_out(chosen, self._draws.sum(1), most_rows)
        used = self._layout.batches.sum(0)
        self.shapes = tuple(itertools.compress(self._layout.shapes, used.tolist()))
        self.batches_per_epoch = int(used.sum())
        self.real_share = tokens / self._layout.cells()

    def epoch(
        self, epoch: int = 0, *, seed: int | None = None, first_batch: int = 0
    ) -> Iterator[PlannedBatch]:
        """Yields the batches of an epoch in order.

        Args:
            epoch: index of the epoch, from 0; each has another order.
            seed: at least 0; the same seed (and NumPy) gives the same order. The first batch needs
                the most memory, so that training runs out of memory at once or never. None does
                not shuffle: batches come in the order of windows and shapes, pairs in that of the
                corpus.
            first_batch: batches to skip; windows that hold no others are not planned.
        """
        batches, shapes = self._layout.batches, self._layout.shapes
        windows = np.arange(len(batches))
        if seed is not None:
            # The spawn key distinguishes this generator from those of windows and boxes.
            random = np.random.default_rng(np.random.SeedSequence([seed, 0, 1], spawn_key=(epoch,)))
            random.shuffle(windows)
            memory = (batches[windows] > 0) * [shape.memory for shape in shapes]
            windows = np.roll(windows, -int(memory.max(1).argmax()))
        for window in windows.tolist():
            num_batches = int(batches[window].sum())
            if first_batch < num_batches:
                yield from self._plan_window(window, epoch, seed)[first_batch:]
            first_batch = max(0, first_batch - num_batches)

    def _plan_window(self, window: int, epoch: int, seed: int | None) -> list[PlannedBatch]:
        """Returns the batches of a window: the pairs of each box, drawn, shuffled and cut.

        If there is a seed, the batches are shuffled, and one that needs the most memory is first.
        """
        pairs_of_box: list[list[Counts]] = [[] for _ in self._layout.shapes]
        for part, draws in enumerate(self._draws[window]):
            pairs, boxes = self._pairs_and_boxes(window, part)
            sizes = np.bincount(boxes, minlength=len(pairs_of_box))
            in_boxes = np.split(pairs[np.argsort(boxes, kind="stable")], np.cumsum(sizes)[:-1])
            for box, drawn in enumerate(in_boxes):
                if seed is not None:
                    key = (seed, window, part, box)
                    drawn = draw_pairs(drawn, int(draws[box]), epoch, key)
                pairs_of_box[box].append(drawn)
        random = np.random.default_rng(None if seed is None else [seed, window, epoch])
        planned, layout = [], self._layout
        for box, shape in enumerate(layout.shapes):
            pairs = np.concatenate(pairs_of_box[box])
            if seed is not None:
                random.shuffle(pairs)
            pairs, leftover = np.split(pairs, [layout.kept[window, box]])
            pairs_of_box[layout.larger[box]].append(leftover)
            if len(pairs):
                cut = np.array_split(pairs, layout.batches[window, box])
                planned += [PlannedBatch(shape, some) for some in cut]
        if seed is None:
            return planned
        shuffled = [planned[index] for index in random.permutation(len(planned))]
        first = max(range(len(shuffled)), key=lambda index: shuffled[index].shape.memory)
        return [shuffled.pop(first), *shuffled]

    def _pairs_and_boxes(self, window: int, part: int) -> tuple[Counts, npt.NDArray[np.int16]]:
        """Returns the pairs of a corpus in a window, and the box of each."""
        pairs, boxes = [np.zeros(0, np.int64)], [np.zeros(0, np.int16)]
        for piece in pieces_of(window, part, self._corpus.part_offsets):
            source, target = (self._rung_of_length[each] for each in _lengths(self._corpus, piece))
            pairs.append(np.arange(piece.start, piece.stop))
            boxes.append(self._box_of_rungs[source, target])
        return np.concatenate(pairs), np.concatenate(boxes)


# Windows, and how many of their pairs have which lengths.


def count_windows(part_offsets: Counts) -> int:
    """Returns the number of windows W, at least 1.

    Args:
        part_offsets: [P + 1], index of the first pair of each corpus, then N.
    """
    return max(1, -(-int(part_offsets[-1]) // WINDOW_PAIRS))


def pieces_of(window: int, part: int, part_offsets: Counts) -> list[slice]:
    """Returns which pairs of a corpus are in a window, as slices in order."""
    windows = count_windows(part_offsets)
    first, last = part_offsets[part : part + 2].tolist()
    count = windows * _PIECES
    edges = [first + (last - first) * piece // count for piece in range(count + 1)]
    pieces = [slice(*edges[n : n + 2]) for n in range(window, count, windows)]
    return [piece for piece in pieces if piece.start < piece.stop]


def count_lengths(corpus: TokenizedCorpus) -> LengthCounts:
    """Counts the pairs of a corpus by their lengths, a piece of it at a time."""
    windows, parts = count_windows(corpus.part_offsets), len(corpus.part_offsets) - 1
    places = [
        (window, part, piece)
        for window, part in np.ndindex(windows, parts)
        for piece in pieces_of(window, part, corpus.part_offsets)
    ]
    longest = max(int(side.max()) for *_, piece in places for side in _lengths(corpus, piece))
    ladder = _ladder(longest)
    rungs = len(ladder)
    rung_of_length = np.searchsorted(ladder, np.arange(longest + 1))
    counts = np.zeros((windows, parts, rungs, rungs), np.int32)
    for window, part, piece in places:
        source, target = (rung_of_length[side] for side in _lengths(corpus, piece))
        found = np.bincount(source * rungs + target, minlength=rungs * rungs)
        counts[window, part] += found.reshape(rungs, rungs).astype(np.int32)
    return LengthCounts(ladder, counts)


def _lengths(corpus: TokenizedCorpus, pairs: slice) -> tuple[Counts, Counts]:
    ends = slice(pairs.start, pairs.stop + 1)
    return np.diff(corpus.source_offsets[ends]), np.diff(corpus.target_offsets[ends]) + 1


def _ladder(longest: int) -> Counts:
    """Returns ascending lengths up to the longest, in steps of at most 1/16 of each from 32 on."""
    rungs = [1]
    while rungs[-1] < longest:
        rungs.append(rungs[-1] + max(1, 1 << rungs[-1].bit_length() >> 5))
    return np.array([*rungs[:-1], longest])


# Boxes of lengths.


class _Box(NamedTuple):
    """Cells of the ladder that share a shape.

    Attributes:
        source_rungs, target_rungs: [C], of each cell that has pairs.
        source_length, target_length: the longest.
    """

    source_rungs: Counts
    target_rungs: Counts
    source_length: int
    target_length: int

    def sum_of(self, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the sum [...] of counts [..., R, R] over the box."""
        return np.asarray(counts[..., self.source_rungs, self.target_rungs].sum(-1))


def _split_lengths(
    counts: npt.NDArray[np.float64], ladder: Counts, most_rows: Callable[[Any], Any]
) -> Iterator[list[_Box]]:
    """Yields 1, 2, 3, ... boxes; each time the split that saves the most padding is made.

    Args:
        counts: [W, R, R], pairs of an epoch by window, source rung and target rung.
        ladder: [R], the length of each rung.
        most_rows: of a batch, from the longest sentence.
    """
    windows, counts = len(counts), counts.sum(0)

    def box_of(rungs: Counts) -> _Box:
        return _Box(*rungs.T, *ladder[rungs.max(0)].tolist())

    def best_split(box: _Box) -> tuple[float, list[_Box]]:
        """Returns the cells that the best split saves, and the two boxes."""
        best: tuple[float, list[_Box]] = 0.0, []
        whole = float(box.sum_of(counts)) * (box.source_length + box.target_length)
        for axis in (0, 1):
            rungs = np.stack(box[:2], 1)  # [C, 2]
            rungs = rungs[np.argsort(rungs[:, axis], kind="stable")]
            pairs = counts[rungs[:, 0], rungs[:, 1]]  # [C]
            # For a split after each place: the pairs of both halves, and their longest sentences.
            left, right = np.cumsum(pairs)[:-1], np.cumsum(pairs[::-1])[-2::-1]  # [C - 1]
            longest_left = ladder[np.maximum.accumulate(rungs)[:-1]]  # [C - 1, 2]
            longest_right = ladder[np.maximum.accumulate(rungs[::-1])[-2::-1]]
            cells = left * longest_left.sum(1) + right * longest_right.sum(1)
            cells[np.diff(rungs[:, axis]) == 0] = np.inf
            for half, longest in ((left, longest_left), (right, longest_right)):
                # On average over the windows, each box fills at least half a batch.
                cells[2 * half < windows * most_rows(longest.max(1))] = np.inf
            if len(cells) and whole - cells.min() > best[0]:
                place = int(cells.argmin()) + 1
                best = whole - float(cells.min()), [box_of(rungs[:place]), box_of(rungs[place:])]
        return best

    boxes = [box_of(np.argwhere(counts))]
    splits = [best_split(boxes[0])]
    while True:
        yield sorted(boxes, key=lambda box: (box.source_length + box.target_length, *box[2:]))
        number = max(range(len(splits)), key=lambda index: splits[index][0])
        saved, halves = splits[number]
        if not saved:
            return
        boxes[number : number + 1] = halves
        splits[number : number + 1] = map(best_split, halves)


def _most_rows(batch_tokens: int, batch_sentences: int | None, longest: Any) -> Any:
    """Returns the rows of a batch by its longest sentence; multiples of 8 where 8 rows fit."""
    rows = batch_tokens // longest
    rows = np.where(rows < _ROWS_STEP, rows, rows - rows % _ROWS_STEP)
    return np.minimum(rows, batch_sentences or batch_tokens)


class _Layout(NamedTuple):
    """How an epoch's pairs fill batches.

    Attributes:
        shapes: [K].
        batches: int64 [W, K].
        kept: int64 [W, K], pairs that a box keeps; those left over move to a larger box.
        larger: [K], index of that box; the last one, which keeps all, has its own.
    """

    shapes: tuple[BatchShape, ...]
    batches: Counts
    kept: Counts
    larger: list[int]

    def cells(self) -> float:
        """Returns the cells of all batches of an epoch."""
        return float(self.batches.sum(0) @ [shape.cells for shape in self.shapes])


def _lay_out(boxes: Sequence[_Box], pairs: Counts, most_rows: Callable[[Any], Any]) -> _Layout:
    """Lays out the pairs of each window and box, [W, K], over batches.

    The pairs of a box are spread evenly over as few batches as possible, with as few rows as they
    need. Leftover pairs, which would not fill a batch, move to the next larger box if that takes
    fewer cells.
    """
    kept, batches = pairs.copy(), np.zeros_like(pairs)
    larger: list[int] = []
    shapes: list[BatchShape] = []
    for number, (*_, source, target) in enumerate(boxes):
        limit = int(most_rows(max(source, target)))

        def spread(pairs: Counts, limit: int = limit) -> tuple[Counts, int]:
            """Returns the number of batches in each window, and the rows of the fullest."""
            batches = -(-pairs // limit)
            fullest = (pairs / np.maximum(batches, 1)).max()
            return batches, min(limit, math.ceil(fullest / _ROWS_STEP) * _ROWS_STEP)

        holders = (
            index
            for index, box in enumerate(boxes[number + 1 :], number + 1)
            if box.source_length >= source and box.target_length >= target
        )
        larger.append(next(holders, number))
        batches[:, number], rows = spread(kept[:, number])
        leftover = kept[:, number] % limit
        full, full_rows = spread(kept[:, number] - leftover)
        saved = (batches[:, number].sum() * rows - full.sum() * full_rows) * (source + target)
        if larger[-1] > number and leftover.sum() * sum(boxes[larger[-1]][2:]) < saved:
            batches[:, number], rows = full, full_rows
            kept[:, number] -= leftover
            kept[:, larger[-1]] += leftover
        shapes.append(BatchShape(rows, source, target))
    return _Layout(tuple(shapes), batches, kept, larger)


# Mixing corpora. With weights an epoch has as many pairs as all corpora together, but samples a
# corpus in part or more than once. Each corpus contributes the same number of pairs of each box
# and window to every epoch, so that every epoch has the same number of batches.


def _repeats(sizes: Counts, weights: Sequence[float] | None) -> npt.NDArray[np.float64]:
    """Returns how often an epoch has a pair of each corpus, on average, [P]."""
    if weights is None:
        return np.ones(len(sizes))
    check_mix_weights(weights, len(sizes), ",".join(map(str, weights)))
    if not sizes.all():
        raise InputError(
            f"corpus {int(sizes.argmin()) + 1} of {len(sizes)} has no pairs to mix in; "
            "remove it, or relax the filters by length"
        )
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    return np.asarray(sizes.sum() * shares / sizes)


def _round_to_whole(stock: Counts, repeats: npt.NDArray[np.float64]) -> Counts:
    """Returns the pairs of an epoch by window, corpus and box, [W, P, K], from those there are.

    What rounding takes from one box the next one gets; each that has pairs gives one or more.
    """
    by_part = stock.swapaxes(0, 1) * repeats[:, None, None]  # [P, W, K]
    ends = np.rint(by_part.reshape(len(repeats), -1).cumsum(1)).astype(np.int64)
    draws = np.diff(ends, prepend=0).reshape(by_part.shape).swapaxes(0, 1)
    return np.maximum(draws, stock > 0)


def draw_pairs(pairs: Counts, count: int, epoch: int, key: Sequence[int]) -> Counts:
    """Returns `count` of these pairs for an epoch, in random order.

    They are read from an endless stream of shuffled passes, whose place is computed: over the
    epochs the numbers of times that two pairs occur differ by at most one.

    Args:
        pairs: to draw from.
        count: how many each epoch has.
        epoch: index of the epoch, from 0.
        key: non-negative numbers that identify the stream.
    """
    if not count:
        return pairs[:0]
    begin = epoch * count
    first, last = begin // len(pairs), (begin + count - 1) // len(pairs)
    passes = [
        np.random.default_rng([*key, number]).permutation(pairs)
        for number in range(first, last + 1)
    ]
    begin -= first * len(pairs)
    return np.concatenate(passes)[begin : begin + count]


# From planned batches to arrays.


def _make_batch(
    corpus: TokenizedCorpus,
    batch: PlannedBatch,
    replicas: int,
    shard: tuple[int, int],
    resample: tuple[Resample | None, Resample | None] | None = None,
    key: tuple[int, ...] = (),
) -> Batch:
    """Makes one worker's rows of a planned batch; rows without a pair are all PAD_ID.

    Arguments as in `training_batches`; `key` is the seed and the indices that identify the batch.
    """
    (rows, source_length, target_length), pairs = batch
    index, count = shard
    own = math.ceil(rows / replicas) * replicas // count
    # Rows that share a seed are sampled together, whichever worker keeps them.
    first = index * own // _GROUP_ROWS * _GROUP_ROWS
    last = math.ceil((index + 1) * own / _GROUP_ROWS) * _GROUP_ROWS
    pairs = pairs[first:last]
    source, labels = (
        gather_rows(ids, offsets, pairs, (last - first, length))
        for ids, offsets, length in (
            (corpus.source_ids, corpus.source_offsets, source_length),
            (corpus.target_ids, corpus.target_offsets, target_length),
        )
    )
    ends = corpus.target_offsets[pairs + 1] - corpus.target_offsets[pairs]
    labels[np.arange(len(pairs)), ends] = EOS_ID
    for side, (matrix, sample) in enumerate(
        zip((source, labels), resample or (None, None), strict=True)
    ):
        if sample is not None:
            _resample_rows(matrix[: len(pairs)], sample, first, (*key, side))
    target = np.full_like(labels, PAD_ID)
    target[: len(pairs), 0] = BOS_ID
    target[:, 1:] = np.where(labels[:, :-1] == EOS_ID, PAD_ID, labels[:, :-1])
    inputs = {"source": source, "target": target}
    kept = slice(index * own - first, (index + 1) * own - first)
    return {name: rows[kept] for name, rows in inputs.items()}, labels[kept]


def _resample_rows(matrix: Ids, resample: Resample, first_row: int, key: tuple[int, ...]) -> None:
    """Replaces sentences in place by sampled segmentations, except where one does not fit.

    Each group of rows has its own seed, so workers that make different rows of a batch sample what
    a single worker would sample for all.

    Args:
        matrix: [rows, length], sentences ended by EOS_ID and padded with PAD_ID.
        resample: samples segmentations from sentences without EOS_ID and a seed below 2**31.
        first_row: index of the first row in its batch, a multiple of `_GROUP_ROWS`.
        key: the seed and the indices that identify the batch and side among those with this seed.
    """
    lengths = (np.count_nonzero(matrix, axis=1) - 1).tolist()
    for start in range(0, len(matrix), _GROUP_ROWS):
        group = range(start, min(start + _GROUP_ROWS, len(matrix)))
        state = np.random.SeedSequence([*key, (first_row + start) // _GROUP_ROWS]).generate_state(1)
        sentences = [matrix[row, : lengths[row]].tolist() for row in group]
        for row, ids in zip(group, resample(sentences, int(state[0]) >> 1), strict=True):
            if len(ids) < matrix.shape[1]:
                matrix[row] = PAD_ID
                matrix[row, : len(ids)] = ids
                matrix[row, len(ids)] = EOS_ID


def _check_shard(replicas: int, shard: tuple[int, int]) -> None:
    index, count = shard
    if not 0 <= index < count or replicas < 1 or replicas % count:
        raise InputError(
            "shard must be the index of a worker, from 0, and the number of workers, which must "
            f"divide the number of replicas; got {shard} and {replicas} replicas"
        )
