"""What a run measures of its training: rows of numbers, and their file.

A row covers the batches since the row before it: `log_steps` of them, or fewer up to a checkpoint
or validation. metrics.jsonl has one JSON object a line:

step               batches of the run so far
seconds            time spent training so far, by all processes of a resumed run, without
                   validation and checkpoints
loss, perplexity, accuracy, padding
                   over the batches of the row; padding is its share on the target side
train_...          metrics that the model adds, over the same batches
learning_rate      of the next update
tokens_per_second  real target tokens per second, over the same batches
target_tokens      real target tokens so far
flops              floating-point operations of matrix products so far, for real tokens
padded_flops       the same with padding, which the device computes too
skipped_steps      updates skipped so far because their gradient was not finite
val_loss, val_perplexity, val_accuracy, and the metric of the task, for example bleu
                   of the dev set, in rows with a validation; a run that starts from another one
                   also has a row of step 0 with nothing else

The values that are not of the dev set are listed in `TRAINING_VALUES` (tasks/task.py).
"""

import json
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID, TrainingConfig
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, writing
from keras_transformer.models import Seq2SeqModel
from keras_transformer.objectives import TRAINING_PREFIX
from keras_transformer.tasks.task import TRAINING_VALUES

Row = dict[str, float]

_MEANS = ("loss", "perplexity", "accuracy", "padding")
_COUNTED = ("target_tokens", "flops", "padded_flops")  # by the model, since the row before
TOTALS = ("seconds", *_COUNTED)  # these add up over a run


class TrainingMeter:
    """Measures the batches of training, and makes a row of those since the last row.

    The metrics of a batch stay on the device until a row is made, so that training does not
    wait for a GPU after each batch. Metrics add up over all workers, so each of them needs a meter.

    Args:
        model: compiled by `compile_for_training`.
        last: the row of the checkpoint that the run resumes from; None at its beginning.
    """

    def __init__(self, model: Seq2SeqModel, last: Mapping[str, float] | None = None) -> None:
        last = last or {}
        self._model = model
        self._so_far = {name: last.get(name, 0) for name in TOTALS}  # in the newest row
        self._skipped_before = last.get("skipped_steps", 0)  # by earlier processes
        self._begin: float | None = None  # of the first batch that no row covers yet

    def begin_batch(self) -> None:
        """Notes that a batch begins; the first one after a row resets the model's metrics."""
        if self._begin is None:
            self._model.reset_metrics()
            self._begin = time.perf_counter()

    def end_row(self, step: int, values: Mapping[str, Any]) -> Row:
        """Returns the row that ends with a step; waits for the device.

        Args:
            step: updates of the run so far.
            values: the model's metrics since their reset.
        """
        metrics = {name: float(value) for name, value in values.items()}
        seconds = time.perf_counter() - (self._begin or 0.0)
        self._begin = None
        new: Row = {name: round(metrics[name]) for name in _COUNTED if name in metrics}
        new["seconds"] = seconds
        self._so_far = {name: self._so_far[name] + new[name] for name in TOTALS if name in new}
        return {
            "step": step,
            **self._so_far,
            **{
                name: value
                for name, value in metrics.items()
                if name in _MEANS or name.startswith(TRAINING_PREFIX)
            },
            "learning_rate": float(self._model.optimizer.learning_rate),
            "tokens_per_second": new["target_tokens"] / seconds,
            "skipped_steps": self._skipped_before + int(self._model.bad_steps.numpy()),
        }


def first_row(has_flops: bool) -> Row:
    """Returns the row of step 0: no training, to be joined by values of the dev set."""
    totals = ("seconds", *(_COUNTED if has_flops else ("target_tokens",)))
    return {"step": 0, **dict.fromkeys(totals, 0), "skipped_steps": 0}


def dev_values(row: Row) -> Row:
    """Returns the values of a row that describe the dev set, whatever the task."""
    return {
        name: value
        for name, value in row.items()
        if name not in TRAINING_VALUES and not name.startswith(TRAINING_PREFIX)
    }


def append_row(path: pathlib.Path, row: Row) -> None:
    """Appends a row to metrics.jsonl, to six significant digits; null for what is not finite."""
    line = json.dumps({name: _short(value) for name, value in row.items()}) + "\n"
    with writing(str(path)), path.open("a", encoding="utf-8") as file:
        file.write(line)


