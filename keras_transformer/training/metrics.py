"""What a run measures of its training: rows of numbers, and the files that they go to.

A row covers the batches since the row before it: `log_steps` of them, or fewer up to a checkpoint
or validation. It goes to metrics.jsonl, to the terminal (see `progress.py`) and, if wanted, to
TensorBoard.

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

import contextlib
import json
import math
import pathlib
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import PAD_ID, TrainingConfig
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.models import Seq2SeqModel
from keras_transformer.objectives import TRAINING_PREFIX
from keras_transformer.tasks import VALIDATION_METRICS, Metric
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
        self._logs: Mapping[str, Any] = {}  # of the newest batch

    @property
    def has_values(self) -> bool:
        """Whether the metrics of any batch are known: of several devices, only for each row."""
        return bool(self._logs)

    def begin_batch(self) -> None:
        """Notes that a batch begins; the first one after a row resets the model's metrics."""
        if self._begin is None:
            self._model.reset_metrics()
            self._begin = time.perf_counter()

    def end_batch(self, logs: Mapping[str, Any]) -> None:
        """Takes what the model returned for a batch: its metrics since their reset."""
        self._logs = logs

    def row_so_far(self, step: int) -> Row:
        """Returns a row of the batches since the last one; waits for the device."""
        metrics = {name: float(value) for name, value in self._logs.items()}
        if self._begin is None:
            raise RuntimeError("no batch has begun")
        seconds = time.perf_counter() - self._begin
        new: Row = {name: round(metrics[name]) for name in _COUNTED if name in metrics}
        new["seconds"] = seconds
        return {
            "step": step,
            **{name: self._so_far[name] + new[name] for name in TOTALS if name in new},
            **{
                name: value
                for name, value in metrics.items()
                if name in _MEANS or name.startswith(TRAINING_PREFIX)
            },
            "learning_rate": float(self._model.optimizer.learning_rate),
            "tokens_per_second": new["target_tokens"] / seconds,
            "skipped_steps": self._skipped_before + int(self._model.bad_steps.numpy()),
        }

    def end_row(self, step: int) -> Row:
        """Returns a row as `row_so_far` does; the next batch begins another."""
        row = self.row_so_far(step)
        self._so_far |= {name: row[name] for name in TOTALS if name in row}
        self._begin = None
        return row


def first_row(has_flops: bool) -> Row:
    """Returns the row of step 0: no training, to be joined by values of the dev set."""
    totals = ("seconds", *(_COUNTED if has_flops else ("target_tokens",)))
    return {"step": 0, **dict.fromkeys(totals, 0), "skipped_steps": 0}


def with_dev_values(row: Row, values: Mapping[str, float], metrics: Sequence[Metric]) -> Row:
    """Returns a row that also has the validation metrics, and those of the task, among `values`."""
    names = [metric.name for metric in (*VALIDATION_METRICS, *metrics)]
    return row | {name: values[name] for name in names if name in values}


def dev_values(row: Row) -> Row:
    """Returns the values of a row that describe the dev set, whatever the task."""
    return {
        name: value
        for name, value in row.items()
        if name not in TRAINING_VALUES and not name.startswith(TRAINING_PREFIX)
    }


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


class MetricsFile:
    """Appends rows to metrics.jsonl, one JSON object per line, from a step of the run on.

    Rows beyond that step, which a killed process wrote after its last checkpoint, are dropped, as
    is a line that was cut short: the run writes them again. Warns if the row of the step is
    missing, and with it the tokens and FLOPs so far.

    Args:
        path: the file; made by the first row.
        step: where the run resumes; 0 at its beginning.

    Attributes:
        last: the newest row that is left; None if there is none.

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
        last_step = self.last["step"] if self.last else 0
        if last_step < step:
            message = (
                f"{path} lacks the rows after step {last_step:,.0f}: time, tokens and FLOPs of the "
                f"run will be those without the updates up to step {step:,}"
            )
            warnings.warn(message, stacklevel=2)
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

    def rows(self) -> list[Row]:
        """Returns all rows."""
        return [row for row, _ in _rows(self.path)]

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write {self.path} ({error.strerror}); free some space, or make it writable, "
            "and run again: the checkpoints stay"
        )


def training_cost(metrics: pathlib.Path, checkpoint: str) -> dict[str, float]:
    """Returns the totals of a run at a checkpoint, such as "step-300"; of others those at the end.

    Args:
        metrics: the run's file of metrics, which need not exist.
        checkpoint: its name.
    """
    _, has_step, step = checkpoint.partition("step-")
    rows = read_metrics(metrics) if metrics.exists() else []
    *_, last = [{}, *(row for row in rows if not has_step or row["step"] <= int(step))]
    return {name: last[name] for name in ("step", *TOTALS) if name in last}


def read_metrics(path: pathlib.Path) -> list[Row]:
    """Returns the complete rows of a file, which a run may be writing to; null is read as NaN.

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
    """Yields each row and the offset of its end; skips a last line that is cut short."""
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
                f"{path} is damaged: line {number} is not a JSON object with a step; remove it"
            )
        end += len(line)
        yield row, end


def _parse(line: bytes) -> Row | None:
    """Returns the row of a whole line, or None."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not (isinstance(row, dict) and "step" in row and line.endswith(b"\n")):
        return None
    return {name: math.nan if value is None else value for name, value in row.items()}


def _short(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


class TensorBoardLog:
    """Writes rows as two TensorBoard runs, "train" and "dev", which share their charts.

    What earlier processes wrote there is replaced by the rows of metrics.jsonl: some of it may be
    of updates after the checkpoint that the run resumes from. A disk that is full ends the log, and
    not the training.

    Args:
        folder: where to.
        rows: those of the run so far.
    """

    def __init__(self, folder: pathlib.Path, rows: Iterable[Row] = ()) -> None:
        self._folder = folder
        self._writers: dict[str, Any] | None = {}
        with needs_extra("tensorboard"):  # without it tf.summary has no scalar
            import tensorboard  # noqa: F401
        for path in folder.glob("*/events.out.tfevents.*"):
            with contextlib.suppress(OSError):  # `write` will say so
                path.unlink()
        for row in rows:
            self.write(row)

    def write(self, row: Row) -> None:
        """Writes one row; its values of the dev set go to the run "dev"."""
        dev_row = dev_values(row)
        dev = {name.removeprefix("val_"): value for name, value in dev_row.items()}
        # TensorBoard's x-axes show steps and seconds already.
        train = {name: row[name] for name in row.keys() - dev_row.keys() - {"step", "seconds"}}
        try:
            self._write("train", train, row["step"])
            self._write("dev", dev, row["step"])
        except (OSError, tf.errors.OpError) as error:
            self._writers = None
            print(
                f"Cannot write TensorBoard logs to {self._folder} ({one_line(error)}); the next "
                "run of this command writes them again.",
                file=sys.stderr,
            )

    def _write(self, run: str, values: Row, step: float) -> None:
        if self._writers is None or not values:
            return
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(str(self._folder / run))
        with self._writers[run].as_default(step=int(step)):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writers[run].flush()
