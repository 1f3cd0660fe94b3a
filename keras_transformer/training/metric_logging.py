"""Measures the training as it goes on, one row of numbers a stretch of batches.

A row covers the batches since the row before it: `log_steps` of them, or fewer up to a checkpoint.

step               batches of the run so far
seconds            time spent training so far, over all processes of a run that was resumed;
                   validation and checkpoints are left out
loss, perplexity, accuracy, padding
                   of the batches since the row before; padding is the target side's share
learning_rate      of the update that comes next
tokens_per_second  real target tokens a second, of the same batches
target_tokens      real target tokens so far
skipped_steps      updates left out so far because their gradient was not finite
val_loss, val_perplexity, val_accuracy, and the task's metric, such as bleu
                   of the dev set; in the rows of checkpoints only, where there is a dev set
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_transformer.tasks import VALIDATION_METRICS, Metric
from keras_transformer.training.step_counter import StepCounter

Row = dict[str, float]

_MEANS = ("loss", "perplexity", "accuracy", "padding")
_OF_TRAINING = {
    "step", "seconds", *_MEANS, "learning_rate", "tokens_per_second", "target_tokens",
    "skipped_steps",
}  # fmt: skip


class MetricLogger(keras.callbacks.Callback):
    """Makes the rows and hands each to all listeners.

    It looks into the logs at the end of a stretch only, so that no GPU is waited for after each
    batch (see `LazyLogs`), and then resets the metrics of the model: in a run of several processes
    each of them needs this callback, as metrics add up over all. It stands behind the callback that
    puts the task's metric into the logs of an epoch, and before the one that writes the checkpoint:
    a process that is killed between the two leaves a row too many, which `MetricsFile` drops, and
    never one too few.

    Args:
        counter: counts the batches; stands before this in the list of callbacks.
        log_steps: batches between two rows.
        last: the row of the checkpoint that the run goes on from; None at its beginning.
        metric: the task's, for the rows of checkpoints.

    Attributes:
        counter, metric: as above.
        listeners: functions to call with each row.
    """

    def __init__(
        self,
        counter: StepCounter,
        log_steps: int,
        last: Mapping[str, float] | None = None,
        metric: Metric | None = None,
    ) -> None:
        super().__init__()
        self.counter = counter
        self.metric = metric
        self.listeners: list[Callable[[Row], None]] = []
        self._log_steps = log_steps
        last = last or {}
        self._seconds = last.get("seconds", 0.0)
        self._target_tokens = last.get("target_tokens", 0)
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
            metrics = [*VALIDATION_METRICS, *([] if self.metric is None else [self.metric])]
            self._row |= {each.name: logs[each.name] for each in metrics if each.name in logs}
            self._hand_on()

    def finish(self) -> None:
        """Hands on the row that is due, or one of the batches so far.

        For a run that stops within an epoch, before its checkpoint is written: whoever goes on
        from there counts on.
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
        tokens = round(metrics["target_tokens"])
        if self._begin is None:
            raise RuntimeError("no batch has begun")
        seconds = self._end - self._begin
        return {
            "step": self.counter.step,
            "seconds": self._seconds + seconds,
            **{name: metrics[name] for name in _MEANS},
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": tokens / seconds,
            "target_tokens": self._target_tokens + tokens,
            "skipped_steps": self._skipped_before + int(self.model.bad_steps.numpy()),
        }

    def _close(self, row: Row) -> Row:
        """Ends the stretch of batches that the row covers."""
        self._seconds, self._target_tokens = row["seconds"], row["target_tokens"]
        self._begin = None
        return row

    def _hand_on(self) -> None:
        row, self._row = self._row, None
        for listener in self.listeners:
            listener(dict(row or {}))


def dev_values(row: Row) -> Row:
    """Returns the values of a row that are of the dev set, whatever the task."""
    return {name: value for name, value in row.items() if name not in _OF_TRAINING}
