"""The log of training: rows of metrics in files, and as lines on a terminal or in a log.

A row of metrics (see `metrics.py`) is a line, and the values of the dev set another one:

300/20,000  loss 5.412  ppl 148.2  acc 24.1%  lr 3.0e-4  5.21k tok/s  4.61T FLOP  left 1h05m
1,000/20,000  loss 3.947  ppl 19.67  acc 45.9%  BLEU 12.31 (500 of 2,000, 3 cut)  on the dev set

Where a metric was not measured on all sentences of a dev set, or outputs were cut at the longest
that a search may give, their numbers follow it.
"""

import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from keras_transformer.config import TrainingConfig
from keras_transformer.models import Seq2SeqModel
from keras_transformer.tasks import Metric
from keras_transformer.training.distribution import all_or_none, worker_of
from keras_transformer.training.metrics import (
    MetricsFile,
    Row,
    TensorBoardLog,
    TrainingMeter,
    dev_values,
    with_dev_values,
)
from keras_transformer.training.run import RunDirectory

_SECONDS_BETWEEN_DRAWINGS = 0.5


class Measure(Protocol):
    """Measures a metric on sentences of a dev set, see `DevMetric`."""

    num_sentences: int
    num_all: int
    num_cut: int


class TrainingLog:
    """Measures the updates of a run, and writes rows of them to all that show it.

    Every worker measures; the first one writes metrics.jsonl, lines of progress and, if wanted,
    TensorBoard's files.

    Args:
        run: the run.
        model: compiled, under the strategy that trains it.
        training: of the run.
        dev_metrics: the metrics of the task, each with what measures it.
        step: rows beyond it are dropped from the files, and written again.
        tensorboard, show: as in `train`.
    """

    def __init__(
        self,
        run: RunDirectory,
        model: Seq2SeqModel,
        training: TrainingConfig,
        *,
        dev_metrics: Mapping[Metric, Measure],
        step: int,
        tensorboard: bool,
        show: bool,
    ) -> None:
        self._strategy = model.distribute_strategy
        self._metrics = list(dev_metrics)
        self._meter = TrainingMeter(model)
        self._lines: ProgressLines | None = None
        self._writers: list[Callable[[Row], None]] = []
        with all_or_none(self._strategy):
            if not worker_of(self._strategy).is_chief:
                return
            file = MetricsFile(run.metrics_path, step)
            self._meter = TrainingMeter(model, file.last)
            self._writers.append(file.append)
            if tensorboard:
                self._writers.append(TensorBoardLog(run.path / "tensorboard", file.rows()).write)
            if show:
                self._lines = ProgressLines(self._meter, dev_metrics, training.train_steps)
                self._writers.append(self._lines.show)

    def begin_batch(self) -> None:
        """Notes that an update begins."""
        self._meter.begin_batch()

    def end_batch(self, step: int, values: Mapping[str, Any]) -> None:
        """Takes the metrics of an update; none yet from several devices."""
        if values:
            self._meter.end_batch(values)
        if self._lines and self._meter.has_values:
            self._lines.end_batch(step)

    def end_row(self, step: int) -> Row:
        """Returns the metrics since the last row; waits for the device."""
        return self._meter.end_row(step)

    def write(self, row: Row, dev_values: Mapping[str, float]) -> None:
        """Writes a row, with values of the dev sets if there are any."""
        with all_or_none(self._strategy):
            for write in self._writers:
                write(with_dev_values(row, dev_values, self._metrics))

    @property
    def signals(self) -> list[signal.Signals]:
        """SIGPIPE if nobody reads standard output any more."""
        return [signal.SIGPIPE] if self._lines and self._lines.is_closed else []

    def close(self) -> None:
        """Ends the line of progress."""
        if self._lines:
            self._lines.finish()


