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

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_transformer.objectives import OF_TRAINING_ONLY
from keras_transformer.tasks import VALIDATION_METRICS, Metric
from keras_transformer.tasks.metric import TRAINING_VALUES
from keras_transformer.training.step_counter import StepCounter

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
