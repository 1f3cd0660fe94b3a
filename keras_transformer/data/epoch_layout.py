"""An epoch over given buckets: how many batches each has, and where leftover pairs go.

Shapes: P corpora in W windows, K buckets, C occupied bins of the histogram of lengths.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.length_clusters import Lengths
from keras_transformer.data.mixing import share_out

_ROWS_STEP = 8  # divides evenly over 2, 4 or 8 devices, and suits vector units


class Bucket(NamedTuple):
    """The shape of a batch: source [rows, source_length] and target [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int

    @property
    def row_cells(self) -> int:
        """Cells of one row, padding included."""
        return self.source_length + self.target_length

    @property
    def memory(self) -> float:
        """Estimated memory of a training step, in units of one source token's activations.

        A target token also has logits and their gradients, about twice as much again. Attention
        has scores for all pairs of positions; in the paper's models 256 of them weigh one token.
        """
        source, target = self.source_length, self.target_length
        scores = source * source + source * target + target * target
        return self.rows * (source + 3 * target + scores / 256)


class WindowLayout(NamedTuple):
    """How the pairs that an epoch has of one window are laid out over the buckets.

    Attributes:
        draws: int64 [P, K], pairs of each corpus and bucket in an epoch.
        batches: [K], batches of each bucket in an epoch.
        leftovers_to: [K], the index of the larger bucket that takes the pairs which do not fill a
            batch; the bucket's own index if they stay.
    """

    draws: Lengths
    batches: tuple[int, ...]
    leftovers_to: tuple[int, ...]


class EpochLayout(NamedTuple):
    """An epoch over some buckets: fields of `Bucketing`, all cells, and what it was made from."""

    buckets: tuple[Bucket, ...]
    windows: tuple[WindowLayout, ...]
    bucket_of_bin: npt.NDArray[np.int16]
    cells: int
    boxes: Lengths
    leftovers_move: bool


def lay_out_epoch(
    boxes: Lengths,
    corners: Lengths,
    counts: Lengths,
    quotas: Lengths,
    batch_tokens: int,
    leftovers_move: bool,
) -> EpochLayout:
    """Lays an epoch out over buckets of the given source and target lengths, boxes [K, 2]."""
    largest = [
        Bucket(_most_rows(max(source, target), batch_tokens), source, target)
        for source, target in sorted(boxes.tolist(), key=lambda box: (sum(box), box))
    ]
    bucket_of_bin = _cheapest_cover(corners, largest)
    shares = [share_out(int(q), row) for q, row in zip(quotas, counts.sum(2).T, strict=True)]
    windows, pairs = [], []
    for window, row in enumerate(counts):
        strata = [np.bincount(bucket_of_bin, part, len(largest)) for part in row]  # [P, K]
        draws = np.stack(
            [share_out(int(share[window]), s) for share, s in zip(shares, strata, strict=True)]
        )
        sizes, *rest = assign_leftovers(largest, draws.sum(0).tolist(), leftovers_move)
        windows.append(WindowLayout(draws, *rest))
        pairs.append(sizes)
    batches = [window.batches for window in windows]
    buckets = tuple(
        _without_empty_rows(*each)
        for each in zip(largest, zip(*pairs, strict=True), zip(*batches, strict=True), strict=True)
    )
    cells = sum(sum(n) * b.rows * b.row_cells for *n, b in zip(*batches, buckets, strict=True))
    return EpochLayout(buckets, tuple(windows), bucket_of_bin, cells, boxes, leftovers_move)


def _most_rows(longest: int, batch_tokens: int) -> int:
    """Returns how many rows of a length fit, rounded down to a multiple of 8 if at least 8 do."""
    rows = batch_tokens // longest
    return rows - rows % _ROWS_STEP if rows >= _ROWS_STEP else rows


def _without_empty_rows(bucket: Bucket, pairs: Sequence[int], batches: Sequence[int]) -> Bucket:
    """Returns the bucket with no more rows than its batches in any window [W] need."""
    even = max(math.ceil(n / b) if b else 0 for n, b in zip(pairs, batches, strict=True))
    if not even:
        return bucket
    return bucket._replace(rows=min(bucket.rows, math.ceil(even / _ROWS_STEP) * _ROWS_STEP))


def _cheapest_cover(corners: Lengths, buckets: Sequence[Bucket]) -> npt.NDArray[np.int16]:
    """Returns the index of the first, so smallest, bucket that holds each bin, int16 [C]."""
    shapes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    fits = (corners[:, :1] <= shapes[:, 0]) & (corners[:, 1:] <= shapes[:, 1])  # [C, K]
    smallest: npt.NDArray[np.int16] = np.argmax(fits, axis=1).astype(np.int16)
    return smallest


def assign_leftovers(
    buckets: Sequence[Bucket], pairs: Sequence[int], may_move: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Decides for each bucket which one takes the pairs that do not fill a batch.

    Returns:
        The number of pairs that each bucket then has, and `batches` and `leftovers_to` of
        `Bucketing`.
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
                if may_move and leftovers * larger.row_cells < bucket.rows * bucket.row_cells:
                    home = later
                    pending[later] += leftovers
                    pending[number] -= leftovers
                break
        batches.append(math.ceil(pending[number] / bucket.rows))
        leftovers_to.append(home)
    return tuple(pending), tuple(batches), tuple(leftovers_to)
