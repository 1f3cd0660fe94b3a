"""The output of a job that continues after its process was killed.

While the job runs, its output is FILE.part, renamed to FILE at the end. FILE.part.json beside it
says which job it is and how far it has come. It is replaced after each step, when the step's output
is on the disk, so what follows in FILE.part belongs to a step that did not end, and is dropped.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, TypeAlias

from keras_transformer.errors import InputError, writing
from keras_transformer.files import Path, write_atomically

# Lines of the input, and what belongs to them.
LineGroup: TypeAlias = tuple[list[str], list[str]]

_ADVICE = "repeat the command that began it, or add --restart to start anew"


@dataclasses.dataclass
class Progress:
    """How far a job has come.

    Attributes:
        num_lines: lines of the input that are done.
        input_sha256: a hash of these lines.
        has_scores: whether rows have scores.
        num_bytes: the size of their output.
    """

    num_lines: int = 0
    input_sha256: str = ""
    has_scores: bool = False
    num_bytes: int = 0


class PartFile:
    """The output of a job while it is written; made by `open_part`.

    Attributes:
        stream: where to write lines; each is flushed.
        progress: of the job, which the caller counts on.
    """

    def __init__(self, path: pathlib.Path, stream: TextIO, job: Any, progress: Progress) -> None:
        self.stream = stream
        self.progress = progress
        self._path = path
        self._job = job
        self._digest = hashlib.sha256()

    def remaining(self, steps: Iterator[LineGroup]) -> Iterator[LineGroup]:
        """Yields the steps that are left, and records each that the caller has written.

        Raises:
            InputError: the input whose output exists was another one.
        """
        done, num_lines = self.progress, 0
        while num_lines < done.num_lines and (step := next(steps, None)):
            num_lines += len(step[0])
            self._digest.update(json.dumps(step).encode())
        if done.num_lines:
            if (num_lines, self._digest.hexdigest()) != (done.num_lines, done.input_sha256):
                raise InputError(f"{self._path} was begun with another input; {_ADVICE}")
            print(f"Continuing {self._path} after {num_lines:,} lines.", file=sys.stderr)
        for step in steps:
            yield step
            self._digest.update(json.dumps(step).encode())
            self.progress.input_sha256 = self._digest.hexdigest()
            self.record()

    def record(self) -> None:
        """Writes how far the job has come: it continues from here if it is killed later."""
        os.fsync(self.stream.fileno())
        self.progress.num_bytes = os.fstat(self.stream.fileno()).st_size
        content = {"job": self._job, "progress": dataclasses.asdict(self.progress)}
        write_atomically(_record_of(self._path), json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def open_part(
    path: Path, job: Mapping[str, Any], start: Progress, *, restart: bool
) -> Iterator[PartFile]:
    """Yields the output of a job, renamed to its final name when the block ends without an error.

    Args:
        path: the final name.
        job: JSON values that differ between jobs with different output.
        start: the progress of a job that begins.
        restart: whether to start anew, whatever there is of an unfinished job.

    Raises:
        InputError: there is the unfinished output of another job, or another process writes it, or
            it cannot be written.
    """
    target = pathlib.Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is no file; give the name of one, or use standard output")
    part = target.with_name(f"{target.name}.part")
    with writing(str(part)), part.open("a", buffering=1, encoding="utf-8", newline="\n") as stream:
        _lock(stream, part)
        job = json.loads(json.dumps(job))  # as it is read again
        progress = (None if restart else _read_progress(part, job)) or start
        stream.truncate(progress.num_bytes)
        unfinished = PartFile(part, stream, job, progress)
        unfinished.record()
        try:
            yield unfinished
        except BaseException:
            if not unfinished.progress.num_lines:
                part.unlink()
                _record_of(part).unlink()
            raise
        os.fsync(stream.fileno())
        part.replace(target)
        _record_of(part).unlink()


def _record_of(part: pathlib.Path) -> pathlib.Path:
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


def _read_progress(part: pathlib.Path, job: Any) -> Progress | None:
    """Returns how far a job has come; raises `InputError` if another one has written the file."""
    record, size = _record_of(part), part.stat().st_size
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        begun, progress = dict(content["job"]), Progress(**content["progress"])
    except FileNotFoundError:
        if size:
            raise InputError(f"{part} has no {record.name} beside it; {_ADVICE}") from None
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{record} is damaged; {_ADVICE}") from error
    if not progress.num_lines or not size:  # `size` is 0 if it was killed after renaming its output
        return None
    if size < progress.num_bytes:
        raise InputError(f"{part} is shorter than it was; {_ADVICE}")
    if differing := [key for key in {**begun, **job} if begun.get(key) != job.get(key)]:
        raise InputError(
            f"{part} was begun by a job with other values of {', '.join(differing)}; {_ADVICE}"
        )
    return progress
