"""The progress of training on a terminal or in a log.

A row of metrics (see `metrics.py`) is a line, and the values of the dev set another one:

300/20,000  loss 5.412  ppl 148.2  acc 24.1%  lr 3.0e-4  5.21k tok/s  4.61T FLOP  left 1h05m
1,000/20,000  loss 3.947  ppl 19.67  acc 45.9%  BLEU 12.31 (500 of 2,000)  on the dev set

Where a metric was not measured on all sentences of a dev set, their numbers follow it.
"""

import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from keras_transformer.tasks import Metric
from keras_transformer.training.metrics import Row, TrainingMeter, dev_values

_SECONDS_BETWEEN_DRAWINGS = 0.5


class Progress:
    """Writes lines of at most 100 columns, up to a million steps.

    A log file gets a line for each row. On a terminal one line is overwritten at most every half
    second, and only lines about the dev set stay.

    Args:
        meter: measures the batches that are not in a row yet.
        metrics: of the task, to show beside those of validation; each with the number of sentences
            that it is measured on, and of all in the dev set.
        train_steps: batches of the whole run.
        stream: where to write; None means standard output.
        live: whether it is a terminal; None means to ask it.
    """

    def __init__(
        self,
        meter: TrainingMeter,
        metrics: Mapping[Metric, tuple[int, int]],
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
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, row: Row, step: int) -> None:
        """Overwrites the line that changes."""
        line = self._training_line(row, step)
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
        seconds = self._pace.seconds_per_step(step, time.perf_counter())
        if seconds is not None:
            parts.append(f"left {_duration((self._train_steps - step) * seconds)}")
        return "  ".join(parts)

    def _dev_line(self, row: Row) -> str:
        dev = {name.removeprefix("val_"): row[name] for name in row if name.startswith("val_")}
        parts = [self._steps(row["step"]), *_quality(dev)]
        for metric, (count, total) in self._metrics.items():
            if metric.name in row:
                some = f" ({count:,} of {total:,})" if count < total else ""
                parts.append(f"{metric.label} {row[metric.name]:.2f}{some}")
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
