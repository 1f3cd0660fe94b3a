"""Agglomerative clustering of (source length, target length), for length bucketing.

Shapes: N sentence pairs, C occupied bins of the histogram.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]

_BIN_RATIO = 1.1  # of each bin's upper edge to the one before


def length_histogram(
    source_lengths: Lengths, target_lengths: Lengths
) -> tuple[npt.NDArray[np.int32], Lengths]:
    """Assigns N pairs to bins of geometrically growing width over both lengths.

    Returns:
        The bin of each pair [N], and each occupied bin's longest source and target [C, 2].
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    edges = [1]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, int(edges[-1] * _BIN_RATIO)))
    band = np.searchsorted(edges, np.arange(longest + 1))  # one-dimensional bin of each length
    key = band[source_lengths] * len(edges) + band[target_lengths]
    occupied = np.flatnonzero(np.bincount(key))
    bin_of_key = np.zeros(len(edges) ** 2, np.int32)
    bin_of_key[occupied] = np.arange(len(occupied))
    bin_of_pair = bin_of_key[key]
    corners = np.zeros((len(occupied), 2), np.int64)
    np.maximum.at(corners[:, 0], bin_of_pair, source_lengths)
    np.maximum.at(corners[:, 1], bin_of_pair, target_lengths)
    return bin_of_pair, corners


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
