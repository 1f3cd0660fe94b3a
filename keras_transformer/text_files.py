"""Lines of text files, read as a stream: plain or gzip-compressed UTF-8."""

import contextlib
import gzip
import io
import itertools
import os
import pathlib
import queue
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import IO

from keras_transformer.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 1 << 18
_FIFO_MESSAGE_S = 2.0  # before the user learns what is waited for
_FIFO_LIMIT_S = 28.0  # and from then on until it is given up

Path = str | os.PathLike[str]


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
        InputError: the file is missing, not a file, empty, damaged, or not UTF-8; or it is a FIFO
            that no process opens for writing within half a minute.
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


def check_text_file(path: pathlib.Path) -> None:
    """Raises `InputError` where there is no file, or a folder in its place."""
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a text file or its .gz")
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a text file or its .gz")


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes, decompressed where it is gzip."""
    check_text_file(path)
    with io.BufferedReader(_open_raw(path), _BUFFER_BYTES) as file:
        if path.suffix == ".gz" or file.peek(2).startswith(_GZIP_MAGIC):
            # GzipFile finds the ends of lines in Python, a buffer around it does so in C.
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield io.BufferedReader(unpacked, _BUFFER_BYTES)
        else:
            yield file


def _open_raw(path: pathlib.Path) -> io.FileIO:
    """Opens a file; for a FIFO, waits a limited time until a process opens it for writing."""
    if not path.is_fifo():
        return io.FileIO(path)
    descriptors: queue.SimpleQueue[int] = queue.SimpleQueue()  # opening blocks, so a thread does it
    opener = threading.Thread(
        target=lambda: descriptors.put(os.open(path, os.O_RDONLY)), daemon=True
    )
    opener.start()
    try:
        with contextlib.suppress(queue.Empty):
            return io.FileIO(descriptors.get(timeout=_FIFO_MESSAGE_S))
        print(f"Waiting for a process to write to the FIFO {path} ...", file=sys.stderr, flush=True)
        return io.FileIO(descriptors.get(timeout=_FIFO_LIMIT_S))
    except BaseException as error:
        with contextlib.suppress(OSError):  # a writer that comes and goes lets the thread end
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            os.close(descriptors.get(timeout=_FIFO_LIMIT_S))
        if not isinstance(error, queue.Empty):
            raise
        raise InputError(
            f"{path} is a FIFO, and no process has opened it for writing; start the one that "
            "writes to it, or give a file"
        ) from None


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
