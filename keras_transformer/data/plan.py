"""The order of batches in an epoch, as a pure function of lengths, seed and epoch number.

A run that resumes needs nothing but its step number to find its place again.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.buckets import Bucket, Bucketing


class PlannedBatch(NamedTuple):
    """A batch to be made: its shape, and the numbers of its pairs, at most `bucket.rows`."""

    bucket: Bucket
    pairs: npt.NDArray[np.int64]


def plan_epoch(
    bucketing: Bucketing, *, epoch: int = 0, seed: int | None = None
) -> list[PlannedBatch]:
    """Deals every pair of the corpus into exactly one batch.

    Args:
        bucketing: from `choose_buckets`.
        epoch: number of the epoch, from 0; each has another order.
        seed: at least 0; with the same one (and the same NumPy) the order is the same. None
            leaves pairs and batches in their natural order: that of buckets, then the corpus.

    Returns:
        The batches in order, `sum(bucketing.batches)` of them whatever the seed and epoch.
    """
    random = None if seed is None else np.random.default_rng([seed, epoch])
    by_bucket = np.argsort(bucketing.bucket_of_pair, kind="stable")
    sizes = np.bincount(bucketing.bucket_of_pair, minlength=len(bucketing.buckets))
    pools = [[pairs] for pairs in np.split(by_bucket, np.cumsum(sizes)[:-1])]
    planned = []
    for number, bucket in enumerate(bucketing.buckets):
        pairs = np.concatenate(pools[number])
        if random is not None:
            random.shuffle(pairs)
        home = bucketing.leftovers_to[number]
        if home != number:
            full = bucketing.batches[number] * bucket.rows
            pools[home].append(pairs[full:])
            pairs = pairs[:full]
        for start in range(0, len(pairs), bucket.rows):
            planned.append(PlannedBatch(bucket, pairs[start : start + bucket.rows]))
    if random is None:
        return planned
    return [planned[index] for index in random.permutation(len(planned))]
