"""Rectangles of sentence lengths, from many small ones to a few large ones.

Shapes: N pairs of sentences, C occupied cells of a grid.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]

_GRID_RATIO = 1.1  # between one length of the first grid and the next


def length_grid(
    source_lengths: Lengths, target_lengths: Lengths
) -> tuple[npt.NDArray[np.int32], Lengths]:
    """Sorts N pairs into the C occupied cells of a geometric grid over both lengths.

    Returns:
        The cell of each pair [N], and each cell's longest source and target [C, 2].
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    edges = [1]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, int(edges[-1] * _GRID_RATIO)))
    band = np.searchsorted(edges, np.arange(longest + 1))  # of each length
    key = band[source_lengths] * len(edges) + band[target_lengths]
    occupied = np.flatnonzero(np.bincount(key))
    cell_of_key = np.zeros(len(edges) ** 2, np.int32)
    cell_of_key[occupied] = np.arange(len(occupied))
    cell_of_pair = cell_of_key[key]
    corners = np.zeros((len(occupied), 2), np.int64)
    np.maximum.at(corners[:, 0], cell_of_pair, source_lengths)
    np.maximum.at(corners[:, 1], cell_of_pair, target_lengths)
    return cell_of_pair, corners


def merge_boxes(
    corners: Lengths, counts: npt.NDArray[np.float64], max_boxes: int
) -> Iterator[Lengths]:
    """Merges boxes two by two down to one, those first whose union adds the least padding.

    Args:
        corners: [C, 2], longest source and target of each box.
        counts: [C], pairs in each box.
        max_boxes: largest number of boxes to yield.

    Yields:
        [K, 2], the corners of K boxes, for each K from `max_boxes` or C down to 1.
    """
    boxes, pairs = corners.copy(), counts.copy()
    alive = np.ones(len(boxes), bool)
    partners = np.zeros(len(boxes), np.int64)  # with which each box is merged at the least cost
    costs = np.full(len(boxes), np.inf)

    def find_partner(box: int) -> npt.NDArray[np.float64]:
        """Notes a box's partner; returns the cells that merging it with each would add, [C]."""
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
        bereft = alive & ((partners == first) | (partners == second))
        for box in np.flatnonzero(bereft).tolist():
            find_partner(box)
        nearer = cost < costs
        partners[nearer], costs[nearer] = first, cost[nearer]
