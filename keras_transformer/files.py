"""Files and folders that are written whole or not at all, and lines of text files.

A file or folder is written under a temporary name, inside a folder `.writing-HOST-*` beside it, and
renamed when it is complete and on the disk: a process that is killed or a machine that loses power
leaves the old content or all of the new one. A lock marks a folder that is still being written; the
system releases it when the process dies, and the next writer of that machine removes the folder.
Some file systems do not show locks to other machines: these leave a folder alone for a day.
"""

import abc
import bz2
import contextlib
import dataclasses
import fcntl
import functools
import gzip
import hashlib
import io
import itertools
import lzma
import os
import pathlib
import platform
import re
import shutil
import stat
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, ClassVar

from keras_transformer.errors import InputError

Path = str | os.PathLike[str]

CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f]"  # a pattern of Python and of TensorFlow

_ASIDE = ".writing-"
_LOCK = "lock"
_DAY_S = 24 * 3600
# Files that are decompressed while they are read: name, suffix, pattern of the first bytes, reader.
# Text may begin with "BZh" too, but not with what follows it in a packed file: a level, then the
# mark of a block or of the end.
_PACKED: tuple[tuple[str, str, bytes, Callable[[IO[bytes]], Any]], ...] = (
    ("gzip", ".gz", rb"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    ("bzip2", ".bz2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.BZ2File),
    ("xz", ".xz", rb"\xfd7zXZ\x00", lzma.LZMAFile),
)
_MAX_START = 10  # bytes
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER_BYTES = 1 << 18


def local_path(path: Path) -> pathlib.Path:
    """Returns a path on this machine, with the home folder instead of "~".

    Raises:
        InputError: it is the address of a store, such as gs://bucket/run, or begins with "~" and
            the name of no user.
    """
    return pathlib.Path(_expanded(os.fspath(path)))


def local_paths(text: str) -> str:
    """Returns a comma-separated list of paths, each as by `local_path`."""
    return ",".join(_expanded(entry.strip()) for entry in text.split(","))


