"""Other segmentations for the sentences of a batch, drawn anew each time it is made.

Each group of rows has a seed of its own, so that workers which make different rows of a batch
draw what one worker would draw for all.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID

Resample: TypeAlias = Callable[[Sequence[Sequence[int]], int], Sequence[Sequence[int]]]

# Few groups are fast, as each costs a thread in SentencePiece; workers that share one do it twice.
GROUP_ROWS = 32


def resample_rows(
    matrix: npt.NDArray[np.int32],
    resample: Resample,
    *,
    first_row: int,
    key: tuple[int, ...],
) -> None:
    """Replaces sentences by others that `resample` gives; those that would not fit stay.

    Args:
        matrix: [rows, length], sentences that EOS_ID ends, filled up with PAD_ID; changed.
        resample: makes other sentences of sentences without EOS_ID and a seed below 2**31.
        first_row: place of the first row in its batch, a multiple of `GROUP_ROWS`.
        key: a seed and the numbers that set the batch apart from others with this seed.
    """
    seed, *place = key
    lengths = (np.count_nonzero(matrix, axis=1) - 1).tolist()
    for start in range(0, len(matrix), GROUP_ROWS):
        group = range(start, min(start + GROUP_ROWS, len(matrix)))
        numbers = (*place, (first_row + start) // GROUP_ROWS)
        state = np.random.SeedSequence(seed, spawn_key=numbers).generate_state(1)
        sentences = [matrix[row, : lengths[row]].tolist() for row in group]
        for row, ids in zip(group, resample(sentences, int(state[0]) >> 1), strict=True):
            if len(ids) < matrix.shape[1]:
                matrix[row] = PAD_ID
                matrix[row, : len(ids)] = ids
                matrix[row, len(ids)] = EOS_ID
