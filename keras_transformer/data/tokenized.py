"""A parallel corpus as token ids, in four flat arrays.

Flat arrays with offsets hold half a billion tokens in 2 GB, are sliced without a Python object
for each sentence, and could as well lie in memory-mapped files.

Shapes: N pairs of sentences.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedCorpus:
    """Pairs of token sequences: pair n has source_ids[source_offsets[n]:source_offsets[n + 1]].

    Attributes:
        source_ids: int32, all source sentences on end, each closed by END_ID.
        source_offsets: int64 [N + 1], where each begins.
        target_ids: int32, all target sentences on end, without start and end symbols, which
            batches add.
        target_offsets: int64 [N + 1], where each begins.
        dropped: number of pairs left out, by reason.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6], []], [[7], [8]])
        >>> len(corpus), corpus.dropped
        (1, {'empty': 1, 'too long': 0})
    """

    source_ids: npt.NDArray[np.int32]
    source_offsets: npt.NDArray[np.int64]
    target_ids: npt.NDArray[np.int32]
    target_offsets: npt.NDArray[np.int64]
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_ids(
        cls,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
    ) -> "TokenizedCorpus":
        """Packs sentences, without the pairs that cannot be trained on.

        Args:
            source: token ids of each sentence, without start and end symbols.
            target: the same for the translations, in the same order.
            max_length: longest sentence to keep on either side, in tokens; None keeps all.

        Raises:
            InputError: the sides differ in length, or no pair is left.
        """
        if len(source) != len(target):
            raise InputError(
                f"source and target must pair up, got {len(source)} and {len(target)} sentences"
            )
        source_lengths, target_lengths = _lengths(source), _lengths(target)
        shorter = np.minimum(source_lengths, target_lengths)
        longer = np.maximum(source_lengths, target_lengths)
        empty = shorter == 0
        too_long = ~empty & (longer > (np.inf if max_length is None else max_length))
        keep = ~(empty | too_long)
        dropped = {"empty": int(empty.sum()), "too long": int(too_long.sum())}
        if not keep.any():
            raise InputError(
                f"no pair of sentences is left of {len(source)}: {dropped['empty']} have an empty "
                f"side, {dropped['too long']} are longer than {max_length} tokens"
            )
        source_offsets = _offsets(source_lengths[keep] + 1)
        ends = source_offsets[1:] - 1
        tokens = np.ones(source_offsets[-1], bool)
        tokens[ends] = False
        source_ids = np.full(source_offsets[-1], END_ID, np.int32)
        source_ids[tokens] = _flatten(itertools.compress(source, keep), len(tokens) - len(ends))
        target_offsets = _offsets(target_lengths[keep])
        return cls(
            source_ids=source_ids,
            source_offsets=source_offsets,
            target_ids=_flatten(itertools.compress(target, keep), target_offsets[-1]),
            target_offsets=target_offsets,
            dropped=dropped,
        )

    def __len__(self) -> int:
        """Returns the number of pairs, N."""
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Source symbols of each pair, int64 [N], the end symbol included."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Target symbols of each pair, int64 [N], the end symbol included."""
        return np.diff(self.target_offsets) + 1


def pad_ids(ids: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Makes a matrix of sentences, filled up with PAD_ID on the right.

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
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    pairs: npt.NDArray[np.int64],
    shape: tuple[int, int],
) -> npt.NDArray[np.int32]:
    """Makes a matrix [rows, length] of some sentences of a flat array; the rest is PAD_ID."""
    rows, length = shape
    starts = offsets[pairs, None]
    columns = np.arange(length)
    real = columns < offsets[pairs + 1, None] - starts
    padded = np.full((rows, length), PAD_ID, np.int32)
    padded[: len(pairs)][real] = ids[(starts + columns)[real]]
    return padded


def _lengths(sentences: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, sentences), np.int64, len(sentences))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])


def _flatten(sentences: Iterable[Sequence[int]], count: int) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(sentences), np.int32, count)
