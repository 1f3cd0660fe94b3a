"""The output file of a long job, which continues where it was killed.

While a job runs, its output is FILE.part; it is renamed to FILE at the end. FILE.part.json beside
it says which job it is and how far it has come. It is replaced after each step, when the step's
output is on the disk, so what follows in FILE.part belongs to a step that did not end, and is
dropped.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from keras_transformer.commands import common
from keras_transformer.errors import InputError, writing
from keras_transformer.files import Path, sync, write_atomically


@dataclasses.dataclass
class Progress:
    """How far a job has come.

    Attributes:
        num_lines: lines of the input that are done.
        input_sha256: a hash of these lines.
        num_failed: how many of them failed.
        has_scores: whether rows have scores, see `line_io.answer_lines`.
        num_bytes: the size of their output.
    """

    num_lines: int = 0
    input_sha256: str = ""
    num_failed: int = 0
    has_scores: bool = False
    num_bytes: int = 0


class PartFile:
    """The output of a job while it is written; made by `open_part`.

    Attributes:
        stream: where to write lines; each is flushed.
        progress: of the last step that ended.
        path: of the unfinished output, for messages.
    """

    def __init__(self, path: pathlib.Path, stream: TextIO, job: Any, progress: Progress) -> None:
        self.path = path
        self.stream = stream
        self.progress = progress
        self._job = job

    def end_step(self, progress: Progress) -> None:
        """Records how far the job has come: it continues from here if it is killed later."""
        os.fsync(self.stream.fileno())
        progress.num_bytes = os.fstat(self.stream.fileno()).st_size
        content = {"job": self._job, "progress": dataclasses.asdict(progress)}
        write_atomically(_record(self.path), json.dumps(content, indent=2) + "\n")
        self.progress = progress


@contextlib.contextmanager
def open_part(path: Path, job: Mapping[str, Any], *, restart: bool) -> Iterator[PartFile]:
    """Yields the output of a job, renamed to its final name when the block ends without an error.

    Args:
        path: the final name.
        job: JSON values that differ between jobs with different output.
        restart: whether to start anew, whatever there is of an unfinished job.

    Raises:
        InputError: there is the unfinished output of another job, or another process writes it, or
            it cannot be written.
    """
    target = pathlib.Path(os.path.realpath(path))
    common.check_output(target)
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is no file; give the name of one, or use standard output")
    part = target.with_name(f"{target.name}.part")
    with writing(str(part)), part.open("a", buffering=1, encoding="utf-8", newline="\n") as stream:
        _lock(stream, part)
        job = json.loads(json.dumps(job))  # as it is read again
        progress = Progress() if restart else _read_progress(part, job)
        stream.truncate(progress.num_bytes)
        unfinished = PartFile(part, stream, job, progress)
        unfinished.end_step(progress)
        try:
            yield unfinished
        except BaseException:
            if not unfinished.progress.num_lines:
                part.unlink()
                _record(part).unlink()
            raise
        os.fsync(stream.fileno())
        part.replace(target)
        sync(target.parent)
        _record(part).unlink()


def _record(part: pathlib.Path) -> pathlib.Path:
    return part.with_name(f"{part.name}.json")


def _lock(stream: TextIO, part: pathlib.Path) -> None:
    """Raises `InputError` if another process writes the file, or has just finished it."""
    is_free = True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = part.exists() and os.path.samestat(os.fstat(stream.fileno()), part.stat())
    except BlockingIOError:
        is_free = False
    except OSError:
        pass  # a file system without locks
    if not is_free:
        raise InputError(f"{part} is written by another process; wait for it, or end it first")


def _read_progress(part: pathlib.Path, job: Any) -> Progress:
    """Returns how far a job has come; raises `InputError` if another one has written the file."""
    size = part.stat().st_size
    advice = "repeat the command that began it, or add --restart to start anew"
    try:
        content = json.loads(_record(part).read_text(encoding="utf-8"))
        begun, progress = dict(content["job"]), Progress(**content["progress"])
    except FileNotFoundError:
        if size:
            raise InputError(f"{part} has no {_record(part).name} beside it; {advice}") from None
        return Progress()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_record(part)} is damaged; {advice}") from error
    if not progress.num_lines or not size:  # `size` is 0 if it was killed after renaming its output
        return Progress()
    if size < progress.num_bytes:
        raise InputError(f"{part} is shorter than it was; {advice}")
    if differing := [key for key in {**begun, **job} if begun.get(key) != job.get(key)]:
        raise InputError(
            f"{part} was begun by a job with other values of {', '.join(differing)}; {advice}"
        )
    return progress
