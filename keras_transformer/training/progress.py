"""The log of training: rows of metrics in metrics.jsonl, in TensorBoard, and as lines of text.

On a terminal a bar of tqdm shows the steps and the newest row; elsewhere each row is a line. The
values of the dev set are another line:

  300/20,000  loss 5.412  ppl 148.2  acc 24.1%  lr 0.0003  5,210 tokens/s
1,000/20,000  loss 3.947  ppl 19.67  acc 45.9%  BLEU 12.31 (500 of 2,000, 3 cut)  on the dev set

Where a metric was not measured on all sentences of a dev set, or outputs were cut at the longest
that a search may give, their numbers follow it.
"""

import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import tensorflow as tf
from tqdm import tqdm

from keras_transformer.errors import needs_extra
from keras_transformer.models import Seq2SeqModel
from keras_transformer.tasks import VALIDATION_METRICS, Metric
from keras_transformer.training.distribution import worker_index
from keras_transformer.training.metrics import (
    Row,
    TrainingMeter,
    append_row,
    dev_values,
    keep_rows,
)
from keras_transformer.training.run import RunDirectory


class Measure(Protocol):
    """Measures a metric on sentences of a dev set, see `DevMetric`."""

    num_sentences: int
    num_all: int
    num_cut: int


class TrainingLog:
    """Measures the updates of a run, and writes rows of them to all that show it.

    Every worker measures; the first one writes.

    Args:
        run: the run.
        model: compiled, under the strategy that trains it.
        dev_metrics: the metrics of the task, each with what measures it.
        step: rows beyond it are dropped from the files, and written again.
        train_steps: of the run.
        tensorboard, show: as in `train`.
    """

    def __init__(
        self,
        run: RunDirectory,
        model: Seq2SeqModel,
        *,
        dev_metrics: Mapping[Metric, Measure],
        step: int,
        train_steps: int,
        tensorboard: bool,
        show: bool,
    ) -> None:
        self._dev_metrics = dev_metrics
        self._path = run.metrics_path
        self._train_steps = train_steps
        self._writes = worker_index(model.distribute_strategy) == 0
        self._shows = show and self._writes
        self._skipped = 0.0
        rows = keep_rows(self._path, step) if self._writes else []
        self._meter = TrainingMeter(model, rows[-1] if rows else None)
        self._board: TensorBoardLog | None = None
        if tensorboard and self._writes:
            self._board = TensorBoardLog(run.path / "tensorboard", rows)
        self._bar = tqdm(
            initial=max(step, 0),
            total=train_steps,
            unit="step",
            file=sys.stdout,
            dynamic_ncols=True,
            disable=not (self._shows and sys.stdout.isatty()),
        )

    def begin_batch(self) -> None:
        """Notes that an update begins."""
        self._meter.begin_batch()

    def end_batch(self) -> None:
        """Notes that an update has ended; does not wait for the device."""
        self._bar.update()

    def end_row(self, step: int, values: Mapping[str, Any]) -> Row:
        """Returns a row of the model's metrics since the last row; waits for the device."""
        return self._meter.end_row(step, values)

    def write(self, row: Row, values: Mapping[str, float]) -> None:
        """Writes a row, with those of some values that are metrics of the dev sets."""
        if not self._writes:
            return
        names = [metric.name for metric in (*VALIDATION_METRICS, *self._dev_metrics)]
        row = row | {name: values[name] for name in names if name in values}
        append_row(self._path, row)
        if self._board:
            self._board.write(row)
        if self._shows:
            self._show(row)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def _show(self, row: Row) -> None:
        if "loss" in row:  # before the first update there is none
            parts = [*_quality(row), f"lr {row['learning_rate']:.2g}"]
            parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
            if self._bar.disable:
                self._print(row, parts)
            else:
                self._bar.set_postfix_str("  ".join(parts))
        if row["skipped_steps"] > self._skipped:
            self._skipped = row["skipped_steps"]
            text = f"{self._skipped:,} updates skipped so far: gradient not finite"
            self._print(row, [text])
        if dev_values(row):
            dev = {name.removeprefix("val_"): row[name] for name in row if name.startswith("val_")}
            metrics = [
                _measured(metric, measure, row[metric.name])
                for metric, measure in self._dev_metrics.items()
                if metric.name in row
            ]
            self._print(row, [*_quality(dev), *metrics, "on the dev set"])

    def _print(self, row: Row, parts: Iterable[str]) -> None:
        total = f"{self._train_steps:,}"
        tqdm.write("  ".join([f"{int(row['step']):{len(total)},}/{total}", *parts]))
        sys.stdout.flush()


def _quality(row: Mapping[str, float]) -> list[str]:
    labels = {"loss": "loss {:#.4g}", "perplexity": "ppl {:#.4g}", "accuracy": "acc {:5.1%}"}
    return [label.format(row[name]) for name, label in labels.items() if name in row]


def _measured(metric: Metric, measure: Measure, value: float) -> str:
    count, total, cut = measure.num_sentences, measure.num_all, measure.num_cut
    notes = [f"{count:,} of {total:,}"] * (count < total) + [f"{cut:,} cut"] * (cut > 0)
    return f"{metric.label} {value:.2f}" + (f" ({', '.join(notes)})" if notes else "")


class TensorBoardLog:
    """Writes rows as two TensorBoard runs, "train" and "dev", which share their charts.

    What earlier processes wrote there is replaced by the rows of metrics.jsonl: some of it may be
    of updates after the checkpoint that the run resumes from.

    Args:
        folder: where to.
        rows: those of the run so far.
    """

    def __init__(self, folder: pathlib.Path, rows: Iterable[Row] = ()) -> None:
        with needs_extra("tensorboard"):  # without it tf.summary has no scalar
            import tensorboard  # noqa: F401
        for path in folder.glob("*/events.out.tfevents.*"):
            path.unlink()
        self._writers = {
            run: tf.summary.create_file_writer(str(folder / run)) for run in ("train", "dev")
        }
        for row in rows:
            self.write(row)

    def write(self, row: Row) -> None:
        """Writes one row; its values of the dev set go to the run "dev"."""
        dev = dev_values(row)
        # TensorBoard's x-axes show steps and seconds already.
        train = {name: row[name] for name in row.keys() - dev.keys() - {"step", "seconds"}}
        for run, values in (("train", train), ("dev", dev)):
            with self._writers[run].as_default(step=int(row["step"])):
                for name, value in values.items():
                    tf.summary.scalar(name.removeprefix("val_"), value)
            self._writers[run].flush()
