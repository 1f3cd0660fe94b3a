"""Which shapes batches have, and which shape each pair of sentences goes to.

XLA compiles a program for each shape, and padding is wasted arithmetic: a few well-chosen shapes
keep both small. `choose_buckets` begins with a fine grid over (source length, target length) and
merges, again and again, the two rectangles whose union costs the least padding, down to one; of
all the stages it takes the one with the fewest shapes that is good enough.

What does not fill a last batch of its bucket moves on to a larger bucket, as long as that costs
less than leaving rows empty; where it stays, the batches of the bucket get fewer rows. A corpus of
few batches wastes too much even so: then all stays, in batches that are smaller and more. The
number of batches depends on the lengths alone, so every epoch has the same, and nothing depends
on how many devices share a batch.

Lengths count EOS. A cell is one entry of a source or target matrix.

Shapes: N pairs from P corpora, K buckets, C cells of the grid.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.grid import length_grid, merge_boxes
from keras_transformer.data.mixing import epoch_quotas, share_out
from keras_transformer.errors import InputError

Lengths = npt.NDArray[np.int64]

_ROWS_STEP = 8  # so that 2, 4 or 8 devices get equal parts; vector units like it as well


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
        """About how much memory a training step needs, in that of one source token.

        Beside its activations a target token has its logits, with their gradients about as much
        again twice over; attention has scores for all pairs of positions, which in the paper's
        models weigh as much as a token when there are 256.
        """
        source, target = self.source_length, self.target_length
        scores = source * source + source * target + target * target
        return self.rows * (source + 3 * target + scores / 256)


class Bucketing(NamedTuple):
    """The buckets of a corpus, and what goes where.

    Attributes:
        buckets: [K], ordered by `row_cells`, smallest first.
        bucket_of_pair: int16 [N], the number of each pair's bucket.
        part_offsets: int64 [P + 1], where the pairs of each of the corpora begin.
        draws: int64 [P, K], how many pairs of each corpus and bucket an epoch has.
        batches: [K], how many batches of each bucket make an epoch.
        leftovers_to: for each bucket, the later one that takes the pairs which do not fill a
            batch; its own number where they stay and the batch's last rows are empty.
        real_share: source and target tokens divided by all cells of an epoch.
    """

    buckets: tuple[Bucket, ...]
    bucket_of_pair: npt.NDArray[np.int16]
    part_offsets: npt.NDArray[np.int64]
    draws: npt.NDArray[np.int64]
    batches: tuple[int, ...]
    leftovers_to: tuple[int, ...]
    real_share: float


def choose_buckets(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    batch_tokens: int,
    part_offsets: npt.NDArray[np.int64] | None = None,
    mix_weights: Sequence[float] | None = None,
    max_buckets: int = 96,
    enough_share: float = 0.93,
) -> Bucketing:
    """Finds the fewest shapes that leave little padding.

    Args:
        source_lengths: [N], tokens of each source sentence, end included.
        target_lengths: [N], the same of each target sentence.
        batch_tokens: bound on rows * max(source_length, target_length) of a batch.
        part_offsets: [P + 1], where the pairs of each corpus begin; None means one corpus.
        mix_weights: [P], share of an epoch's pairs that each corpus gives; None means that an
            epoch has every pair once.
        max_buckets: bound on the number of shapes.
        enough_share: stop adding shapes when this share of all cells holds real tokens. Where
            no number of shapes reaches it, the best number is taken.

    Raises:
        InputError: `batch_tokens` has no room for the longest sentence, or the weights do not
            fit the corpora.
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    if longest > batch_tokens:
        raise InputError(
            f"batch_tokens {batch_tokens} has no room for the longest sentence ({longest} "
            "tokens); raise batch_tokens or drop such sentences with max_length"
        )
    if part_offsets is None:
        part_offsets = np.array([0, len(source_lengths)])
    cell_of_pair, corners = length_grid(source_lengths, target_lengths)
    parts = [slice(first, last) for first, last in itertools.pairwise(part_offsets)]
    counts = np.stack([np.bincount(cell_of_pair[part], minlength=len(corners)) for part in parts])
    quotas = epoch_quotas(counts.sum(1), mix_weights)
    repeats = quotas / np.maximum(counts.sum(1), 1)  # of each corpus's pairs, in an epoch
    tokens = float(repeats @ [np.sum(source_lengths[p] + target_lengths[p]) for p in parts])
    max_buckets = min(max_buckets, 1 + int(tokens) // batch_tokens)  # each half a batch or more
    stages = list(merge_boxes(corners, repeats @ counts, max_buckets))
    candidates = (
        _lay_out(boxes, corners, counts, quotas, batch_tokens, leftovers_move)
        for leftovers_move in (True, False)
        for boxes in reversed(stages)
    )
    best = next(candidates)
    for candidate in candidates:
        if best.cells * enough_share <= tokens:
            break
        best = min(best, candidate, key=lambda layout: layout.cells)
    return Bucketing(
        buckets=best.buckets,
        bucket_of_pair=best.bucket_of_cell[cell_of_pair],
        part_offsets=part_offsets,
        draws=best.draws,
        batches=best.batches,
        leftovers_to=best.leftovers_to,
        real_share=tokens / best.cells,
    )


class _Layout(NamedTuple):
    """An epoch over some buckets: fields as in `Bucketing`, the bucket of each cell [C], cells."""

    buckets: tuple[Bucket, ...]
    bucket_of_cell: npt.NDArray[np.int16]
    draws: npt.NDArray[np.int64]
    batches: tuple[int, ...]
    leftovers_to: tuple[int, ...]
    cells: int


def _lay_out(
    boxes: Lengths,
    corners: Lengths,
    counts: Lengths,
    quotas: Lengths,
    batch_tokens: int,
    leftovers_move: bool,
) -> _Layout:
    """Lays an epoch out over the given boxes."""
    largest = [
        Bucket(_most_rows(max(source, target), batch_tokens), source, target)
        for source, target in sorted(boxes.tolist(), key=lambda box: (sum(box), box))
    ]
    bucket_of_cell = _cheapest_cover(corners, largest)
    strata = [np.bincount(bucket_of_cell, row, len(largest)) for row in counts]  # [P, K]
    draws = np.stack(
        [share_out(quota, row) for quota, row in zip(quotas.tolist(), strata, strict=True)]
    )
    pairs, batches, leftovers_to = _route_leftovers(largest, draws.sum(0).tolist(), leftovers_move)
    buckets = tuple(map(_without_empty_rows, largest, pairs, batches))
    cells = sum(n * b.rows * b.row_cells for n, b in zip(batches, buckets, strict=True))
    return _Layout(buckets, bucket_of_cell, draws, batches, leftovers_to, cells)


def _most_rows(longest: int, batch_tokens: int) -> int:
    """Returns how many rows of a length fit; a multiple of 8 where that many do."""
    rows = batch_tokens // longest
    return rows - rows % _ROWS_STEP if rows >= _ROWS_STEP else rows


def _without_empty_rows(bucket: Bucket, pairs: int, batches: int) -> Bucket:
    """Returns the bucket with no more rows than its batches need, spread evenly."""
    if not batches:
        return bucket
    even = math.ceil(pairs / batches)
    return bucket._replace(rows=min(bucket.rows, math.ceil(even / _ROWS_STEP) * _ROWS_STEP))


def _cheapest_cover(corners: Lengths, buckets: Sequence[Bucket]) -> npt.NDArray[np.int16]:
    """Returns the number of the first, so smallest, bucket that holds each cell, [C]."""
    shapes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    fits = (corners[:, :1] <= shapes[:, 0]) & (corners[:, 1:] <= shapes[:, 1])  # [C, K]
    smallest: npt.NDArray[np.int16] = np.argmax(fits, axis=1).astype(np.int16)
    return smallest


def _route_leftovers(
    buckets: Sequence[Bucket], pairs: Sequence[int], may_move: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Decides for each bucket where the pairs go that do not fill a batch.

    Returns:
        Pairs that each bucket then has, and `batches` and `leftovers_to` of `Bucketing`.
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
