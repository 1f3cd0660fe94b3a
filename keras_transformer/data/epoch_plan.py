"""The order of batches in an epoch, as a pure function of lengths, seed and epoch number.

A run resumes from its step number alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.buckets import Bucketing
from keras_transformer.data.epoch_layout import Bucket
from keras_transformer.data.mixing import draw_pairs
from keras_transformer.data.windows import pieces_of


class PlannedBatch(NamedTuple):
    """A batch to be made: its shape, and the indices of its pairs, at most `bucket.rows`."""

    bucket: Bucket
    pairs: npt.NDArray[np.int64]


def plan_epoch(
    bucketing: Bucketing, *, epoch: int = 0, seed: int | None = None, first_batch: int = 0
) -> Iterator[PlannedBatch]:
    """Partitions the pairs of an epoch into batches, one window of the corpus after the other.

    Args:
        bucketing: from `choose_buckets`.
        epoch: index of the epoch, from 0; each has another order.
        seed: at least 0; the same one (and the same NumPy) gives the same order. None does not
            shuffle: batches come in the order of windows and buckets, pairs in that of the corpus.
        first_batch: batches to skip; windows that hold no others are not planned.

    Yields:
        The batches in order, `sum(bucketing.batches)` for any seed and epoch. With a seed the
        first is one of those that need the most memory, so that a lack of memory shows at the
        start of training.
    """
    order = np.arange(len(bucketing.windows))
    if seed is not None:
        random = np.random.default_rng(np.random.SeedSequence([seed, 0, 1], spawn_key=(epoch,)))
        random.shuffle(order)
        memory = [_most_memory(bucketing, bucketing.windows[window].batches) for window in order]
        first = int(np.argmax(memory))
        order = np.concatenate([order[first : first + 1], np.delete(order, first)])
    for window in order.tolist():
        batches = sum(bucketing.windows[window].batches)
        if first_batch < batches:
            yield from _plan_window(bucketing, window, epoch, seed)[first_batch:]
        first_batch = max(0, first_batch - batches)


def _plan_window(
    bucketing: Bucketing, window: int, epoch: int, seed: int | None
) -> list[PlannedBatch]:
    layout = bucketing.windows[window]
    # Zeros at the end of the entropy change nothing: a corpus of one window needs no number.
    entropy = None if seed is None else [seed, window]
    random = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(epoch,)))
    moved: list[list[npt.NDArray[np.int64]]] = [[] for _ in bucketing.buckets]
    planned = []
    for number, strata in enumerate(_strata(bucketing, window)):
        bucket, home = bucketing.buckets[number], layout.leftovers_to[number]
        if entropy is not None:
            counts = layout.draws[:, number].tolist()
            strata = [
                draw_pairs(pairs, count, epoch=epoch, seed=entropy, stratum=(part, number))
                for part, (pairs, count) in enumerate(zip(strata, counts, strict=True))
            ]
        pairs = np.concatenate(strata + moved[number])
        if seed is not None:
            random.shuffle(pairs)
        if home != number:
            full = layout.batches[number] * bucket.rows
            moved[home].append(pairs[full:])
            pairs = pairs[:full]
        for start in range(0, len(pairs), bucket.rows):
            planned.append(PlannedBatch(bucket, pairs[start : start + bucket.rows]))
    if seed is None:
        return planned
    shuffled = [planned[index] for index in random.permutation(len(planned))]
    largest = max({batch.bucket for batch in shuffled}, key=lambda bucket: (bucket.memory, bucket))
    first = next(index for index, batch in enumerate(shuffled) if batch.bucket == largest)
    return [shuffled.pop(first), *shuffled]


def _most_memory(bucketing: Bucketing, batches: Sequence[int]) -> float:
    """Returns the memory of the largest batch where each bucket has so many, [K]."""
    buckets = zip(bucketing.buckets, batches, strict=True)
    return max((bucket.memory for bucket, count in buckets if count), default=0)


def _strata(bucketing: Bucketing, window: int) -> list[list[npt.NDArray[np.int64]]]:
    """Returns a window's pairs of each bucket [K] and each of the corpora [P], in order."""
    by_part = []
    for part in range(len(bucketing.part_offsets) - 1):
        pieces = pieces_of(window, part, bucketing.part_offsets)
        none = np.zeros(0, np.int64)
        pairs = np.concatenate([none, *(np.arange(each.start, each.stop) for each in pieces)])
        buckets = np.concatenate([none, *map(bucketing.buckets_of, pieces)]).astype(np.int16)
        sizes = np.bincount(buckets, minlength=len(bucketing.buckets))
        order = np.argsort(buckets, kind="stable")
        by_part.append(np.split(pairs[order], np.cumsum(sizes)[:-1]))
    return [list(strata) for strata in zip(*by_part, strict=True)]
