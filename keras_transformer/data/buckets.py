"""Length bucketing: the shapes of batches, and the bucket of each sentence pair.

XLA compiles a program for each shape, and padding is wasted arithmetic: a few well-chosen shapes
keep both small. `choose_buckets` starts from a fine histogram over (source length, target length)
and greedily merges the two boxes whose union adds the least padding until one is left. Of these
clusterings it takes the one with the fewest shapes that has little enough padding.

Pairs left over from a bucket's last full batch move to a larger bucket if that pads less than
leaving rows empty; otherwise the bucket's batches get fewer rows. Where this still wastes too much,
as with a corpus of few batches, all leftovers stay, in more and smaller batches. A large corpus
is laid out window by window (see `windows.py`), over the same buckets. The number of batches
depends on the lengths alone: it is the same in every epoch and for any number of devices.

Lengths count EOS. A cell is one entry of a source or target matrix, padding included.

Shapes: N pairs from P corpora in W windows, K buckets, C occupied bins of the histogram.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.epoch_layout import Bucket, WindowLayout, lay_out_epoch
from keras_transformer.data.length_clusters import (
    AnyLengths,
    LengthHistogram,
    Lengths,
    length_histogram,
    merge_boxes,
)
from keras_transformer.data.mixing import epoch_quotas
from keras_transformer.errors import InputError


class Bucketing(NamedTuple):
    """The buckets of a corpus, and how an epoch is laid out over them.

    Attributes:
        buckets: [K], ordered by `row_cells`, smallest first.
        windows: [W], the layout of each window.
        source_lengths: [N].
        target_lengths: [N].
        part_offsets: int64 [P + 1], the first pair of each corpus, and N.
        histogram: of the lengths.
        bucket_of_bin: int16 [C], the index of each bin's bucket.
        real_share: share of an epoch's cells that hold tokens, not padding.
    """

    buckets: tuple[Bucket, ...]
    windows: tuple[WindowLayout, ...]
    source_lengths: AnyLengths
    target_lengths: AnyLengths
    part_offsets: Lengths
    histogram: LengthHistogram
    bucket_of_bin: npt.NDArray[np.int16]
    real_share: float

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches of each bucket in an epoch, [K]."""
        return tuple(map(sum, zip(*(window.batches for window in self.windows), strict=True)))

    def buckets_of(self, pairs: slice) -> npt.NDArray[np.int16]:
        """Returns the index of each of these pairs' bucket."""
        lengths = self.source_lengths[pairs], self.target_lengths[pairs]
        return self.bucket_of_bin[self.histogram.bins_of(*lengths)]


def choose_buckets(
    source_lengths: AnyLengths,
    target_lengths: AnyLengths,
    *,
    batch_tokens: int,
    part_offsets: Lengths | None = None,
    histogram: LengthHistogram | None = None,
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
        histogram: of the lengths, where it is known already.
        mix_weights: [P], share of an epoch's pairs that each corpus gives; None means that an
            epoch has every pair once.
        max_buckets: bound on the number of shapes.
        enough_share: stop adding shapes when this share of all cells holds tokens. If no number
            of shapes reaches it, the best one is taken.

    Raises:
        InputError: `batch_tokens` has no room for the longest sentence, or the weights do not
            fit the corpora.
    """
    if part_offsets is None:
        part_offsets = np.array([0, len(source_lengths)])
    if histogram is None:
        histogram = length_histogram(source_lengths, target_lengths, part_offsets)
    corners, counts = histogram.corners, histogram.counts
    longest = int(corners.max())
    if longest > batch_tokens:
        raise InputError(
            f"batch_tokens {batch_tokens} has no room for the longest sentence ({longest} "
            "tokens); raise batch_tokens or drop such sentences with max_length"
        )
    sizes = counts.sum((0, 2))  # [P]
    quotas = epoch_quotas(sizes, mix_weights)
    repeats = quotas / np.maximum(sizes, 1)  # of each corpus's pairs, in an epoch
    tokens = float(repeats @ histogram.tokens)
    max_buckets = min(max_buckets, 1 + int(tokens) // batch_tokens)  # each half a batch or more
    whole = counts.sum(0, keepdims=True)  # candidates are compared as if it were one window
    clusterings = list(merge_boxes(corners, repeats @ whole[0], max_buckets))
    candidates = (
        lay_out_epoch(boxes, corners, whole, quotas, batch_tokens, leftovers_move)
        for leftovers_move in (True, False)
        for boxes in reversed(clusterings)
    )
    best = next(candidates)
    for candidate in candidates:
        if best.cells * enough_share <= tokens:
            break
        best = min(best, candidate, key=lambda layout: layout.cells)
    if len(counts) > 1:
        best = lay_out_epoch(best.boxes, corners, counts, quotas, batch_tokens, best.leftovers_move)
    return Bucketing(
        buckets=best.buckets,
        windows=best.windows,
        source_lengths=source_lengths,
        target_lengths=target_lengths,
        part_offsets=part_offsets,
        histogram=histogram,
        bucket_of_bin=best.bucket_of_bin,
        real_share=tokens / best.cells,
    )
