"""A parallel corpus as token ids, in four flat arrays.

Flat arrays with offsets hold half a billion tokens in 1 GB, are sliced without a Python object for
each sentence, and can be memory-mapped files (see `token_cache.py`).

Shapes: N pairs of sentences from P corpora, W windows, R rungs of the ladder of lengths.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.data.sources import LengthFilter
from keras_transformer.errors import InputError


class LengthCounts(NamedTuple):
    """How many pairs of a corpus have which lengths, rounded up to the rungs of a ladder.

    Attributes:
        ladder: int64 [R], ascending; the last rung is the longest sentence of either side.
        pairs: int32 [W, P, R, R], pairs by window, corpus, source rung and target rung; see
            `count_lengths` in `batches.py`.
    """

    ladder: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedCorpus:
    """Pairs of token sequences: pair n has source_ids[source_offsets[n]:source_offsets[n + 1]].

    Attributes:
        source_ids: int32, or uint16 in files; all source sentences concatenated, each ended by
            EOS_ID.
        source_offsets: int64 [N + 1], where each begins.
        target_ids: int32, or uint16 in files; all target sentences concatenated, without BOS and
            EOS, which batches add.
        target_offsets: int64 [N + 1], where each begins.
        part_offsets: int64 [P + 1]: pairs part_offsets[p]:part_offsets[p + 1] are of corpus p.
        length_counts: of the pairs, if they are stored with the ids.
        dropped: number of dropped pairs by reason.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6], []], [[7], [8]])
        >>> len(corpus), corpus.dropped["empty"]
        (1, 1)
    """

    source_ids: npt.NDArray[np.integer]
    source_offsets: npt.NDArray[np.int64]
    target_ids: npt.NDArray[np.integer]
    target_offsets: npt.NDArray[np.int64]
    part_offsets: npt.NDArray[np.int64]
    length_counts: LengthCounts | None = None
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_ids(
        cls,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        max_length_ratio: float | None = None,
        may_be_empty: bool = False,
    ) -> "TokenizedCorpus":
        """Packs sentences, and drops pairs that cannot be trained on.

        Args:
            source: token ids of each sentence, without BOS and EOS.
            target: the same for the translations, in the same order.
            max_length, max_length_ratio: see `LengthFilter`.
            may_be_empty: accept a corpus of which no pair is left.

        Raises:
            InputError: the sides differ in length, or no pair is left.
        """
        if len(source) != len(target):
            raise InputError(
                f"source and target must pair up, got {len(source)} and {len(target)} sentences"
            )
        length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
        source_lengths, target_lengths = _lengths(source), _lengths(target)
        keep, dropped = length_filter(source_lengths, target_lengths)
        if not keep.any() and not may_be_empty:
            raise length_filter.nothing_left(dropped)
        source_offsets = np.cumsum([0, *(source_lengths[keep] + 1)])
        target_offsets = np.cumsum([0, *target_lengths[keep]])
        ends = source_offsets[1:] - 1
        source_ids = np.full(source_offsets[-1], EOS_ID, np.int32)
        tokens = np.ones(len(source_ids), bool)
        tokens[ends] = False
        source_ids[tokens] = _flatten(itertools.compress(source, keep), len(tokens) - len(ends))
        return cls(
            source_ids=source_ids,
            source_offsets=source_offsets,
            target_ids=_flatten(itertools.compress(target, keep), target_offsets[-1]),
            target_offsets=target_offsets,
            part_offsets=np.array([0, len(ends)]),
            dropped=dropped,
        )

    def __len__(self) -> int:
        """Returns the number of pairs, N."""
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Source tokens of each pair, int64 [N], EOS included."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Target tokens of each pair, int64 [N], EOS included."""
        return np.diff(self.target_offsets) + 1


def pad_ids(ids: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Makes a matrix of sentences, padded with PAD_ID on the right.

    Returns:
        int32 [number of sentences, length of the longest].

    Example:
        >>> pad_ids([[4, 5, 6], [7]]).tolist()
        [[4, 5, 6], [7, 0, 0]]
    """
    lengths = _lengths(ids)
    length = int(lengths.max(initial=0))
    padded = np.full((len(ids), length), PAD_ID, np.int32)
    padded[np.arange(length) < lengths[:, None]] = _flatten(ids, lengths.sum())
    return padded


def gather_rows(
    ids: npt.NDArray[np.integer],
    offsets: npt.NDArray[np.int64],
    pairs: npt.NDArray[np.int64],
    shape: tuple[int, int],
) -> npt.NDArray[np.int32]:
    """Makes a matrix of sentences from a flat array, padded with PAD_ID, int32 [rows, length]."""
    rows, length = shape
    starts = offsets[pairs, None]
    columns = np.arange(length)
    real = columns < offsets[pairs + 1, None] - starts
    padded = np.full((rows, length), PAD_ID, np.int32)
    padded[: len(pairs)][real] = ids[(starts + columns)[real]]
    return padded


def _lengths(sentences: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, sentences), np.int64, len(sentences))


def _flatten(sentences: Iterable[Sequence[int]], count: int) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(sentences), np.int32, count)
