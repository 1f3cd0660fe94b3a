"""Windows of a corpus: the parts of an epoch that are bucketed, shuffled and planned one by one.

A corpus of a billion pairs is never sorted or shuffled as a whole. Each of its windows takes every
W-th of many short pieces of each of the corpora, and so is a sample of the whole. A corpus of up to
two million pairs is a single window.

Shapes: N pairs from P corpora in W windows.
"""

import numpy as np
import numpy.typing as npt

WINDOW_PAIRS = 1 << 21
_PIECES = 16  # of each corpus, in a window

Offsets = npt.NDArray[np.int64]


class SentenceLengths:
    """The lengths of N sentences, each slice of them computed from their offsets when needed.

    Args:
        offsets: [N + 1], where each begins.
        extra: added to each length, such as 1 for an EOS that is not stored.
    """

    def __init__(self, offsets: Offsets, extra: int = 0) -> None:
        self._offsets = offsets
        self._extra = extra

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, sentences: slice) -> npt.NDArray[np.int64]:
        first, last, _ = sentences.indices(len(self))
        return np.diff(self._offsets[first : max(first, last) + 1]) + self._extra


def count_windows(part_offsets: Offsets) -> int:
    """Returns W, which is at least 1, from the first pair of each corpus, and N, [P + 1]."""
    return max(1, -(-int(part_offsets[-1]) // WINDOW_PAIRS))


def pieces_of(window: int, part: int, part_offsets: Offsets) -> list[slice]:
    """Returns which pairs of a corpus are in a window, as slices in order."""
    windows = count_windows(part_offsets)
    first, last = part_offsets[part : part + 2].tolist()
    pieces = windows * _PIECES
    edges = [
        (first + (last - first) * piece // pieces, first + (last - first) * (piece + 1) // pieces)
        for piece in range(window, pieces, windows)
    ]
    return [slice(begin, end) for begin, end in edges if begin < end]