def _expanded(path: str) -> str:
    if not path.isascii() and sys.getfilesystemencoding() != "utf-8":
        raise InputError(
            f"the path {path} has characters that the locale does not encode in UTF-8, as "
            "TensorFlow does; set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        )
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise InputError(f"{path} is not on this machine; give a local or mounted path")
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        name = expanded.partition("/")[0]
        raise InputError(
            f"there is no user {name[1:]!r} for {path}; a file of that name is ./{path}"
        )
    return expanded


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file such that at any moment its path has the old content or all of the new one.

    The mode of the file is kept. A symbolic link stays, and the file that it points to is replaced.
    Of several writers at once the last one wins. Pipes and devices, such as /dev/stdout, are
    appended to.

    Args:
        path: the file, in a folder that exists.
        content: text is encoded as UTF-8.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    path = local_path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    is_open = os.path.abspath(path).startswith(("/dev/fd/", "/dev/std", "/proc/"))
    if path.exists() and (is_open or not path.is_file()):
        with path.open("ab") as stream:
            stream.write(data)
        return
    target = pathlib.Path(os.path.realpath(path))
    try:
        with temporary_folder(target.parent) as aside:
            temporary = aside / "content"
            with temporary.open("wb") as file:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            sync(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def atomic_folder(
    path: pathlib.Path, is_whole: Callable[[pathlib.Path], bool] | None = None
) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder, renamed to `path` when the block ends without an error.

    If another process finishes first, its folder stays and this one is removed.

    Args:
        path: the folder to make.
        is_whole: returns whether an existing folder can stay; otherwise it is replaced, and its
            mode kept. None makes any existing folder an error.

    Raises:
        OSError: the disk is full or read-only, or the path is taken. Nothing is left behind then,
            nor if the block raises anything.
    """
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_folder(path.parent) as aside:
            yield aside
            for written in aside.rglob("*"):
                sync(written)
            sync(aside)
            if is_whole is not None and path.exists() and not is_whole(path):
                aside.chmod(stat.S_IMODE(path.stat().st_mode))
                shutil.rmtree(path)  # refuses a link
            try:
                aside.rename(path)  # fails where another process put its folder there meanwhile
            except OSError:
                if is_whole is None or not is_whole(path):
                    raise
            (path / _LOCK).unlink(missing_ok=True)
            sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # another process has put something there
            for parent in missing:
                parent.rmdir()
        raise


@contextlib.contextmanager
def temporary_folder(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a locked folder with a random name, which is removed at the end unless renamed.

    Also removes the folders beside it that killed processes have left.
    """
    prefix = f"{_ASIDE}{platform.node()}-"
    for abandoned in parent.glob(f"{_ASIDE}*"):
        if abandoned.is_symlink():  # never made by this module
            continue
        # All but the random part: the host "train" is not the host "train-2".
        is_of_host = f"{abandoned.name.rpartition('-')[0]}-" == prefix
        if not is_of_host and _seconds_unchanged(abandoned) < _DAY_S:
            continue
        with contextlib.suppress(OSError), _open_lock(abandoned) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is being written
            if _is_lock_of(lock, abandoned):
                shutil.rmtree(abandoned, ignore_errors=True)
    while True:
        aside = parent / f"{prefix}{uuid.uuid4().hex}"
        aside.mkdir()
        try:
            lock = _open_lock(aside)
        except FileNotFoundError:
            continue  # another process found the folder before it was locked, and removed it
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_lock_of(lock, aside):
            break
        lock.close()  # removed meanwhile, for the same reason
    with lock:
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _seconds_unchanged(folder: pathlib.Path) -> float:
    """Returns the seconds since anything in a folder was last written."""
    times = [0.0]
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):  # renamed or removed meanwhile
            times.append(path.lstat().st_mtime)
    return time.time() - max(times)


def _open_lock(folder: pathlib.Path) -> IO[bytes]:
    """Opens a folder's lock, made if missing; never follows a link or waits for a pipe."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return open(os.open(folder / _LOCK, flags, 0o666), "r+b", buffering=0)


def _is_lock_of(lock: IO[bytes], folder: pathlib.Path) -> bool:
    """Whether a lock protects a folder: another process may have replaced its file."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), (folder / _LOCK).lstat())
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """Waits until a file's content, or the list of files of a folder, is on the disk.

    Without it a power loss after a rename can leave an empty file under the new name.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some network file systems do not sync folders
            raise
    finally:
        os.close(descriptor)


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
        path: a UTF-8 file, plain or compressed by gzip, bzip2 or xz, by its suffix or its first
            bytes. A byte order mark at its beginning is no part of the text.

    Raises:
        InputError: the file is missing, a folder, empty, damaged, or not UTF-8.
    """
    path = local_path(path)
    with _open(path) as file:
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
    check_text_file(path)
    if not path.is_file():
        raise InputError(f"{path} is read several times; give a file on disk instead of a pipe")
    try:
        stat = path.stat()
        digest = _content_hash(path.resolve(), stat.st_size, stat.st_mtime_ns, stat.st_ino)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return {"size": stat.st_size, "sha256": digest}


@functools.lru_cache
def _content_hash(path: pathlib.Path, *change: int) -> str:
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


def check_text_file(path: pathlib.Path) -> None:
    """Raises `InputError` if the path is missing or a folder."""
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a text file, plain, .gz, .bz2 or .xz")
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a text file, plain, .gz, .bz2 or .xz")


@contextlib.contextmanager
def _open(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes, decompressed if necessary; faults are `InputError`."""
    check_text_file(path)
    kind = None
    try:
        with io.BufferedReader(io.FileIO(path), _BUFFER_BYTES) as file:
            start = file.peek(_MAX_START)
            if start.startswith(_ZSTD_MAGIC):
                raise InputError(f"{path} is packed by zstd; unpack it with: zstd -d {path}")
            formats = [
                (name, unpack)
                for name, suffix, pattern, unpack in _PACKED
                if path.suffix == suffix or re.match(pattern, start)
            ]
            if formats:
                kind, unpack = formats[0]
                # These files find the ends of lines in Python, a buffer around them does so in C.
                with unpack(file) as unpacked:
                    yield io.BufferedReader(unpacked, _BUFFER_BYTES)
            else:
                yield file
    except OSError as error:
        if error.errno is None:
            raise _damaged(path, kind, error) from error
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, kind, error) from error


def _damaged(path: pathlib.Path, kind: str | None, error: Exception) -> InputError:
    return InputError(f"{path} is not a whole {kind} file ({error}); copy or compress it again")
