"""Measures the training as it runs, one row of numbers a stretch of batches.

A row covers the batches since the row before it: `log_steps` of them, or fewer up to a checkpoint.

step               batches of the run so far
seconds            time spent training so far, over all processes of a run that was resumed;
                   validation and checkpoints are left out
loss, perplexity, accuracy, padding
                   of the batches since the row before; padding is the target side's share
train_...          metrics of the model's own, of the same batches
learning_rate      of the update that comes next
tokens_per_second  real target tokens a second, of the same batches
target_tokens      real target tokens so far
flops              floating-point operations of matrix products so far, of the real tokens
padded_flops       those of all that the devices computed, padding included
sustained_flops    estimated so far from the time of all devices, where their rate is given (6.1)
skipped_steps      updates left out so far because their gradient was not finite
val_loss, val_perplexity, val_accuracy, and the task's metric, such as bleu
                   of the dev set; in the rows of checkpoints only, where there is a dev set, and
                   in one of step 0, without means, of a run that starts from another's weights
"""

import json
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import keras
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from keras_transformer.errors import InputError
from keras_transformer.objectives import OF_TRAINING_ONLY
from keras_transformer.tasks import VALIDATION_METRICS, Metric
from keras_transformer.tasks.task import TRAINING_VALUES

# How many batches of the run have been trained on: what every other callback counts by.


class StepCounter(keras.callbacks.Callback):
    """Counts batches over all calls of `fit`; comes first in the list of callbacks.

    The optimizer's own count stays behind it where float16 overflows and an update is left out.

    Args:
        step: batches of the run before this process.

    Attributes:
        step: batches of the run so far.
    """

    def __init__(self, step: int = 0) -> None:
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step += 1


Row = dict[str, float]

_MEANS = ("loss", "perplexity", "accuracy", "padding")
_COUNTED = ("target_tokens", "flops", "padded_flops")  # by the model, since the row before
# What adds up over a run.
TOTALS = ("seconds", *_COUNTED, "sustained_flops")
_OF_TRAINING = TRAINING_VALUES.difference(_MEANS)


class MetricLogger(keras.callbacks.Callback):
    """Makes the rows and hands each to all listeners.

    It reads the logs only at the end of a stretch, so that it need not wait for a GPU after each
    batch (see `LazyLogs`), and then resets the metrics of the model: in a run of several processes
    each of them needs this callback, as metrics add up over all. It comes after the callback that
    puts the task's metric into the logs of an epoch, and before the one that writes the checkpoint:
    a process that is killed between the two leaves a row too many, which `MetricsFile` drops, and
    never one too few.

    Args:
        counter: counts the batches; comes before this in the list of callbacks.
        log_steps: batches between two rows.
        last: the row of the checkpoint that the run resumes from; None at its beginning.
        metrics: of the dev sets, for the rows of checkpoints.
        sustained_flops: FLOP/s of all devices, for an estimate by time; None for no such estimate.

    Attributes:
        counter, metrics: as above.
        listeners: functions to call with each row.
    """

    def __init__(
        self,
        counter: StepCounter,
        log_steps: int,
        last: Mapping[str, float] | None = None,
        metrics: Sequence[Metric] = (),
        sustained_flops: float | None = None,
    ) -> None:
        super().__init__()
        self.counter = counter
        self.metrics = metrics
        self.listeners: list[Callable[[Row], None]] = []
        self._log_steps = log_steps
        self._rate = sustained_flops
        last = last or {}
        self._so_far = {name: last.get(name, 0) for name in TOTALS}  # in the newest row
        self._skipped_before = last.get("skipped_steps", 0)  # by earlier processes
        self._begin: float | None = None  # of the first batch that no row covers yet
        self._end = 0.0  # of the newest batch
        self._logs: Mapping[str, Any] = {}  # of the newest batch
        self._row: Row | None = None  # measured and not handed on yet

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._row is not None:
            self._hand_on()
            self.model.reset_metrics()
        if self._begin is None:
            self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._end, self._logs = time.perf_counter(), logs or {}
        if self.counter.step % self._log_steps == 0:
            # It waits until the next batch begins: a checkpoint may be due, which adds to it.
            self._row = self._close(self.row_so_far())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        logs = logs or {}
        if self._begin is not None:
            self._row = self._close(self._measure(logs))
        if self._row is not None:
            self._hand_on(logs)

    def on_start(self, logs: Mapping[str, float]) -> None:
        """Hands on a row of the dev set before the first update, for a run that begins trained."""
        self._row = {"step": 0, **dict.fromkeys(("seconds", *_COUNTED), 0), "skipped_steps": 0}
        self._hand_on(logs)

    def finish(self) -> None:
        """Hands on the row that is due, or one of the batches so far.

        For a run that stops within an epoch; to be called before its checkpoint is written, so
        that a resumed run continues these totals.
        """
        if self._begin is not None:
            self._row = self._close(self.row_so_far())
        if self._row is not None:
            self._hand_on()

    def row_so_far(self) -> Row:
        """Returns a row of the batches since the last one; waits for the device."""
        if self._row is not None:  # it has ended, and none has begun
            return dict(self._row)
        metrics = {name: float(value) for name, value in self._logs.items()}
        self._end = time.perf_counter()
        return self._measure(metrics)

    def _measure(self, metrics: Mapping[str, float]) -> Row:
        new: Row = {name: round(metrics[name]) for name in _COUNTED}
        if self._begin is None:
            raise RuntimeError("no batch has begun")
        seconds = self._end - self._begin
        new["seconds"] = seconds
        if self._rate is not None:
            new["sustained_flops"] = seconds * self._rate
        return {
            "step": self.counter.step,
            **{name: self._so_far[name] + new[name] for name in TOTALS if name in new},
            **{name: metrics[name] for name in metrics if _is_mean(name)},
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": new["target_tokens"] / seconds,
            "skipped_steps": self._skipped_before + int(self.model.bad_steps.numpy()),
        }

    def _close(self, row: Row) -> Row:
        """Ends the stretch of batches that the row covers."""
        self._so_far |= {name: row[name] for name in TOTALS if name in row}
        self._begin = None
        return row

    def _hand_on(self, of_dev: Mapping[str, float] | None = None) -> None:
        """Hands on the row that is due, with the metrics of the dev sets."""
        row, self._row = dict(self._row or {}), None
        for metric in [*VALIDATION_METRICS, *self.metrics]:
            if of_dev and metric.name in of_dev:
                row[metric.name] = of_dev[metric.name]
        for listener in self.listeners:
            listener(dict(row))


