"""Folders that are there whole or not at all.

A folder is filled under a temporary name, `.writing-*`, and renamed when it is complete. A process
that dies leaves the temporary folder behind, and the next one removes it. A lock, which the system
releases when a process dies, marks those that are still being written.
"""

import contextlib
import fcntl
import pathlib
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator

from keras_transformer.atomic_files import open_lock, sync, sync_tree

_ASIDE = ".writing-"
_LOCK = "lock"


@contextlib.contextmanager
def atomic_folder(
    path: pathlib.Path, is_whole: Callable[[pathlib.Path], bool] | None = None
) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder, renamed to `path` when the block ends without an error.

    If another process finishes first, its folder stays and this one is removed.

    Args:
        path: the folder to make.
        is_whole: tells whether an existing folder is what this one would be: then it stays,
            otherwise it is replaced and its mode kept. None makes any existing folder an error.

    Raises:
        OSError: the disk is full or read-only, or the path is taken. Nothing is left behind then,
            nor if the block raises anything.
    """
    with _parents_of(path), temporary_folder(path.parent) as aside:
        yield aside
        sync_tree(aside)
        if is_whole is not None and path.exists() and not is_whole(path):
            aside.chmod(stat.S_IMODE(path.stat().st_mode))
            shutil.rmtree(path)  # refuses a link
        try:
            aside.rename(path)  # refused where another process put its folder there meanwhile
        except OSError:
            if is_whole is None or not is_whole(path):
                raise
        (path / _LOCK).unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def _parents_of(path: pathlib.Path) -> Iterator[None]:
    """Makes the parents of a path, and removes them again if the block raises anything."""
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
    """Makes a locked folder of a random name, which is removed at the end unless renamed.

    Those that killed processes have left beside it are removed too.
    """
    _remove_abandoned(parent)
    while True:
        aside = parent / f"{_ASIDE}{uuid.uuid4().hex}"
        aside.mkdir()
        try:
            lock = open_lock(aside / _LOCK)
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
        if aside.is_symlink():  # never made by this module
            continue
        with contextlib.suppress(OSError), open_lock(aside / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is being written
            shutil.rmtree(aside, ignore_errors=True)
