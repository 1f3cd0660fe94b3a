"""Which shapes batches have, and which shape each pair of sentences goes to.

XLA compiles a program for each shape, and padding is wasted arithmetic: a few well-chosen shapes
keep both small. `choose_buckets` begins with a fine grid over (source length, target length) and
merges, again and again, the two rectangles whose union costs the least padding, down to one; of
all the stages it takes the one with the fewest shapes that is good enough.

What does not fill a last batch of its bucket moves on to a larger bucket, as long as that costs
less than leaving rows empty. So even small corpora lose little, and the number of batches depends
on the lengths alone: every epoch has the same.

Lengths count the end symbol. A cell is one entry of a source or target matrix.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError

Lengths = npt.NDArray[np.int64]

_GRID_RATIO = 1.1  # between one length of the first grid and the next
_ROWS_STEP = 8  # tensor cores and vector units like multiples of 8


class Bucket(NamedTuple):
    """The shape of a batch: source [rows, source_length] and target [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int

    @property
    def row_cells(self) -> int:
        """Cells of one row, padding included."""
        return self.source_length + self.target_length


class Bucketing(NamedTuple):
    """The buckets of a corpus of N pairs, and what goes where.

    Attributes:
        buckets: ordered by `row_cells`, smallest first.
        bucket_of_pair: int16 [N], the number of each pair's bucket.
        batches: how many batches of each bucket make an epoch.
        leftovers_to: for each bucket, the later one that takes the pairs which do not fill a
            batch; its own number where they stay and the batch's last rows are empty.
        real_share: source and target symbols divided by all cells of an epoch.
    """

    buckets: tuple[Bucket, ...]
    bucket_of_pair: npt.NDArray[np.int16]
    batches: tuple[int, ...]
    leftovers_to: tuple[int, ...]
    real_share: float


def choose_buckets(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    batch_tokens: int,
    max_buckets: int = 96,
    enough_share: float = 0.93,
    rows_multiple: int = 1,
) -> Bucketing:
    """Finds the fewest shapes that leave little padding.

    Args:
        source_lengths: [N], symbols of each source sentence, end included.
        target_lengths: [N], the same of each target sentence.
        batch_tokens: bound on rows * max(source_length, target_length) of a batch.
        max_buckets: bound on the number of shapes.
        enough_share: stop adding shapes when this share of all cells holds real symbols. Where
            no number of shapes reaches it, the best number is taken.
        rows_multiple: divides every batch's rows; the number of replicas that share a batch.

    Raises:
        InputError: `batch_tokens` has no room for `rows_multiple` of the longest sentences.
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    if longest * rows_multiple > batch_tokens:
        raise InputError(
            f"batch_tokens {batch_tokens} has no room for {rows_multiple} of the longest sentences "
            f"({longest} symbols); raise batch_tokens or drop them with max_length"
        )
    cell_of_pair, corners, counts = _grid(source_lengths, target_lengths)
    symbols = int(source_lengths.sum() + target_lengths.sum())
    max_buckets = min(max_buckets, 1 + symbols // (2 * batch_tokens))  # each a batch or more
    stages = list(_merge(corners, counts, max_buckets))
    candidates = (
        _bucketing(boxes, corners, counts, symbols, batch_tokens, rows_multiple)
        for boxes in reversed(stages)
    )
    best = next(candidates)
    for candidate in candidates:
        if best.real_share >= enough_share:
            break
        if candidate.real_share > best.real_share:
            best = candidate
    return best._replace(bucket_of_pair=best.bucket_of_pair[cell_of_pair])


def _bucketing(
    boxes: Lengths,
    corners: Lengths,
    counts: npt.NDArray[np.float64],
    symbols: int,
    batch_tokens: int,
    rows_multiple: int,
) -> Bucketing:
    """Lays an epoch out over the given boxes; `bucket_of_pair` is that of each cell, [C]."""
    buckets = tuple(
        Bucket(_rows(max(source, target), batch_tokens, rows_multiple), source, target)
        for source, target in sorted(boxes.tolist(), key=lambda box: (sum(box), box))
    )
    bucket_of_cell = _cheapest_cover(corners, buckets)
    pairs = np.bincount(bucket_of_cell, counts, len(buckets)).astype(np.int64).tolist()
    batches, leftovers_to = _route_leftovers(buckets, pairs)
    cells = sum(n * b.rows * b.row_cells for n, b in zip(batches, buckets, strict=True))
    return Bucketing(buckets, bucket_of_cell, batches, leftovers_to, symbols / cells)


def _rows(longest: int, batch_tokens: int, multiple: int) -> int:
    """Returns how many rows of a length fit: a multiple of 8 * multiple, or else of multiple."""
    rows = batch_tokens // longest
    step = multiple * _ROWS_STEP if rows >= multiple * _ROWS_STEP else multiple
    return rows - rows % step


def _grid(
    source_lengths: Lengths, target_lengths: Lengths
) -> tuple[npt.NDArray[np.int32], Lengths, npt.NDArray[np.float64]]:
    """Sorts N pairs into the C occupied cells of a geometric grid over both lengths.

    Returns:
        The cell of each pair [N], each cell's longest source and target [C, 2], its pairs [C].
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    edges = [1]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, int(edges[-1] * _GRID_RATIO)))
    band = np.searchsorted(edges, np.arange(longest + 1))  # of each length
    key = band[source_lengths] * len(edges) + band[target_lengths]
    occupied, pairs = np.unique(key, return_counts=True)
    cell_of_key = np.zeros(len(edges) ** 2, np.int32)
    cell_of_key[occupied] = np.arange(len(occupied))
    cell_of_pair = cell_of_key[key]
    corners = np.zeros((len(occupied), 2), np.int64)
    np.maximum.at(corners[:, 0], cell_of_pair, source_lengths)
    np.maximum.at(corners[:, 1], cell_of_pair, target_lengths)
    return cell_of_pair, corners, pairs.astype(np.float64)