def dev_values(row: Row) -> Row:
    """Returns the values of a row that are of the dev set, whatever the task."""
    return {
        name: value
        for name, value in row.items()
        if name not in _OF_TRAINING and not _is_mean(name)
    }


def _is_mean(name: str) -> bool:
    """Whether a value is the mean of a metric over the batches of a row."""
    return name in _MEANS or name.startswith(OF_TRAINING_ONLY)


# metrics.jsonl: the rows of a run, one JSON object a line, each step once and in order.


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


# TensorBoard: the rows of a run as scalars, over the run's own steps.

# The x-axes of TensorBoard's charts show these already.
_NOT_SHOWN = {"step", "seconds"}


class TensorBoardLog:
    """Writes two runs to a folder, "train" and "dev", whose charts TensorBoard lays together.

    Args:
        folder: where to.
        step: where the run resumes; what an earlier process wrote beyond it is hidden.
    """

    def __init__(self, folder: pathlib.Path, step: int = 0) -> None:
        self._folder = folder
        self._step = step
        self._writers: dict[str, EventFileWriter] = {}

    def write(self, row: Row) -> None:
        """Writes one row; its numbers about the dev set go to the run "dev"."""
        of_dev = dev_values(row)
        dev = {name.removeprefix("val_"): value for name, value in of_dev.items()}
        train = {name: row[name] for name in row.keys() - of_dev.keys() - _NOT_SHOWN}
        self._add("train", train, int(row["step"]))
        if dev:
            self._add("dev", dev, int(row["step"]))

    def _add(self, run: str, scalars: Row, step: int) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        writer = self._writer(run)
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.flush()

    def _writer(self, run: str) -> EventFileWriter:
        if run not in self._writers:
            self._writers[run] = writer = EventFileWriter(str(self._folder / run))
            # TensorBoard drops what an earlier process wrote from the step of this event on.
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=self._step + 1, session_log=start))
        return self._writers[run]


# What a person reads while a model trains: one line that changes on a terminal, lines in a log.
#
# 300/20,000  loss 5.412  ppl 148.2  acc 24.1%  lr 3.0e-4  5.21k tok/s  4.61T FLOP  left 1h05m
# 1,000/20,000  loss 3.947  ppl 19.67  acc 45.9%  BLEU 12.31  on the dev set

_SECONDS_BETWEEN_DRAWINGS = 0.5


