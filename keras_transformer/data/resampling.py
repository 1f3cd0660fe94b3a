"""Subword regularization: samples segmentations of a batch's sentences each time it is made.

Each group of rows has its own seed, so that workers that make different rows of a batch sample what
a single worker would sample for all.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID

Resample: TypeAlias = Callable[[Sequence[Sequence[int]], int], Sequence[Sequence[int]]]

# Large groups are fast, as each starts threads in SentencePiece; workers that share one repeat it.
GROUP_ROWS = 32


def resample_rows(
    matrix: npt.NDArray[np.int32],
    resample: Resample,
    *,
    first_row: int,
    key: tuple[int, ...],
) -> None:
    """Replaces sentences in place by sampled segmentations, except where one does not fit.

    Args:
        matrix: [rows, length], sentences ended by EOS_ID and padded with PAD_ID.
        resample: samples segmentations from sentences without EOS_ID and a seed below 2**31.
        first_row: index of the first row in its batch, a multiple of `GROUP_ROWS`.
        key: the seed and the indices that identify the batch among those with this seed.
    """
    seed, *indices = key
    lengths = (np.count_nonzero(matrix, axis=1) - 1).tolist()
    for start in range(0, len(matrix), GROUP_ROWS):
        group = range(start, min(start + GROUP_ROWS, len(matrix)))
        spawn_key = (*indices, (first_row + start) // GROUP_ROWS)
        state = np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(1)
        sentences = [matrix[row, : lengths[row]].tolist() for row in group]
        for row, ids in zip(group, resample(sentences, int(state[0]) >> 1), strict=True):
            if len(ids) < matrix.shape[1]:
                matrix[row] = PAD_ID
                matrix[row, : len(ids)] = ids
                matrix[row, len(ids)] = EOS_ID