class ProgressLines:
    """Writes lines of at most 100 columns, up to a million steps.

    A log file gets a line for each row. On a terminal one line is overwritten at most every half
    second, and only lines about the dev set stay.

    Args:
        meter: measures the batches that are not in a row yet.
        metrics: of the task, to show beside those of validation; each with
            what measures it, for the numbers of sentences.
        train_steps: batches of the whole run.
        stream: where to write; None means standard output.
        live: whether it is a terminal; None means to ask it.

    Attributes:
        is_closed: whether nobody reads the stream any more: the reader of a pipe has ended, or the
            terminal was closed.
    """

    def __init__(
        self,
        meter: TrainingMeter,
        metrics: Mapping[Metric, Measure],
        train_steps: int,
        stream: TextIO | None = None,
        live: bool | None = None,
    ) -> None:
        self._meter = meter
        self._metrics = metrics
        self._train_steps = train_steps
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() if live is None else live
        self._row: Row | None = None
        self._skipped = 0.0
        self._pace = _Pace()
        self._drawn = -math.inf  # the time of the last drawing
        self.is_closed = False
        self._is_open = False  # whether the line that changes is on the terminal

    def end_batch(self, step: int) -> None:
        """Redraws the line of a terminal now and then."""
        now = time.perf_counter()
        self._pace.note(step, now)
        if self._live and now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            # Once there is a whole row, its values are steadier than those of a few batches.
            self._draw(self._row or self._meter.row_so_far(step), step)

    def show(self, row: Row) -> None:
        """Shows a row."""
        step = int(row["step"])
        if "loss" in row:  # before the first update there is none
            self._row = row
            if self._live:
                self._draw(row, step)
            else:
                self._write(self._training_line(row, step))
        if row["skipped_steps"] > self._skipped:
            self._skipped = row["skipped_steps"]
            text = f"{self._skipped:,} updates skipped so far: gradient not finite"
            self._write(f"{self._steps(step)}  {text}")
        if dev_values(row):
            self._write(self._dev_line(row))

    def finish(self) -> None:
        """Ends the line that changes, so that other text starts on a new line."""
        if self._is_open:
            self._is_open = False
            self._put("\n")

    def _draw(self, row: Row, step: int) -> None:
        """Overwrites the line that changes."""
        line = self._training_line(row, step)
        columns = shutil.get_terminal_size().columns - 1
        self._put("\r" + line[:columns].ljust(columns))
        self._is_open = True

    def _write(self, line: str) -> None:
        self.finish()
        self._put(line + "\n")

    def _put(self, text: str) -> None:
        if self.is_closed:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self.is_closed = True

    def _training_line(self, row: Row, step: int) -> str:
        parts = [
            self._steps(step),
            *_quality(row),
            f"lr {_scientific(row['learning_rate'])}",
            f"{_thousands(row['tokens_per_second'])} tok/s",
        ]
        if "flops" in row:
            parts.append(f"{_thousands(row['flops'])} FLOP")
        seconds = self._pace.seconds_per_step(step, time.perf_counter())
        if seconds is not None:
            parts.append(f"left {_duration((self._train_steps - step) * seconds)}")
        return "  ".join(parts)

    def _dev_line(self, row: Row) -> str:
        dev = {name.removeprefix("val_"): row[name] for name in row if name.startswith("val_")}
        parts = [self._steps(row["step"]), *_quality(dev)]
        for metric, measure in self._metrics.items():
            if metric.name in row:
                count, total, cut = measure.num_sentences, measure.num_all, measure.num_cut
                notes = [f"{count:,} of {total:,}"] * (count < total) + [f"{cut:,} cut"] * (cut > 0)
                note = f" ({', '.join(notes)})" if notes else ""
                parts.append(f"{metric.label} {row[metric.name]:.2f}{note}")
        return "  ".join([*parts, "on the dev set"])

    def _steps(self, step: float) -> str:
        total = f"{self._train_steps:,}"
        return f"{step:{len(total)},}/{total}"


class _Pace:
    """The time of a step, checkpoints and all, over the later half of the steps or more.

    The first step, in which the graph is built and compiled, does not count, and the next ones, in
    which batches of new shapes are, are forgotten.
    """

    def __init__(self) -> None:
        self._first = 0
        self._starts: list[tuple[int, float]] = []  # of measurements: step, and when it was done

    def note(self, step: int, now: float) -> None:
        """Notes that a step is done."""
        if not self._starts:
            self._first, self._starts = step, [(step, now)] * 2
        elif step - self._first >= 2 * (self._starts[1][0] - self._first):
            self._starts = [self._starts[1], (step, now)]

    def seconds_per_step(self, step: int, now: float) -> float | None:
        """Returns the seconds of a step, None before two steps are done."""
        if not self._starts or step == self._starts[0][0]:
            return None
        start, time_of_start = self._starts[0]
        return (now - time_of_start) / (step - start)


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
