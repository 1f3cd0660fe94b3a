"""Parallel text: pairs of sentences from files, their filter by length, and their vocabulary.

A source is two files, where line n of one translates line n of the other, or one file with a tab
between sentence and translation. It can be read any number of times, with only a buffer in memory.
"""

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, file_identity, iterate_lines
from keras_transformer.host import end_with_parent
from keras_transformer.text import Vocabulary, learn_vocabulary

# A sample of this size gives nearly the tokens that all sentences would, in about 1 GB.
_MAX_SENTENCES = 1_000_000
# Up to this size learning takes about 100 MB, and less time than starting a process.
_SMALL_CHARACTERS = 10_000_000


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
        text = cls([], [])
        for source, target in pairs:
            text.source.append(source)
            text.target.append(target)
        return text


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
        source, target = iterate_lines(self.source), iterate_lines(self.target)
        for count, (left, right) in enumerate(itertools.zip_longest(source, target)):
            if left is None or right is None:
                longer = count + 1 + sum(1 for _ in (target if left is None else source))
                lines = (count, longer) if left is None else (longer, count)
                raise InputError(
                    f"parallel files must have the same number of lines: {self.source} has "
                    f"{lines[0]} and {self.target} has {lines[1]}; align them first"
                )
            yield left, right


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
                    f"translation, got {len(targets)} tabs; fix the line"
                )
            yield source, targets[0]


def read_parallel(source_path: Path, target_path: Path) -> ParallelText:
    """Reads two files whose lines translate each other; errors as in `FilePair`."""
    return ParallelText.from_pairs(FilePair(source_path, target_path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthFilter:
    """Drops pairs by their number of tokens, without BOS and EOS.

    Attributes:
        max_length: pairs with more tokens on a side are dropped; None keeps all.
        max_length_ratio: pairs are dropped if one side has more than this many times the tokens of
            the other; None keeps all. Pairs with an empty side are always dropped.

    Example:
        >>> keep, dropped = LengthFilter(max_length=9)(np.array([5, 10]), np.array([0, 4]))
        >>> keep.tolist(), dropped
        ([False, False], {'empty': 1, 'too long': 1, 'length ratio': 0})
    """

    max_length: int | None = None
    max_length_ratio: float | None = None

    def __call__(
        self, source_lengths: npt.NDArray[np.integer], target_lengths: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
        """Returns which of N pairs to keep, bool [N], and the others' number by first reason."""
        shorter = np.minimum(source_lengths, target_lengths)
        longer = np.maximum(source_lengths, target_lengths)
        reasons = {
            "empty": shorter == 0,
            "too long": longer > (self.max_length or np.inf),
            "length ratio": longer / np.maximum(shorter, 1) > (self.max_length_ratio or np.inf),
        }
        keep = np.ones(len(shorter), bool)
        dropped = {}
        for reason, applies in reasons.items():
            dropped[reason] = int(np.count_nonzero(keep & applies))
            keep &= ~applies
        return keep, dropped

    def nothing_left(self, dropped: dict[str, int], text: str = "") -> InputError:
        """Returns the error for a text of which every pair was dropped."""
        found = [f"{dropped['empty']} have an empty side"]
        if self.max_length is not None:
            found.append(f"{dropped['too long']} are longer than {self.max_length} tokens")
        if self.max_length_ratio is not None:
            found.append(
                f"{dropped['length ratio']} have a length ratio above {self.max_length_ratio}"
            )
        return InputError(
            f"no pair of sentences is left of {sum(dropped.values())}{text and f' in {text}'}: "
            + ", ".join(found)
        )


def learn_from_corpus(
    sources: Sequence[PairSource], sides: Sequence[int] = (0, 1), **options: Any
) -> Vocabulary:
    """Learns one vocabulary from a corpus.

    A large text is learned from in a child process, so that its memory is freed. As with all
    spawned processes, a script must call this under `if __name__ == "__main__"`.

    Args:
        sources: the text.
        sides: 0 to learn from sources, 1 from targets, or both.
        **options: of `learn_vocabulary`, such as size and kind.

    Raises:
        InputError: the text cannot be read, or does not support such a vocabulary.
    """
    for source in sources:
        _ = source.identity  # raises for a pipe, which cannot be read twice
    sentences = (pair[side] for pair in itertools.chain.from_iterable(sources) for side in sides)
    characters = itertools.accumulate(map(len, sentences))
    if all(count <= _SMALL_CHARACTERS for count in characters):
        return Vocabulary(_learn(sources, sides, options))
    spawn = multiprocessing.get_context("spawn")
    try:
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=spawn, initializer=end_with_parent
        ) as process:
            return Vocabulary(process.submit(_learn, sources, sides, options).result())
    except BrokenProcessPool as error:
        raise InputError(
            "the process that learns the vocabulary died, perhaps for lack of memory; learn one "
            "from fewer sentences with keras-transformer learn_vocabulary --max_sentences and name "
            "it with --vocabulary"
        ) from error


def _learn(sources: Sequence[PairSource], sides: Sequence[int], options: dict[str, Any]) -> bytes:
    sentences = (pair[side] for pair in itertools.chain.from_iterable(sources) for side in sides)
    return learn_vocabulary(sentences, max_sentences=_MAX_SENTENCES, **options).model_bytes
