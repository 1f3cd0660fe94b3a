"""Mixing corpora: how many pairs of each an epoch has, and which ones.

With weights an epoch has as many pairs as all corpora together, but may sample a corpus in part or
more than once. A stratum is the pairs of one corpus in one bucket: it contributes the same number
of pairs to every epoch, so that every epoch has the same number of batches. They are read from an
endless stream of shuffled passes over the stratum; the offset of an epoch in it is computed, so
that earlier epochs need not be replayed.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from keras_transformer.config.data import check_mix_weights
from keras_transformer.errors import InputError

Counts = npt.NDArray[np.int64]


def epoch_quotas(sizes: Counts, weights: Sequence[float] | None) -> Counts:
    """Returns how many pairs of an epoch come from each corpus, int64 [P].

    Args:
        sizes: [P], pairs of each corpus.
        weights: share of each corpus, on any scale; None means that an epoch has every pair once.

    Raises:
        InputError: there is not one weight above 0 for each corpus, or a corpus has no pairs.
    """
    if weights is None:
        return sizes
    check_mix_weights(weights, len(sizes), ",".join(map(str, weights)))
    if not sizes.all():
        raise InputError(
            f"corpus {int(sizes.argmin()) + 1} of {len(sizes)} has no pairs to mix in; "
            "leave it out, or relax the filters by length"
        )
    return share_out(int(sizes.sum()), np.asarray(weights))


def share_out(total: int, weights: Counts | npt.NDArray[np.float64]) -> Counts:
    """Splits a number in proportion to weights, by the largest remainder method.

    A share whose weight is not 0 is at least 1, even if the sum then exceeds `total`.

    Example:
        >>> share_out(10, np.array([1, 1, 1])).tolist()
        [4, 3, 3]
    """
    if not weights.any():
        return np.zeros(len(weights), np.int64)
    if weights.dtype.kind == "i" and total == weights.sum():
        return weights.astype(np.int64)  # the quotient below would round large numbers
    exact = total * weights / weights.sum()
    shares: Counts = np.maximum(np.floor(exact), weights > 0).astype(np.int64)
    missing = max(0, total - int(shares.sum()))
    shares[np.argsort(shares - exact, kind="stable")[:missing]] += 1
    return shares


def draw_pairs(
    pairs: Counts,
    count: int,
    *,
    epoch: int,
    seed: int | Sequence[int],
    stratum: tuple[int, int],
) -> Counts:
    """Returns the pairs that a stratum contributes to an epoch, in random order.

    Over the epochs the numbers of times that two pairs occur differ by at most one.

    Args:
        pairs: of the stratum.
        count: how many of them each epoch has.
        epoch: index of the epoch, from 0.
        seed: of the order, at least 0.
        stratum: the indices of corpus and bucket.
    """
    if not count:
        return pairs[:0]
    begin = epoch * count
    first, last = begin // len(pairs), (begin + count - 1) // len(pairs)
    passes = [
        np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(*stratum, number))
        ).permutation(pairs)
        for number in range(first, last + 1)
    ]
    begin -= first * len(pairs)
    return np.concatenate(passes)[begin : begin + count]
