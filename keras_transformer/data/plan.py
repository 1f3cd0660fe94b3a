"""The order of batches in an epoch, as a pure function of lengths, seed and epoch number.

A run resumes from its step number alone.
"""

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.buckets import Bucket, Bucketing
from keras_transformer.data.mixing import draw


class PlannedBatch(NamedTuple):
    """A batch to be made: its shape, and the indices of its pairs, at most `bucket.rows`."""

    bucket: Bucket
    pairs: npt.NDArray[np.int64]


def plan_epoch(
    bucketing: Bucketing, *, epoch: int = 0, seed: int | None = None
) -> list[PlannedBatch]:
    """Partitions the pairs of an epoch into batches.

    Args:
        bucketing: from `choose_buckets`.
        epoch: index of the epoch, from 0; each has another order.
        seed: at least 0; the same one (and the same NumPy) gives the same order. None does not
            shuffle: batches come in the order of buckets, pairs in that of the corpus.

    Returns:
        The batches in order, `sum(bucketing.batches)` for any seed and epoch. With a seed the
        first is one of those that need the most memory, so that a lack of memory shows at the
        start of training.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    moved: list[list[npt.NDArray[np.int64]]] = [[] for _ in bucketing.buckets]
    planned = []
    for number, strata in enumerate(_strata(bucketing)):
        bucket, home = bucketing.buckets[number], bucketing.leftovers_to[number]
        if seed is not None:
            counts = bucketing.draws[:, number].tolist()
            strata = [
                draw(pairs, count, epoch=epoch, seed=seed, stratum=(part, number))
                for part, (pairs, count) in enumerate(zip(strata, counts, strict=True))
            ]
        pairs = np.concatenate(strata + moved[number])
        if seed is not None:
            random.shuffle(pairs)
        if home != number:
            full = bucketing.batches[number] * bucket.rows
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


def _strata(bucketing: Bucketing) -> list[list[npt.NDArray[np.int64]]]:
    """Returns the pairs of each bucket [K] and each of the corpora [P], in order."""
    by_part = []
    for first, last in itertools.pairwise(bucketing.part_offsets.tolist()):
        buckets = bucketing.bucket_of_pair[first:last]
        sizes = np.bincount(buckets, minlength=len(bucketing.buckets))
        pairs = np.argsort(buckets, kind="stable") + first
        by_part.append(np.split(pairs, np.cumsum(sizes)[:-1]))
    return [list(strata) for strata in zip(*by_part, strict=True)]
