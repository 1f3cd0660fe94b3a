"""Batches of rows of similar length, and their results back in the order of the rows."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_padded_length: int | None = None
) -> list[list[int]]:
    """Returns the indices of rows in batches, the longest rows first.

    Rows of similar length share a batch, so that little of it is padding.

    Args:
        lengths: of each row.
        batch_size: the most rows of a batch.
        max_padded_length: the largest product of a batch's rows and its longest length; a longer
            row has a batch of its own. None for no limit.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches = []
    first = 0
    while first < len(order):
        size = batch_size
        if max_padded_length is not None:
            size = min(size, max(max_padded_length // max(lengths[order[first]], 1), 1))
        batches.append(order[first : first + size])
        first += size
    return batches


def in_row_order(
    batches: Sequence[Sequence[int]], results: Iterable[Sequence[Result]]
) -> list[Result]:
    """Returns the result of each row, given the results of each of `batches_by_length`."""
    by_row: dict[int, Result] = {}
    for batch, some in zip(batches, results, strict=True):
        by_row.update(zip(batch, some, strict=True))
    return [by_row[row] for row in range(len(by_row))]
