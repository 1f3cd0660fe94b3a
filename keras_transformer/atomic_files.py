"""Files that are written whole or not at all, also where the machine loses its power."""

import contextlib
import os
import pathlib


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file such that at any moment its path has the old content or all of the new one.

    The content is written to a file beside it, which a crash can leave behind and the next call
    overwrites. What is no plain file, as /dev/stdout, is written to in place.

    Args:
        path: the file, in a folder that exists.
        content: text is encoded as UTF-8.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    path = pathlib.Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
        return
    aside = path.with_name(f".{path.name}.writing")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_all(folder: pathlib.Path) -> None:
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
