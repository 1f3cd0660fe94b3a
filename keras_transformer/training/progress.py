"""The log of training: rows of metrics in metrics.jsonl, in TensorBoard, and as lines of text.

Each row is a line, and the values of the dev set are another; a terminal has a bar of tqdm below.

  300/20,000  loss 5.412  ppl 148.2  acc 24.1%  lr 0.0003  5,210 tokens/s
1,000/20,000  loss 3.947  ppl 19.67  acc 45.9%  BLEU 12.31 (500 of 2,000)  on the dev set

Where a metric was not measured on all sentences of a dev set, their numbers follow it.
"""

import errno
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from keras_transformer.errors import needs_extra
from keras_transformer.models import Seq2SeqModel
from keras_transformer.objectives import TRAINING_PREFIX
from keras_transformer.training.distribution import worker_index
from keras_transformer.training.metrics import (
    MEANS,
    TOTALS,
    Row,
    append_row,
    keep_rows,
)
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.validation import DevMetric


class TrainingLog:
    """Measures the updates of a run, and writes rows of them to all that show it.

    The metrics of an update stay on the device until a row is made, so that training does not wait
    for a GPU after each one. Every worker measures; the first one writes.

    `dev_metric` measures the task's metric, if the dev set is searched. `step` is where the run
    resumes: rows beyond it are dropped, and written again.
    """

    def __init__(
        self,
        run: RunDirectory,
        configs: RunConfigs,
        model: Seq2SeqModel,
        dev_metric: DevMetric | None,
        *,
        step: int,
        tensorboard: bool,
        show: bool,
    ) -> None:
        self._model = model
        self._metric, self._dev_metric = configs.task.metric, dev_metric
        self._path = run.metrics_path
        self._train_steps = configs.training.train_steps
        self._writes = worker_index(model.distribute_strategy) == 0
        self._shows = show and self._writes
        rows = keep_rows(self._path, step) if self._writes else []
        last = rows[-1] if rows else {}
        self._totals = {name: last.get(name, 0) for name in TOTALS}  # in the newest row
        self._skipped_before = last.get("skipped_steps", 0)  # by earlier processes
        self._begin: float | None = None  # of the first update that no row covers yet
        self._board: Any = None
        if tensorboard and self._writes:
            with needs_extra("tensorboard"):  # without it tf.summary has no scalar
                import tensorboard as _  # noqa: F401
            # TensorBoard drops what it has read of steps that are written once more.
            self._board = tf.summary.create_file_writer(str(run.path / "tensorboard"))
        self._bar = tqdm(
            initial=max(step, 0),
            total=self._train_steps,
            unit="step",
            file=sys.stdout,
            dynamic_ncols=True,
            disable=None if self._shows else True,  # None: where there is no terminal
        )

    def begin_update(self) -> None:
        """Notes that an update begins; the first one after a row resets the model's metrics."""
        if self._begin is None:
            self._model.reset_metrics()
            self._begin = time.perf_counter()

    def end_update(self) -> None:
        """Notes that an update has ended."""
        self._bar.update()

    def write_row(
        self,
        step: int,
        metrics: Mapping[str, Any],
        validation: Callable[[], Mapping[str, float]] | None = None,
    ) -> Mapping[str, float]:
        """Writes the row that ends with a step; waits for the device.

        Args:
            step: updates of the run so far.
            metrics: the model's since their reset; none before the first update.
            validation: measures the dev set, after the time of the row has been taken.

        Returns:
            What `validation` measured.
        """
        row = self._make_row(step, {name: float(value) for name, value in metrics.items()})
        values = validation() if validation else {}
        if self._writes:
            row |= values
            append_row(self._path, row)
            if self._board:
                with self._board.as_default(step=step):
                    for name in row.keys() - {"step", "seconds"}:
                        tf.summary.scalar(name, row[name])
                self._board.flush()
            if self._shows:
                self._show(row, values)
        return values

    def _make_row(self, step: int, metrics: Mapping[str, float]) -> Row:
        row: Row = {"step": step}
        if self._begin is not None:
            seconds = time.perf_counter() - self._begin
            self._begin = None
            tokens = round(metrics["target_tokens"])
            row["learning_rate"] = float(self._model.optimizer.learning_rate)
            row["tokens_per_second"] = tokens / seconds
            self._totals["seconds"] += seconds
            self._totals["target_tokens"] += tokens
        row |= self._totals
        row |= {
            name: value
            for name, value in metrics.items()
            if name in MEANS or name.startswith(TRAINING_PREFIX)
        }
        row["skipped_steps"] = self._skipped_before + int(self._model.bad_steps.numpy())
        return row

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def _show(self, row: Row, dev_values: Mapping[str, float]) -> None:
        if "loss" in row:  # before the first update there is none
            rate = f"{row['tokens_per_second']:,.0f} tokens/s"
            self._print(row, [*_quality(row), f"lr {row['learning_rate']:.2g}", rate])
        if dev_values:
            parts = _quality({name.removeprefix("val_"): row[name] for name in dev_values})
            if self._dev_metric:
                count, total = self._dev_metric.num_sentences, self._dev_metric.num_all
                part = f" ({count:,} of {total:,})" if count < total else ""
                parts.append(f"{self._metric.label} {row[self._metric.name]:.2f}{part}")
            self._print(row, [*parts, "on the dev set"])

    def _print(self, row: Row, parts: Iterable[str]) -> None:
        total = f"{self._train_steps:,}"
        try:
            tqdm.write("  ".join([f"{int(row['step']):{len(total)},}/{total}", *parts]))
            sys.stdout.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._shows = False  # the terminal was closed: SIGHUP ends the run by a checkpoint


def _quality(row: Mapping[str, float]) -> list[str]:
    labels = {"loss": "loss {:#.4g}", "perplexity": "ppl {:#.4g}", "accuracy": "acc {:5.1%}"}
    return [label.format(row[name]) for name, label in labels.items() if name in row]