def keep_rows(path: pathlib.Path, step: int) -> list[Row]:
    """Drops the rows beyond a step, and returns the others.

    A killed process wrote them after its last checkpoint, and the resumed run writes them again. A
    last line that was cut short is dropped too.
    """
    rows, end = _rows(path)
    while rows and rows[-1]["step"] > step:
        rows.pop()
        end.pop()
    if path.exists():
        with writing(str(path)), path.open("r+b") as file:
            file.truncate(end[-1] if end else 0)
    return rows


def read_metrics(path: pathlib.Path) -> list[Row]:
    """Returns the complete rows of a file, which a run may be writing to; null is read as NaN.

    Raises:
        InputError: there is none, or the file is damaged.
    """
    rows, _ = _rows(path)
    if not rows:
        raise InputError(
            f"no metrics in {path} yet; give the directory of a run that has trained for a while"
        )
    return rows


def training_cost(metrics: pathlib.Path, checkpoint: str) -> dict[str, float]:
    """Returns the totals of a run at a checkpoint, such as "step-300"; of others those at the end.

    Args:
        metrics: the run's file of metrics, which need not exist.
        checkpoint: its name.
    """
    _, has_step, step = checkpoint.partition("step-")
    rows = [row for row in _rows(metrics)[0] if not has_step or row["step"] <= int(step)]
    last = rows[-1] if rows else {}
    return {name: last[name] for name in ("step", *TOTALS) if name in last}


def cost_summary(last: Row, training: TrainingConfig) -> list[str]:
    """Returns the lines to print at the end of a run, from the last row of metrics.jsonl."""
    tokens, seconds = last["target_tokens"], last["seconds"]
    hours, minutes = int(seconds) // 3600, int(seconds) // 60 % 60
    lines = [
        f"Trained {last['step']:,} step{'s' * (last['step'] != 1)} on {tokens:,.0f} target tokens "
        f"in {hours}:{minutes:02}:{int(seconds) % 60:02}, {tokens / seconds:,.0f} tokens/s "
        "(without validation and checkpoints).",
    ]
    if "flops" in last:
        lines.append(
            f"Model FLOPs: {last['flops']:.3g}, {last['padded_flops']:.3g} with padding, in "
            f"{training.precision}; {last['flops'] / seconds:.3g} per second."
        )
    return lines


def _rows(path: pathlib.Path) -> tuple[list[Row], list[int]]:
    """Returns the rows of a file and the offset of the end of each; none of a missing file."""
    rows: list[Row] = []
    ends: list[int] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({name: math.nan if x is None else x for name, x in row.items()})
            if "step" not in row or not line.endswith(b"\n"):
                raise ValueError("no step")
        except (ValueError, AttributeError) as error:
            del rows[len(ends) :]
            if number == len(lines):  # cut short
                break
            raise InputError(
                f"{path} is damaged: line {number} is not a JSON object with a step; remove it"
            ) from error
        ends.append(len(line) + (ends[-1] if ends else 0))
    return rows, ends


def _short(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


class TrainingFlops(keras.metrics.Metric):
    """Adds up the floating-point operations of training on the batches seen.

    A model counts the matrix products of its forward pass; the backward pass takes twice as many.
    Embedding lookups, biases, norms, softmax, loss and optimizer are not counted, as in Kaplan et
    al. 2020, section 2.1. "flops" are those of the sentence pairs by their own lengths,
    "padded_flops" those of the matrices with all their padding, which the device computes.

    Args:
        model: its `count_flops` gives the operations of one pair; calls `update_state` if this is
            its `flops_metric`.
    """

    def __init__(self, model: Seq2SeqModel) -> None:
        super().__init__(name="training_flops")
        self._count = model.count_flops
        self.real, self.padded = (
            self.add_variable((), "zeros", "float64", name=name)  # exact up to 2**53
            for name in ("real", "padded")
        )

    def update_state(self, source: Tensor, labels: Tensor) -> None:
        """Counts a batch of ids, source [B, S] and labels [B, T]."""
        sides = [ops.convert_to_tensor(ids) for ids in (source, labels)]
        lengths = [ops.sum(ops.cast(ids != PAD_ID, "float64"), axis=1) for ids in sides]  # [B]
        widths = [ops.cast(ops.shape(ids)[1], "float64") for ids in sides]
        rows = ops.cast(ops.shape(sides[0])[0], "float64")
        self.real.assign_add(3 * ops.sum(self._count(*lengths)))
        self.padded.assign_add(3 * rows * self._count(*widths))

    def result(self) -> dict[str, Tensor]:
        totals = {"flops": self.real, "padded_flops": self.padded}
        # A copy: the variable itself would change later.
        return {name: ops.cast(total, "float64") for name, total in totals.items()}
