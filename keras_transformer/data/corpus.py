"""Sentences from files: plain or gzip-compressed UTF-8, one sentence a line.

Two files of equal length make a parallel corpus: line n of one translates line n of the other.
"""

import gzip
import os
import pathlib
import zlib
from typing import NamedTuple

from keras_transformer.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1


class ParallelText(NamedTuple):
    """Sentences and their translations: `target[n]` translates `source[n]`."""

    source: list[str]
    target: list[str]


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Reads the lines of a text file, blank ones included.

    Lines end at a newline, with or without a carriage return before it, and at nothing else:
    other separators that Unicode knows (U+2028, U+0085) occur inside sentences, and splitting
    there would shift one side of a parallel corpus against the other.

    Args:
        path: a UTF-8 file, gzip-compressed where it ends in .gz or begins like gzip.

    Returns:
        The lines without their ends.

    Raises:
        InputError: the file is missing, not a file, empty, damaged, or not UTF-8.
    """
    content = _read_bytes(pathlib.Path(path))
    try:
        text = content.decode("utf-8-sig")  # "sig" drops a byte order mark
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line_number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from error
    if not text:
        raise InputError(f"{path} is empty; expected one sentence a line")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_parallel(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> ParallelText:
    """Reads two files whose lines translate each other.

    Blank lines stay, so that both sides keep in step; see `TokenizedCorpus.from_ids`.

    Raises:
        InputError: a file cannot be read, or they differ in length.

    Example:
        >>> corpus = read_parallel("train.en", "train.de.gz")  # doctest: +SKIP
    """
    text = ParallelText(read_lines(source_path), read_lines(target_path))
    if len(text.source) != len(text.target):
        raise InputError(
            f"parallel files must have as many lines as each other: {source_path} has "
            f"{len(text.source)} and {target_path} has {len(text.target)}; align them first"
        )
    return text


def _read_bytes(path: pathlib.Path) -> bytes:
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a text file or its .gz")
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a text file or its .gz")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix != ".gz" and not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole gzip file ({error}); copy or compress it again"
        ) from error
