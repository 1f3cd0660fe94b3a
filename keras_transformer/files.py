"""Paths, lines of text files, and files and folders that are written whole or not at all."""

import abc
import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import itertools
import lzma
import os
import pathlib
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, ClassVar

from keras_transformer.errors import InputError

Path = str | os.PathLike[str]

CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f]"  # a pattern of Python and of TensorFlow

_PREFIX = ".writing-"  # of temporary folders, which a killed process leaves
_BUFFER_BYTES = 1 << 18
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Readers of compressed files, by a pattern of the first bytes. Text may begin with "BZh" too, but
# not with what follows it in a compressed file: a level, then the mark of a block or of the end.
_READERS: dict[bytes, Any] = {
    rb"\x1f\x8b": gzip.open,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.open,
    rb"\xfd7zXZ\x00": lzma.open,
}
# Other formats, by the first bytes of the (decompressed) content, or by a suffix of the name.
_OTHER_FORMATS = {
    rb"\x28\xb5\x2f\xfd": "compressed by zstd",
    rb"PK(\x03\x04|\x05\x06)": "a zip archive",
    rb"PAR1": "a Parquet table",
    rb"(?s).{257}ustar": "a tar archive",
    rb"\s*<\?xml": "XML",
    rb"version https://git-lfs": "a pointer of Git LFS",
}
_OTHER_SUFFIXES = {".csv", ".json", ".jsonl", ".ndjson", ".sgm", ".tmx", ".xlf", ".xml"}


def local_path(path: Path) -> pathlib.Path:
    """Returns a path on this machine, with the home folder instead of "~".

    Raises:
        InputError: it is the address of a store, such as gs://bucket/run.
    """
    text = os.fspath(path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise InputError(f"{text} is not on this machine; give a local or mounted path")
    return pathlib.Path(os.path.expanduser(text))


def local_paths(text: str) -> str:
    """Returns a comma-separated list of paths with the home folder instead of "~"."""
    return ",".join(os.path.expanduser(entry.strip()) for entry in text.split(","))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, in a folder that exists, as `atomic_file` does; text is encoded as UTF-8.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    try:
        with atomic_file(path) as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file to write to, which gets its path when the block ends without an error.

    The mode of an old file is kept. A symbolic link stays, and the file that it points to is
    replaced. Pipes and devices, such as /dev/stdout, are appended to.
    """
    path = local_path(path)
    if str(path).startswith("/dev/") or path.is_fifo():
        with path.open("ab") as file:
            yield file
        return
    target = pathlib.Path(os.path.realpath(path))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=target.parent) as folder:
        written = pathlib.Path(folder, "content")
        with written.open("wb") as file:
            yield file
        sync(written)
        if target.exists():
            shutil.copymode(target, written)
        os.replace(written, target)


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder, renamed to `path` when the block ends without an error.

    Raises:
        OSError: the disk is full or read-only, or there is such a folder already, of another
            process perhaps, which stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=path.parent) as parent:
        folder = pathlib.Path(parent, path.name)  # with the usual mode, which the parent has not
        folder.mkdir()
        yield folder
        for written in folder.rglob("*"):
            if written.is_file():
                sync(written)
        folder.rename(path)


def sync(path: Path) -> None:
    """Waits until a file is on the disk: else a power loss could leave it empty."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def replace_control_characters(text: str) -> str:
    """Returns text with spaces for control characters, which would split lines and columns.

    A vocabulary with byte fallback can generate newlines and tabs.
    """
    return re.sub(CONTROL_CHARACTERS, " ", text)


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file in memory; see `iterate_lines`."""
    return list(iterate_lines(path))


def iterate_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file without their ends, blank ones included.

    Lines end at a newline, with or without a carriage return before it, and at nothing else:
    other separators that Unicode knows (U+2028, U+0085) occur inside sentences, and splitting
    there would shift one side of a parallel corpus against the other.

    Args:
        path: a UTF-8 file, plain or compressed by gzip, bzip2 or xz. A byte order mark at its
            beginning is no part of the text.

    Raises:
        InputError: the file is missing, empty, damaged, not UTF-8, or of another format.
    """
    path = local_path(path)
    with _open(path) as file:
        first = file.readline().removeprefix(_BYTE_ORDER_MARK)
        if not first:
            raise InputError(f"{path} is empty; expected one sentence a line")
        for number, line in enumerate(itertools.chain([first], file), start=1):
            if b"\0" in line:
                raise InputError(f"{path}, line {number}: a NUL byte; convert the file to UTF-8")
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
                ) from error


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a text file for reading bytes, decompressed if necessary; faults are `InputError`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffixes = [suffix for suffix in suffixes if suffix not in (".gz", ".bz2", ".xz")]
    if suffixes and suffixes[-1] in _OTHER_SUFFIXES:
        raise InputError(f"{path} is no text but {suffixes[-1]}; convert it, one sentence a line")
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(io.BufferedReader(io.FileIO(path), _BUFFER_BYTES))
            start = file.peek(10)
            for magic, reader in _READERS.items():
                if re.match(magic, start):
                    # It finds the ends of lines in Python, a buffer around it does so in C.
                    file = io.BufferedReader(stack.enter_context(reader(file)), _BUFFER_BYTES)
            start = file.peek(512)
            for magic, name in _OTHER_FORMATS.items():
                if re.match(magic, start):
                    raise InputError(f"{path} is {name}; unpack it to text, one sentence a line")
            yield file
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be read ({reason}); expected a text file, plain, .gz, .bz2 or .xz"
        ) from error


@dataclasses.dataclass(frozen=True)
class PairFile(abc.ABC):
    """Base of files with pairs of a sentence and its translation, read as a stream."""

    path: Path
    kind: ClassVar[str]

    def __str__(self) -> str:
        return os.fspath(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values that identify the pairs: the kind of the file and its content."""
        return {"kind": self.kind, "files": [file_identity(self.path)]}

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs in order; raises `InputError` for a line that has another format."""


def file_identity(path: Path) -> dict[str, Any]:
    """Returns the size and a hash of the content of a file, which is read once if it is unchanged.

    Raises:
        InputError: there is no such file, or it cannot be read more than once, like a pipe.
    """
    path = local_path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file on disk; expected a text file")
    stat = path.stat()
    return {"size": stat.st_size, "sha256": _hash(path.resolve(), stat.st_size, stat.st_mtime_ns)}


@functools.lru_cache
def _hash(path: pathlib.Path, *change: int) -> str:
    """Returns the SHA-256 of a file, read again only if `change` differs."""
    return sha256([path])


def sha256(paths: Iterable[pathlib.Path]) -> str:
    """Returns the SHA-256 of the contents of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
