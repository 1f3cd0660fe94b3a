"""Agglomerative clustering of (source length, target length), for length bucketing.

Shapes: N sentence pairs from P corpora in W windows, C occupied bins of the histogram.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.windows import SentenceLengths, count_windows, pieces_of

Lengths = npt.NDArray[np.int64]
AnyLengths = Lengths | SentenceLengths

_BIN_RATIO = 1.1  # of each bin's upper edge to the one before
_BANDS = 256  # one-dimensional bins: more than any length that an int32 holds needs


class LengthHistogram(NamedTuple):
    """How many pairs have which lengths, in bins of geometrically growing width over both.

    Attributes:
        keys: [C], of the bins that occur, ascending.
        corners: [C, 2], each bin's longest source and target.
        counts: [W, P, C], pairs.
        tokens: [P], tokens of each corpus, source and target together.
    """

    keys: Lengths
    corners: Lengths
    counts: Lengths
    tokens: Lengths

    def bins_of(self, source_lengths: Lengths, target_lengths: Lengths) -> npt.NDArray[np.int32]:
        """Returns the index of the bin of each pair."""
        bin_of_key = np.zeros(_BANDS**2, np.int32)
        bin_of_key[self.keys] = np.arange(len(self.keys))
        return bin_of_key[_keys(source_lengths, target_lengths)]


def length_histogram(
    source_lengths: AnyLengths, target_lengths: AnyLengths, part_offsets: Lengths
) -> LengthHistogram:
    """Counts the pairs of a corpus by their lengths, a piece of it at a time.

    Args:
        source_lengths: [N].
        target_lengths: [N].
        part_offsets: [P + 1], the first pair of each corpus, and N.
    """
    shape = count_windows(part_offsets), len(part_offsets) - 1
    counts: dict[tuple[int, int], Lengths] = {}
    corners = np.zeros((_BANDS**2, 2), np.int64)
    tokens = np.zeros(shape[1], np.int64)
    for window, part in np.ndindex(shape):
        found = np.zeros(_BANDS**2, np.int64)
        for piece in pieces_of(window, part, part_offsets):
            source, target = source_lengths[piece], target_lengths[piece]
            keys = _keys(source, target)
            found += np.bincount(keys, minlength=len(found))
            np.maximum.at(corners[:, 0], keys, source)
            np.maximum.at(corners[:, 1], keys, target)
            tokens[part] += source.sum() + target.sum()
        occupied = np.flatnonzero(found)
        counts[window, part] = np.stack([occupied, found[occupied]])
    keys = np.flatnonzero(corners[:, 0])
    dense = np.zeros((*shape, len(keys)), np.int64)
    for place, (occupied, found) in counts.items():
        dense[place][np.searchsorted(keys, occupied)] = found
    return LengthHistogram(keys, corners[keys], dense, tokens)


def _keys(source_lengths: Lengths, target_lengths: Lengths) -> Lengths:
    longest = int(max(source_lengths.max(), target_lengths.max()))
    edges = [1]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, int(edges[-1] * _BIN_RATIO)))
    band = np.searchsorted(edges, np.arange(longest + 1))  # of each length
    keys: Lengths = band[source_lengths] * _BANDS + band[target_lengths]
    return keys


def merge_boxes(
    corners: Lengths, counts: npt.NDArray[np.float64], max_boxes: int
) -> Iterator[Lengths]:
    """Merges boxes pairwise down to one, those first whose union adds the least padding.

    Args:
        corners: [C, 2], longest source and target of each box.
        counts: [C], pairs in each box.
        max_boxes: yield no clustering of more boxes than this.

    Yields:
        [K, 2], the corners of K boxes, for each K from `max_boxes` or C down to 1.
    """
    boxes, pairs = corners.copy(), counts.copy()
    alive = np.ones(len(boxes), bool)
    partners = np.zeros(len(boxes), np.int64)  # the cheapest one to merge each box with
    costs = np.full(len(boxes), np.inf)

    def find_partner(box: int) -> npt.NDArray[np.float64]:
        """Updates a box's partner; returns the padding that merging it with each adds, [C]."""
        source, target = boxes.T
        union = np.maximum(source[box], source) + np.maximum(target[box], target)
        cost: npt.NDArray[np.float64] = (pairs[box] + pairs) * union
        cost -= pairs * (source + target) + pairs[box] * boxes[box].sum()
        cost[~alive] = np.inf
        cost[box] = np.inf
        partners[box] = cost.argmin()
        costs[box] = cost[partners[box]]
        return cost

    for box in range(len(boxes)):
        find_partner(box)
    for remaining in range(len(boxes), 0, -1):
        if remaining <= max_boxes:
            yield boxes[alive]
        first = int(costs.argmin())
        second = int(partners[first])
        boxes[first] = np.maximum(boxes[first], boxes[second])
        pairs[first] += pairs[second]
        alive[second] = False
        costs[second] = np.inf
        cost = find_partner(first)
        outdated = alive & ((partners == first) | (partners == second))
        for box in np.flatnonzero(outdated).tolist():
            find_partner(box)
        nearer = cost < costs
        partners[nearer], costs[nearer] = first, cost[nearer]