class Progress(keras.callbacks.Callback):
    """Writes lines of at most 100 columns, up to a million steps.

    In a log file there is a line for each row of `MetricLogger`. On a terminal one line is
    overwritten at most every half second, and only those about the dev set stay. `fit` is called
    with verbose=0; if it ends early, its caller ends the open line with `finish`.

    Args:
        metric_logger: what to show; `show` has to be one of its listeners, and it stands before
            this in the list of callbacks.
        train_steps: batches of the whole run.
        stream: where to write; None means standard output.
        live: whether it is a terminal; None means to ask it.
    """

    def __init__(
        self,
        metric_logger: MetricLogger,
        train_steps: int,
        stream: TextIO | None = None,
        live: bool | None = None,
    ) -> None:
        super().__init__()
        self._metric_logger = metric_logger
        self._train_steps = train_steps
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() if live is None else live
        self._row: Row | None = None
        self._skipped = 0.0
        self._first: tuple[int, float] | None = None  # step, and the time when it was done
        self._drawn = -math.inf  # the time of the last drawing
        self._is_open = False  # whether the line that changes is on the terminal

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if self._first is None:  # the first batch is slow: its graph is built and compiled
            self._first = self._metric_logger.counter.step, now
        if self._live and now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            # Once there is a whole row, its values are steadier than those of a few batches.
            self._draw(self._row or self._metric_logger.row_so_far())

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self.finish()

    def show(self, row: Row) -> None:
        """Shows a row of `MetricLogger`."""
        if "loss" in row:  # before the first update there is none
            self._row = row
            if self._live:
                self._draw(row)
            else:
                self._write(self._training_line(row, int(row["step"])))
        if row["skipped_steps"] > self._skipped:
            self._skipped = row["skipped_steps"]
            text = f"{self._skipped:,} updates left out so far: gradient not finite"
            self._write(f"{self._steps(row['step'])}  {text}")
        if dev_values(row):
            self._write(self._dev_line(row))

    def finish(self) -> None:
        """Ends the line that changes, so that other text starts on a line of its own."""
        if self._is_open:
            self._is_open = False
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, row: Row) -> None:
        """Overwrites the line that changes."""
        line = self._training_line(row, self._metric_logger.counter.step)
        columns = shutil.get_terminal_size().columns - 1
        self._stream.write("\r" + line[:columns].ljust(columns))
        self._stream.flush()
        self._is_open = True

    def _write(self, line: str) -> None:
        self.finish()
        self._stream.write(line + "\n")
        self._stream.flush()

    def _training_line(self, row: Row, step: int) -> str:
        parts = [
            self._steps(step),
            *_quality(row),
            f"lr {_scientific(row['learning_rate'])}",
            f"{_thousands(row['tokens_per_second'])} tok/s",
            f"{_thousands(row['flops'])} FLOP",
        ]
        seconds_left = self._seconds_left(step)
        if seconds_left is not None:
            parts.append(f"left {_duration(seconds_left)}")
        return "  ".join(parts)

    def _dev_line(self, row: Row) -> str:
        dev = {name.removeprefix("val_"): row[name] for name in row if name.startswith("val_")}
        parts = [self._steps(row["step"]), *_quality(dev)]
        for metric in self._metric_logger.metrics:
            if metric.name in row:
                parts.append(f"{metric.label} {row[metric.name]:.2f}")
        return "  ".join([*parts, "on the dev set"])

    def _steps(self, step: float) -> str:
        total = f"{self._train_steps:,}"
        return f"{step:{len(total)},}/{total}"

    def _seconds_left(self, step: int) -> float | None:
        """Returns how long the rest of the run takes, checkpoints and all, at the pace so far."""
        if self._first is None or step == self._first[0]:
            return None
        seconds = time.perf_counter() - self._first[1]
        return (self._train_steps - step) * seconds / (step - self._first[0])


def _quality(row: Mapping[str, float]) -> list[str]:
    parts = []
    if "loss" in row:
        parts.append(f"loss {_five_columns(row['loss'])}")
    if "perplexity" in row:
        parts.append(f"ppl {_five_columns(row['perplexity'])}")
    if "accuracy" in row:
        parts.append(f"acc {row['accuracy']:5.1%}")
    return parts


def _five_columns(value: float) -> str:
    """Returns 1.234, 12.34, 123.4, 1234 or 1e+07."""
    if not math.isfinite(value) or value >= 99999.5:
        return f"{value:5.0e}"
    digits = 3 - (value >= 9.9995) - (value >= 99.995) - (value >= 999.95)
    return f"{value:5.{digits}f}"


def _thousands(value: float) -> str:
    """Returns three digits and a unit: 987, 9.87k, 98.7k, 987k or 9.87M, in five columns."""
    for unit in ("", "k", "M", "G", "T", "P", "E", "Z"):
        if value < 999.5 or unit == "Z":
            break
        value /= 1000
    digits = 0 if not unit else 2 - (value >= 9.995) - (value >= 99.95)
    return f"{value:.{digits}f}{unit}".rjust(5)


def _scientific(value: float) -> str:
    """Returns 7.0e-4, which Python writes as 7.0e-04."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _duration(seconds: float) -> str:
    """Returns 45s, 3m20s, 1h05m or 2d07h."""
    minutes, hours = round(seconds) // 60, round(seconds) // 3600
    if minutes == 0:
        return f"{seconds:.0f}s"
    if hours == 0:
        return f"{minutes}m{round(seconds) % 60:02}s"
    if hours < 24:
        return f"{hours}h{minutes % 60:02}m"
    return f"{hours // 24}d{hours % 24:02}h"
