"""Pairs of sentences from files, read as a stream: plain or gzip-compressed UTF-8.

Comes in: two files, where line n of one translates line n of the other, or one file with a tab
between sentence and translation. Goes out: pairs of strings, any number of times, of which only
a buffer is in memory at once.
"""

import contextlib
import dataclasses
import gzip
import io
import itertools
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, Protocol

from keras_transformer.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 1 << 18

Path = str | os.PathLike[str]


class PairSource(Protocol):
    """Pairs of a sentence and its translation that can be gone through again and again.

    `str` of it is what messages call it.
    """

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this text from any other, as JSON values, found without reading it."""

    def __iter__(self) -> Iterator[tuple[str, str]]: ...


class ParallelText(NamedTuple):
    """Sentences and their translations in memory: `target[n]` translates `source[n]`."""

    source: list[str]
    target: list[str]

    @classmethod
    def read(cls, pairs: Iterable[tuple[str, str]]) -> "ParallelText":
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

    Going through it raises `InputError` where a file cannot be read, or they differ in length.

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
                    f"parallel files must have as many lines as each other: {self.source} has "
                    f"{lines[0]} and {self.target} has {lines[1]}; align them first"
                )
            yield left, right


@dataclasses.dataclass(frozen=True)
class TsvFile:
    """A file with a sentence, a tab and its translation on each line.

    Going through it raises `InputError` where it cannot be read, or a line has no tab or several.
    """

    path: Path

    def __str__(self) -> str:
        return os.fspath(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, and what `file_identity` gives."""
        return {"kind": "tsv", "files": [file_identity(self.path)]}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(iterate_lines(self.path), start=1):
            source, *targets = line.split("\t")
            if len(targets) != 1:
                raise InputError(
                    f"{self.path}, line {number}: expected a sentence, one tab and its "
                    f"translation, got {len(targets)} tabs; mend the line"
                )
            yield source, targets[0]


def read_parallel(source_path: Path, target_path: Path) -> ParallelText:
    """Reads two files whose lines translate each other; errors as in `FilePair`."""
    return ParallelText.read(FilePair(source_path, target_path))


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file in memory; see `iterate_lines`."""
    return list(iterate_lines(path))


def iterate_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file without their ends, blank ones included.

    Lines end at a newline, with or without a carriage return before it, and at nothing else:
    other separators that Unicode knows (U+2028, U+0085) occur inside sentences, and splitting
    there would shift one side of a parallel corpus against the other.

    Args:
        path: a UTF-8 file, gzip-compressed where it ends in .gz or begins like gzip. A byte order
            mark at its beginning is no part of the text.

    Raises:
        InputError: the file is missing, not a file, empty, damaged, or not UTF-8.
    """
    with _errors_of(path), _open(pathlib.Path(path)) as file:
        first = file.readline().removeprefix(_BYTE_ORDER_MARK)
        if not first:
            raise InputError(f"{path} is empty; expected one sentence a line")
        for number, line in enumerate(itertools.chain([first], file), start=1):
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
                ) from error


def file_identity(path: Path) -> dict[str, Any]:
    """Returns the place, size in bytes and time of last change of a file.

    Raises:
        InputError: there is no such file, or it cannot be read more than once, like a pipe.
    """
    path = pathlib.Path(path)
    _check_file(path)
    if not path.is_file():
        raise InputError(f"{path} is read several times; give a file on disk in place of a pipe")
    stat = path.stat()
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _check_file(path: pathlib.Path) -> None:
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a text file or its .gz")
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a text file or its .gz")


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes, decompressed where it is gzip."""
    _check_file(path)
    with io.BufferedReader(io.FileIO(path), _BUFFER_BYTES) as file:
        if path.suffix == ".gz" or file.peek(2).startswith(_GZIP_MAGIC):
            # GzipFile finds the ends of lines in Python, a buffer around it does so in C.
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield io.BufferedReader(unpacked, _BUFFER_BYTES)
        else:
            yield file


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a file is read into `InputError`."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole gzip file ({error}); copy or compress it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
