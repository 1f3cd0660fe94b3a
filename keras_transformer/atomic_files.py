"""Files that are written whole or not at all, even if the machine loses power."""

import contextlib
import fcntl
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator
from typing import IO


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file such that at any moment its path has the old content or all of the new one.

    The content is written to a temporary file of a random name in the same folder, which is then
    renamed. Temporary files that killed processes have left there are removed. The mode of the
    file is kept. A symbolic link stays, and the file that it points to is replaced. Of several
    writers at once the last one wins. Pipes and devices, such as /dev/stdout, are appended
    to in place.

    Args:
        path: the file, in a folder that exists.
        content: text is encoded as UTF-8.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    path = pathlib.Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if _is_stream(path):
        with path.open("ab") as stream:
            stream.write(data)
        return
    target = pathlib.Path(os.path.realpath(path))
    try:
        with _temporary_file(target) as (temporary, file):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
            sync(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_lock(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a file for `fcntl.flock`, made if missing; never follows a link or waits for a pipe."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return open(os.open(path, flags, 0o666), "r+b", buffering=0)


def sync_tree(folder: pathlib.Path) -> None:
    """Does what `sync` does for a folder and all that is in it."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until the disk holds a file's content, or which files a folder has.

    Without it a power loss after a rename can leave the new name with nothing in it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some network file systems do not sync folders
            raise
    finally:
        os.close(descriptor)


def _is_stream(path: pathlib.Path) -> bool:
    """Whether a path names a pipe, a device or a file that is open already, as /dev/stdout may."""
    is_open = os.path.abspath(path).startswith(("/dev/fd/", "/dev/std", "/proc/"))
    return path.exists() and (is_open or not path.is_file())


@contextlib.contextmanager
def _temporary_file(target: pathlib.Path) -> Iterator[tuple[pathlib.Path, IO[bytes]]]:
    """Makes a locked file beside `target`, with its mode, that is removed unless renamed."""
    prefix = f".{target.name[:40]}.writing-"
    for other in target.parent.iterdir():
        if other.name.startswith(prefix):
            _remove_if_abandoned(other)
    while True:
        path = target.with_name(prefix + secrets.token_hex(16))
        # O_EXCL neither follows a link nor opens a file that is there.
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "wb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            break
        file.close()  # another process removed it before it was locked
    try:
        with file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def _remove_if_abandoned(path: pathlib.Path) -> None:
    """Removes a temporary file whose writer died: the system has released its lock."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), open(os.open(path, flags), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while it is being written
        path.unlink(missing_ok=True)