def _merge(corners: Lengths, counts: npt.NDArray[np.float64], max_boxes: int) -> Iterator[Lengths]:
    """Merges boxes two by two down to one; yields every stage of at most `max_boxes` [K, 2]."""
    boxes, pairs = corners.copy(), counts.copy()
    alive = np.ones(len(boxes), bool)

    def padding_with(box: int) -> npt.NDArray[np.float64]:
        """Cells that merging a box with each of the others would add, [C]."""
        union = np.maximum(boxes[box], boxes).sum(1)
        cost: npt.NDArray[np.float64] = (pairs[box] + pairs) * union
        cost -= pairs * boxes.sum(1) + pairs[box] * boxes[box].sum()
        cost[~alive] = np.inf
        cost[box] = np.inf
        return cost

    added = np.stack([padding_with(box) for box in range(len(boxes))])  # [C, C]
    for remaining in range(len(boxes), 0, -1):
        if remaining <= max_boxes:
            yield boxes[alive]
        first, second = divmod(int(added.argmin()), len(boxes))
        boxes[first] = np.maximum(boxes[first], boxes[second])
        pairs[first] += pairs[second]
        alive[second] = False
        added[second] = added[:, second] = np.inf
        added[first] = added[:, first] = padding_with(first)


def _cheapest_cover(corners: Lengths, buckets: Sequence[Bucket]) -> npt.NDArray[np.int16]:
    """Returns the number of the first, so smallest, bucket that holds each cell, [C]."""
    shapes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    fits = np.all(corners[:, None] <= shapes, axis=-1)  # [C, K]
    smallest: npt.NDArray[np.int16] = np.argmax(fits, axis=1).astype(np.int16)
    return smallest


def _route_leftovers(
    buckets: Sequence[Bucket], pairs: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Decides for each bucket where the pairs go that do not fill a batch.

    Returns:
        `batches` and `leftovers_to` of `Bucketing`.
    """
    pending = list(pairs)
    batches, leftovers_to = [], []
    for number, bucket in enumerate(buckets):
        leftovers = pending[number] % bucket.rows
        home = number
        for later in range(number + 1, len(buckets)):
            larger = buckets[later]
            if (
                larger.source_length >= bucket.source_length
                and larger.target_length >= bucket.target_length
            ):
                if leftovers * larger.row_cells < bucket.rows * bucket.row_cells:
                    home = later
                    pending[later] += leftovers
                    pending[number] -= leftovers
                break
        batches.append(math.ceil(pending[number] / bucket.rows))
        leftovers_to.append(home)
    return tuple(batches), tuple(leftovers_to)
