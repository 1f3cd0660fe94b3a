"""One process that trains a run: its model, its callbacks and its checkpoints."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.data import ParallelText, TokenizedCorpus
from keras_transformer.models import Transformer
from keras_transformer.training.checkpoint_metrics import dev_metrics
from keras_transformer.training.compilation import compile_for_training
from keras_transformer.training.input_pipeline import TrainingInput
from keras_transformer.training.lazy_logs import LazyLogs
from keras_transformer.training.metric_logging import MetricLogger
from keras_transformer.training.metrics_file import MetricsFile
from keras_transformer.training.progress import Progress
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.step_counter import StepCounter
from keras_transformer.training.stopping import (
    StopEarly,
    StopOnBadSteps,
    StopOnSignal,
    is_stopped_early,
    report_out_of_memory,
)
from keras_transformer.training.strategies import worker_of
from keras_transformer.training.validation import DevBleu, ValidateBleu, check_validation
from keras_transformer.training.weight_average import WeightAverage


class Trainer:
    """What one process knows of a run while it trains it."""

    def __init__(
        self,
        run: RunDirectory,
        strategy: tf.distribute.Strategy,
        jit_compile: bool | Literal["auto"],
        show: bool,
    ) -> None:
        self.run = run
        self.strategy = strategy
        self.worker = worker_of(strategy)
        self.show = show and self.worker.is_chief
        model_config, self.data, self.training = run.configs()
        self.checkpoints = run.checkpoints()
        self.counter = StepCounter()
        keras.utils.set_random_seed(self.training.seed)
        with strategy.scope():
            self.model = Transformer(model_config, dtype=keras.DTypePolicy(self.training.precision))
            compile_for_training(self.model, self.training, jit_compile)
            self.weight_average = None
            if self.training.ema_decay is not None:
                self.weight_average = WeightAverage(
                    self.model, self.training.ema_decay, self.counter
                )
        self.counter.step = self.checkpoints.resume(self.model, **self._state())

    def train(self, corpus: TokenizedCorpus, dev: ParallelText | None, tensorboard: bool) -> None:
        """Goes on to the end of the run, or until a metric stops it."""
        check_validation(self.training, dev)
        batches = TrainingInput(self.run, self.strategy)
        held_out = None if dev is None else batches.validation_batches(dev)
        metric_logger = self._measurements(tensorboard)
        with (
            self._shown(metric_logger) as progress,
            self._stopped_by_signals(metric_logger) as stops,
        ):
            callbacks = [
                self.counter,
                *([] if self.weight_average is None else [self.weight_average]),
                *self._validation(dev),
                metric_logger,
                *progress,
                StopOnBadSteps(self.counter, self.checkpoints, self.training.max_bad_steps),
                SaveCheckpoint(self.counter, self.save, self.checkpoints.is_regular),
                *self._stops_early(),
                *stops,
            ]
            for first, last, interval in intervals(self.counter.step, self.training):
                if is_stopped_early(self.training, self.checkpoints, self.counter.step):
                    return
                with report_out_of_memory():
                    self.model.fit(
                        batches.training_batches(corpus, self.counter.step),
                        validation_data=held_out,
                        initial_epoch=first,
                        epochs=last,
                        steps_per_epoch=interval,
                        validation_freq=validated_epochs(first, last, self.training),
                        callbacks=LazyLogs(callbacks, self.model),
                        shuffle=False,  # the batches are shuffled already
                        verbose=0,
                    )

    def average(self) -> None:
        """Gives the model the average of its last or best checkpoints, and writes it (6.1)."""
        steps = self.checkpoints.to_average(self.training.average_last, self.training.average_best)
        if steps:
            self.checkpoints.average(self.model, steps)
            self._on_chief(lambda: self.checkpoints.save_average(self.model))

    def save(self, step: int, metrics: dict[str, float] | None = None) -> None:
        """Writes a checkpoint; all workers wait until the chief has done so."""
        self._on_chief(
            lambda: self.checkpoints.save(self.model, step, metrics=metrics, **self._state())
        )

    def _measurements(self, tensorboard: bool) -> MetricLogger:
        """Returns what measures on every worker, and writes on the chief."""
        if not self.worker.is_chief:
            return MetricLogger(self.counter, self.training.log_steps)
        file = MetricsFile(self.run.metrics_path, self.counter.step)
        metric_logger = MetricLogger(self.counter, self.training.log_steps, file.last)
        metric_logger.listeners.append(file.append)
        if tensorboard:
            from keras_transformer.training.tensorboard_log import TensorBoardLog

            log = TensorBoardLog(self.run.path / "tensorboard", self.counter.step)
            metric_logger.listeners.append(log.write)
        return metric_logger

    @contextlib.contextmanager
    def _shown(self, metric_logger: MetricLogger) -> Iterator[list[keras.callbacks.Callback]]:
        """Gives the callback that tells how it goes, and ends its line."""
        if not self.show:
            yield []
            return
        progress = Progress(metric_logger, self.training.train_steps)
        metric_logger.listeners.append(progress.show)
        try:
            yield [progress]
        finally:
            progress.finish()

    @contextlib.contextmanager
    def _stopped_by_signals(
        self, metric_logger: MetricLogger
    ) -> Iterator[list[keras.callbacks.Callback]]:
        """Gives the callback that ends training on SIGTERM and Ctrl-C."""

        def save(step: int) -> None:
            metric_logger.finish()
            self.save(step)

        def ask_all(has_signal: bool) -> bool:
            return _sum_over_workers(self.strategy, float(has_signal)) > 0

        with StopOnSignal(
            self.counter,
            save,
            self.checkpoints.is_regular,
            ask_all if self.worker.count > 1 else None,
        ) as stop:
            yield [stop]

    def _validation(self, dev: ParallelText | None) -> list[keras.callbacks.Callback]:
        if dev is None or not self.training.bleu_share:
            return []
        bleu = DevBleu(self.model, dev, self.run.vocabularies(), self.data, self.training)
        averages: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        if self.weight_average is not None:
            averages = self.weight_average.applied
        return [ValidateBleu(bleu, averages, lambda: self.training.is_validated(self.counter.step))]

    def _stops_early(self) -> list[keras.callbacks.Callback]:
        metric, patience = self.training.stop_metric, self.training.stop_patience
        if metric is None:
            return []
        is_validated = self.training.is_validated
        return [StopEarly(self.counter, self.checkpoints, metric, patience, is_validated)]

    def _state(self) -> dict[str, Any]:
        """Returns what training goes on from beside the model and its optimizer."""
        state = {"extra": {"bad_steps_in_a_row": self.model.bad_steps_in_a_row}}
        if self.weight_average is not None:
            state["average_weights"] = self.weight_average.variables
        return state

    def _on_chief(self, write: Callable[[], None]) -> None:
        if self.worker.is_chief:
            write()
        if self.worker.count > 1:
            _sum_over_workers(self.strategy, 0.0)  # they wait for each other


def _sum_over_workers(strategy: tf.distribute.Strategy, value: float) -> float:
    """Returns the sum of what the replicas of all workers give, once all have called it."""
    result = _add(strategy, tf.constant(value))
    return float(strategy.experimental_local_results(result)[0])


@tf.function
def _add(strategy: tf.distribute.Strategy, value: tf.Tensor) -> Any:
    def meet(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    return strategy.run(meet, args=(value,))


class SaveCheckpoint(keras.callbacks.Callback):
    """Writes a checkpoint, with its metrics, at the end of an interval that `fit` calls an epoch.

    Args:
        counter: counts the batches.
        save: writes the checkpoint of a step.
        is_due: whether a step has one.
    """

    def __init__(
        self,
        counter: StepCounter,
        save: Callable[[int, dict[str, float]], None],
        is_due: Callable[[int], bool],
    ) -> None:
        super().__init__()
        self.counter = counter
        self.save = save
        self.is_due = is_due

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.is_due(self.counter.step):
            self.save(self.counter.step, dev_metrics(logs))


def intervals(step: int, training: TrainingConfig) -> list[tuple[int, int, int]]:
    """Returns the calls of `fit` that lead from `step` to the end.

    Each is (first epoch, last epoch, steps an epoch), where an epoch ends at a multiple of the
    smaller of `checkpoint_steps` and `validation_steps`, or at the end of training.
    """
    every, end = min(training.event_steps), training.train_steps
    calls = []
    while step < end:
        steps = min(every - step % every, end - step)
        count = (end - step) // every if steps == every else 1
        calls.append((step // every, step // every + count, steps))
        step += count * steps
    return calls


def validated_epochs(first: int, last: int, training: TrainingConfig) -> list[int]:
    """Returns the epochs of a call of `fit`, counted from 1, that end with a validation."""
    every, end = min(training.event_steps), training.train_steps
    epochs = range(first + 1, last + 1)
    return [epoch for epoch in epochs if training.is_validated(min(epoch * every, end))]
