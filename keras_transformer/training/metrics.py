"""The metrics of a run: the rows of metrics.jsonl.

A row covers the batches since the row before it: `log_steps` of them, or fewer up to a checkpoint
or validation. docs/reference/run_directory.md lists its values; those that are not of the dev set
are in `TRAINING_VALUES` (tasks/task.py).
"""

import json
import math
import pathlib

from keras_transformer.errors import InputError, writing
from keras_transformer.files import write_atomically

Row = dict[str, float]

MEANS = ("loss", "perplexity", "accuracy", "padding")  # over the batches of a row
TOTALS = ("seconds", "target_tokens")  # these add up over a run


def append_row(path: pathlib.Path, row: Row) -> None:
    """Appends a row to metrics.jsonl, to six significant digits; null for what is not finite."""
    with writing(str(path)), path.open("a", encoding="utf-8") as file:
        file.write(_line(row))


def keep_rows(path: pathlib.Path, step: int) -> list[Row]:
    """Drops the rows beyond a step, and returns the others.

    A killed process wrote them after its last checkpoint, and the resumed run writes them again. A
    last line that was cut short is dropped too.
    """
    rows = [row for row in _rows(path) if row["step"] <= step]
    if path.exists():
        with writing(str(path)):
            write_atomically(path, "".join(map(_line, rows)))
    return rows


def read_metrics(path: pathlib.Path) -> list[Row]:
    """Returns the complete rows of a file, which a run may be writing to; null is read as NaN.

    Raises:
        InputError: there is none, or the file is damaged.
    """
    rows = _rows(path)
    if not rows:
        raise InputError(
            f"no metrics in {path} yet; give the directory of a run that has trained for a while"
        )
    return rows


def training_cost(metrics: pathlib.Path, checkpoint: str) -> dict[str, float]:
    """Returns the totals of a run at a checkpoint, such as "step-300"; of others those at the end.

    The run's file of metrics need not exist.
    """
    _, has_step, step = checkpoint.partition("step-")
    rows = [row for row in _rows(metrics) if not has_step or row["step"] <= int(step)]
    last = rows[-1] if rows else {}
    return {name: last[name] for name in ("step", *TOTALS) if name in last}


def cost_summary(last: Row) -> str:
    """Returns the line to print at the end of a run, from the last row of metrics.jsonl."""
    tokens, seconds = last["target_tokens"], last["seconds"]
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    return (
        f"Trained {last['step']:,} step{'s' * (last['step'] != 1)} on {tokens:,.0f} target tokens "
        f"in {hours}:{minutes:02}:{int(seconds) % 60:02}, {tokens / seconds:,.0f} tokens/s "
        "(without validation and checkpoints)."
    )


def _rows(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a file, without a last one that was cut short; none of a missing file."""
    rows: list[Row] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            row = {name: math.nan if x is None else x for name, x in json.loads(line).items()}
            if "step" not in row or not line.endswith(b"\n"):
                raise ValueError("no step")
            rows.append(row)
        except (ValueError, AttributeError) as error:
            if number < len(lines):
                raise InputError(
                    f"{path} is damaged: line {number} is not a JSON object with a step; remove it"
                ) from error
    return rows


def _line(row: Row) -> str:
    return json.dumps({name: _short(value) for name, value in row.items()}) + "\n"


def _short(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
