"""How the other workers know that the first one, which prepares a run, is still alive.

They share nothing but a file system: the first worker touches a file every few seconds.
"""

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

from keras_transformer.errors import InputError, writing

_NAME = "preparing"
_INTERVAL_S = 5.0
# Network file systems cache the time of a file's change for up to a minute.
_SILENCE_S = 300.0


@contextlib.contextmanager
def heartbeat(folder: pathlib.Path) -> Iterator[None]:
    """Touches a file in the folder every few seconds while the block runs, then removes it.

    The folder is made if it is missing, and removed again if the block leaves it empty.

    Raises:
        InputError: the folder cannot be written.
    """
    path, ended = folder / _NAME, threading.Event()
    with writing(f"run directory {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    def beat() -> None:
        while not ended.wait(_INTERVAL_S):
            with contextlib.suppress(OSError):  # a disk that is full for a moment
                path.touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def wait_for_first_worker(folder: pathlib.Path, is_ready: Callable[[], bool]) -> None:
    """Waits until `is_ready`, for as long as the first worker's heartbeat continues.

    Only changes of the file's time count, so that clocks of machines may differ.

    Raises:
        InputError: there has been no heartbeat for five minutes.
    """
    path, last, end = folder / _NAME, None, time.monotonic() + _SILENCE_S
    while not is_ready():
        with contextlib.suppress(OSError):
            if (changed := path.stat().st_mtime_ns) != last:
                last, end = changed, time.monotonic() + _SILENCE_S
        if time.monotonic() > end:
            raise InputError(
                f"the first worker has given no sign of life in {folder} for "
                f"{_SILENCE_S / 60:.0f} minutes; see why it stopped, share the file system of "
                "--run_dir among all workers, and give them the same flags"
            )
        time.sleep(min(0.5, _SILENCE_S / 10))
