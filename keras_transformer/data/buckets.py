"""Length bucketing: the shapes of batches, and the bucket of each sentence pair.

XLA compiles a program for each shape, and padding is wasted arithmetic: a few well-chosen shapes
keep both small. `choose_buckets` starts from a fine histogram over (source length, target length)
and greedily merges the two boxes whose union adds the least padding until one is left. Of these
clusterings it takes the one with the fewest shapes that has little enough padding.

Pairs left over from a bucket's last full batch move to a larger bucket if that pads less than
leaving rows empty; otherwise the bucket's batches get fewer rows. Where this still wastes too much,
as with a corpus of few batches, all leftovers stay, in more and smaller batches. The number of
batches depends on the lengths alone: it is the same in every epoch and for any number of devices.

Lengths count EOS. A cell is one entry of a source or target matrix, padding included.

Shapes: N pairs from P corpora, K buckets, C occupied bins of the histogram.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.length_clusters import length_histogram, merge_boxes
from keras_transformer.data.mixing import epoch_quotas, share_out
from keras_transformer.errors import InputError

Lengths = npt.NDArray[np.int64]

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


class Bucketing(NamedTuple):
    """The buckets of a corpus, and how an epoch is laid out over them.

    Attributes:
        buckets: [K], ordered by `row_cells`, smallest first.
        bucket_of_pair: int16 [N], the index of each pair's bucket.
        part_offsets: int64 [P + 1], the first pair of each corpus, and N.
        draws: int64 [P, K], pairs of each corpus and bucket in an epoch.
        batches: [K], batches of each bucket in an epoch.
        leftovers_to: [K], the index of the larger bucket that takes the pairs which do not fill a
            batch; the bucket's own index if they stay.
        real_share: share of an epoch's cells that hold tokens, not padding.
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
    """Chooses the fewest shapes that leave little padding.

    Args:
        source_lengths: [N], tokens of each source sentence, EOS included.
        target_lengths: [N], tokens of each target sentence, EOS included.
        batch_tokens: bound on rows * max(source_length, target_length) of a batch.
        part_offsets: [P + 1], the first pair of each corpus, and N; None means one corpus.
        mix_weights: [P], share of an epoch's pairs that each corpus gives; None means that an
            epoch has every pair once.
        max_buckets: bound on the number of shapes.
        enough_share: stop adding shapes when this share of all cells holds tokens. If no number
            of shapes reaches it, the best one is taken.

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
    bin_of_pair, corners = length_histogram(source_lengths, target_lengths)
    parts = [slice(first, last) for first, last in itertools.pairwise(part_offsets)]
    counts = np.stack([np.bincount(bin_of_pair[part], minlength=len(corners)) for part in parts])
    quotas = epoch_quotas(counts.sum(1), mix_weights)
    repeats = quotas / np.maximum(counts.sum(1), 1)  # of each corpus's pairs, in an epoch
    tokens = float(repeats @ [np.sum(source_lengths[p] + target_lengths[p]) for p in parts])
    max_buckets = min(max_buckets, 1 + int(tokens) // batch_tokens)  # each half a batch or more
    clusterings = list(merge_boxes(corners, repeats @ counts, max_buckets))
    candidates = (
        _lay_out(boxes, corners, counts, quotas, batch_tokens, leftovers_move)
        for leftovers_move in (True, False)
        for boxes in reversed(clusterings)
    )
    best = next(candidates)
    for candidate in candidates:
        if best.cells * enough_share <= tokens:
            break
        best = min(best, candidate, key=lambda layout: layout.cells)
    return Bucketing(
        buckets=best.buckets,
        bucket_of_pair=best.bucket_of_bin[bin_of_pair],
        part_offsets=part_offsets,
        draws=best.draws,
        batches=best.batches,
        leftovers_to=best.leftovers_to,
        real_share=tokens / best.cells,
    )


class _Layout(NamedTuple):
    """An epoch over some buckets: fields of `Bucketing`, the bucket of each bin [C], all cells."""

    buckets: tuple[Bucket, ...]
    bucket_of_bin: npt.NDArray[np.int16]
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
    """Lays an epoch out over buckets of the given source and target lengths, boxes [K, 2]."""
    largest = [
        Bucket(_most_rows(max(source, target), batch_tokens), source, target)
        for source, target in sorted(boxes.tolist(), key=lambda box: (sum(box), box))
    ]
    bucket_of_bin = _cheapest_cover(corners, largest)
    strata = [np.bincount(bucket_of_bin, row, len(largest)) for row in counts]  # [P, K]
    draws = np.stack(
        [share_out(quota, row) for quota, row in zip(quotas.tolist(), strata, strict=True)]
    )
    pairs, batches, leftovers_to = _assign_leftovers(largest, draws.sum(0).tolist(), leftovers_move)
    buckets = tuple(map(_without_empty_rows, largest, pairs, batches))
    cells = sum(n * b.rows * b.row_cells for n, b in zip(batches, buckets, strict=True))
    return _Layout(buckets, bucket_of_bin, draws, batches, leftovers_to, cells)


def _most_rows(longest: int, batch_tokens: int) -> int:
    """Returns how many rows of a length fit, rounded down to a multiple of 8 if at least 8 do."""
    rows = batch_tokens // longest
    return rows - rows % _ROWS_STEP if rows >= _ROWS_STEP else rows


def _without_empty_rows(bucket: Bucket, pairs: int, batches: int) -> Bucket:
    """Returns the bucket with no more rows than its batches need, spread evenly."""
    if not batches:
        return bucket
    even = math.ceil(pairs / batches)
    return bucket._replace(rows=min(bucket.rows, math.ceil(even / _ROWS_STEP) * _ROWS_STEP))


def _cheapest_cover(corners: Lengths, buckets: Sequence[Bucket]) -> npt.NDArray[np.int16]:
    """Returns the index of the first, so smallest, bucket that holds each bin, int16 [C]."""
    shapes = np.array([(bucket.source_length, bucket.target_length) for bucket in buckets])
    fits = (corners[:, :1] <= shapes[:, 0]) & (corners[:, 1:] <= shapes[:, 1])  # [C, K]
    smallest: npt.NDArray[np.int16] = np.argmax(fits, axis=1).astype(np.int16)
    return smallest


def _assign_leftovers(
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
