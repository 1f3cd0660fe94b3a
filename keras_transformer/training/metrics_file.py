"""metrics.jsonl: the rows of a run, one JSON object a line, each step once and in order."""

import json
import math
import pathlib
from collections.abc import Iterator

from keras_transformer.errors import InputError
from keras_transformer.training.metric_logging import Row


class MetricsFile:
    """Appends rows to a file, from a step of the run on.

    Rows beyond that step, of a process that was killed after its last checkpoint, are dropped,
    and so is a line that was being written then: the run writes them again.

    Args:
        path: the file; made by the first row.
        step: where the run resumes; 0 at its beginning.

    Attributes:
        last: the newest row that is left; None where there is none.

    Raises:
        InputError: the file is damaged or cannot be written.
    """

    def __init__(self, path: pathlib.Path, step: int = 0) -> None:
        self.path = path
        self.last: Row | None = None
        end = 0
        for row, row_end in _rows(path):
            if row["step"] > step:
                break
            self.last, end = row, row_end
        try:
            if path.exists() and path.stat().st_size > end:
                with path.open("r+b") as file:
                    file.truncate(end)
        except OSError as error:
            raise self._cannot_write(error) from error

    def append(self, row: Row) -> None:
        """Writes one row, to six significant digits; what is not a finite number becomes null.

        Raises:
            InputError: the disk does not take it.
        """
        line = json.dumps({name: _short(value) for name, value in row.items()}) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write {self.path} ({error.strerror}); free some space, or make it writable, "
            "and run again: the checkpoints stay"
        )


def read_metrics(path: pathlib.Path) -> list[Row]:
    """Returns the complete rows of a file, which a run may be writing to; null is read as nan.

    Raises:
        InputError: there is none, or the file is damaged.
    """
    rows = [row for row, _ in _rows(path)]
    if not rows:
        raise InputError(
            f"no metrics in {path} yet; give the directory of a run that has trained for a while"
        )
    return rows


def _rows(path: pathlib.Path) -> Iterator[tuple[Row, int]]:
    """Yields each row and the offset of its end; leaves out a last line that is not whole."""
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); make it readable") from error
    end = 0
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is None and number == len(lines):
            return
        if row is None:
            raise InputError(
                f"{path} is damaged: line {number} is no JSON object with a step; remove that line"
            )
        end += len(line)
        yield row, end


def _parse(line: bytes) -> Row | None:
    """Returns the row of a whole line, or None."""
    try:
        row = {name: math.nan if value is None else value for name, value in _object(line).items()}
    except ValueError:
        return None
    return row if "step" in row and line.endswith(b"\n") else None


def _object(line: bytes) -> Row:
    value = json.loads(line)
    return value if isinstance(value, dict) else {}


def _short(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
