"""Folders that are there whole or not at all, whoever makes them and whatever happens meanwhile.

A folder is filled under a name of its own, `.writing-*`, and renamed when it is whole. A process
that dies leaves that one behind; the next one removes it. A lock, which the system takes off a
process that dies, tells those that are still being written.
"""

import contextlib
import fcntl
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterator

from keras_transformer.atomic_files import sync, sync_all

_ASIDE = ".writing-"
_LOCK = "lock"


@contextlib.contextmanager
def atomic_folder(
    path: pathlib.Path, is_whole: Callable[[pathlib.Path], bool] | None = None
) -> Iterator[pathlib.Path]:
    """Gives an empty folder to fill, which has the name `path` once the block ends well.

    Where another process was quicker, its folder stays and this one is removed.

    Args:
        path: the name to be.
        is_whole: tells whether a folder that is there already is what this one would be: then
            it stays, otherwise it is replaced. None means that any such folder is an error.

    Raises:
        OSError: the disk is full, or may not be written to, or the path is taken. Nothing is left
            then, nor where the block raises anything.
    """
    with _parents_of(path), temporary_folder(path.parent) as aside:
        yield aside
        sync_all(aside)
        if is_whole is not None and path.exists() and not is_whole(path):
            shutil.rmtree(path)
        try:
            aside.rename(path)  # refused where another process put its folder there meanwhile
        except OSError:
            if is_whole is None or not is_whole(path):
                raise
        (path / _LOCK).unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def _parents_of(path: pathlib.Path) -> Iterator[None]:
    """Makes the folders above a path, and removes them again if the block raises anything."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # another process has put something there
            for parent in missing:
                parent.rmdir()
        raise


@contextlib.contextmanager
def temporary_folder(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a locked folder of a new name, and removes it in the end if it has that name still.

    Those that processes which died have left beside it are removed too.
    """
    _remove_abandoned(parent)
    while True:
        aside = parent / f"{_ASIDE}{uuid.uuid4().hex}"
        aside.mkdir()
        try:
            lock = open(aside / _LOCK, "wb")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            continue  # another process found the folder before it was locked, and removed it
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (aside / _LOCK).exists():
            break
        lock.close()  # removed meanwhile, for the same reason
    with lock:
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(parent: pathlib.Path) -> None:
    """Removes the folders of processes that died, perhaps before they had a lock."""
    for aside in parent.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError), open(aside / _LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is being written
            shutil.rmtree(aside, ignore_errors=True)
