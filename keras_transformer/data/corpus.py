"""A parallel corpus: pairs of sentences from files, their filter by length, and their token ids.

A source of text is two files, where line n of one translates line n of the other, or one file with
a tab between sentence and translation. It can be read any number of times, with only a buffer in
memory. The token ids are in four flat arrays: with offsets they hold half a billion tokens in 1 GB,
are sliced without a Python object for each sentence, and can be memory-mapped files (see
`token_cache.py`).

Shapes: N pairs of sentences.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, file_identity, iterate_lines

Integers: TypeAlias = npt.NDArray[np.int64]


class PairSource(Protocol):
    """Pairs of a sentence and its translation that can be iterated over repeatedly.

    `str` of it is its name in messages.
    """

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values that are the same for the same text."""

    def __iter__(self) -> Iterator[tuple[str, str]]: ...


class ParallelText(NamedTuple):
    """Sentences and their translations in memory: `target[n]` translates `source[n]`."""

    source: list[str]
    target: list[str]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> "ParallelText":
        """Reads all pairs, for texts as small as a dev or test set.

        Blank sentences stay, so that both sides keep in step; see `TokenizedCorpus.from_ids`.
        """
        pairs = list(pairs)
        return cls([source for source, _ in pairs], [target for _, target in pairs])


@dataclasses.dataclass(frozen=True)
class FilePair:
    """Two files whose lines translate each other.

    Iteration raises `InputError` if a file cannot be read, or they differ in length.

    Example:
        >>> for source, target in FilePair("train.en", "train.de.gz"): ...  # doctest: +SKIP
    """

    source: Path
    target: Path

    def __str__(self) -> str:
        return f"{os.fspath(self.source)} and {os.fspath(self.target)}"

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, and of each file what `file_identity` gives."""
        files = [file_identity(self.source), file_identity(self.target)]
        return {"kind": "file pair", "files": files}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        pairs = itertools.zip_longest(iterate_lines(self.source), iterate_lines(self.target))
        for count, (source, target) in enumerate(pairs):
            if source is None or target is None:
                shorter = self.source if source is None else self.target
                raise InputError(
                    f"{self} must have the same number of lines; {shorter} has only {count}"
                )
            yield source, target


class TsvFile(PairFile):
    """A file with a sentence, a tab and its translation on each line.

    Iteration raises `InputError` if it cannot be read, or a line has no tab or several.
    """

    kind = "tsv"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(iterate_lines(self.path), start=1):
            source, *targets = line.split("\t")
            if len(targets) != 1:
                raise InputError(
                    f"{self.path}, line {number}: expected a sentence, one tab and its "
                    f"translation, got {len(targets)} tabs; to keep two columns: cut -f1,2"
                )
            yield source, targets[0]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedCorpus:
    """Pairs of token sequences: pair n has source_ids[source_offsets[n]:source_offsets[n + 1]].

    Attributes:
        source_ids, target_ids: int32, or uint16 in files of vocabularies of at most 65,536 tokens;
            all sentences of a side concatenated, each ended by EOS_ID.
        source_offsets, target_offsets: int64 [N + 1], where each sentence begins.
        dropped: number of dropped pairs by reason.
        text: a digest of the text, None if it is not from a token cache.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6], []], [[7], [8]])
        >>> len(corpus), corpus.dropped["empty"]
        (1, 1)
    """

    source_ids: npt.NDArray[np.integer]
    source_offsets: npt.NDArray[np.int64]
    target_ids: npt.NDArray[np.integer]
    target_offsets: npt.NDArray[np.int64]
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    text: str | None = None

    @classmethod
    def from_ids(
        cls,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        may_be_empty: bool = False,
        name: str = "",
    ) -> "TokenizedCorpus":
        """Packs sentences, and drops pairs that cannot be trained on: those with an empty side.

        Args:
            source: token ids of each sentence, without BOS and EOS.
            target: the same for the translations, in the same order.
            max_length: pairs with more tokens on a side are dropped; None keeps all.
            may_be_empty: accept a corpus of which no pair is left.
            name: of the text, for the error otherwise.

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
        reasons = {"empty": shorter == 0, "too long": longer > (max_length or np.inf)}
        keep, dropped = np.ones(len(source), bool), {}
        for reason, applies in reasons.items():
            dropped[reason] = int(np.count_nonzero(keep & applies))
            keep &= ~applies
        if not keep.any() and not may_be_empty:
            raise nothing_left(dropped, name)
        source_ids, source_offsets = _concatenate(itertools.compress(source, keep))
        target_ids, target_offsets = _concatenate(itertools.compress(target, keep))
        return cls(
            source_ids=source_ids,
            source_offsets=source_offsets,
            target_ids=target_ids,
            target_offsets=target_offsets,
            dropped=dropped,
        )

    def __len__(self) -> int:
        """Returns the number of pairs, N."""
        return len(self.source_offsets) - 1

    def lengths(self, pairs: Any = slice(None)) -> tuple[Integers, Integers]:
        """Returns the source and target tokens of some pairs, by default all, EOS included."""
        source, target = self.source_offsets, self.target_offsets
        return source[1:][pairs] - source[:-1][pairs], target[1:][pairs] - target[:-1][pairs]


def nothing_left(dropped: Mapping[str, int], name: str = "") -> InputError:
    """Returns the error for a text of which every pair was dropped, by reason."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
    of = f"{sum(dropped.values())} in {name}" if name else str(sum(dropped.values()))
    return InputError(f"no pair of sentences is left of {of}: {reasons}")


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


def _concatenate(sentences: Iterable[Sequence[int]]) -> tuple[npt.NDArray[np.int32], Integers]:
    """Returns the ids of sentences, each ended by EOS_ID, and where each begins."""
    ended = [[*sentence, EOS_ID] for sentence in sentences]
    offsets = np.cumsum([0, *map(len, ended)])
    return _flatten(ended, offsets[-1]), offsets


def _flatten(sentences: Iterable[Sequence[int]], count: int) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(sentences), np.int32, count)
