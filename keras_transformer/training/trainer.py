"""One process that trains a run: its model, its callbacks and its checkpoints."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.data import ParallelText, TokenizedCorpus
from keras_transformer.models import build_model
from keras_transformer.tasks import Metric
from keras_transformer.training.checkpoint_metrics import dev_metrics
from keras_transformer.training.compilation import compile_for_training
from keras_transformer.training.input_pipeline import TrainingInput
from keras_transformer.training.intervals import intervals, validated_epochs
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
from keras_transformer.training.validation import DevMetric, ValidateMetric, check_validation
from keras_transformer.training.weight_average import WeightAverage


class Trainer:
    """Trains a run in one process: builds or resumes the model, fits, saves and averages."""

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
        configs = run.configs()
        self.task, self.training = configs.task, configs.training
        self.checkpoints = run.checkpoints()
        self.counter = StepCounter()
        keras.utils.set_random_seed(self.training.seed)
        with strategy.scope():
            self.model = build_model(configs.model, dtype=self.training.precision)
            compile_for_training(self.model, self.training, jit_compile)
            self.weight_average = None
            if self.training.ema_decay is not None:
                self.weight_average = WeightAverage(
                    self.model, self.training.ema_decay, self.counter
                )
        self.counter.step = self.checkpoints.resume(self.model, **self._state())

    def train(self, corpus: TokenizedCorpus, dev: ParallelText | None, tensorboard: bool) -> None:
        """Goes on to the end of the run, or until a metric stops it."""
        check_validation(self.training, self.task, dev)
        batches = TrainingInput(self.run, self.strategy)
        held_out = None if dev is None else batches.validation_batches(dev)
        metric_logger = self._metric_logger(tensorboard)
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
                self._saves_checkpoints(),
                *self._stops_early(),
                *stops,
            ]
            for first, last, interval in intervals(self.counter.step, self.training):
                if is_stopped_early(self.training, self.task, self.checkpoints, self.counter.step):
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

    def _metric_logger(self, tensorboard: bool) -> MetricLogger:
        """Returns the metric logger; only the chief's writes files."""
        if not self.worker.is_chief:
            return MetricLogger(self.counter, self.training.log_steps, metric=self.task.metric)
        file = MetricsFile(self.run.metrics_path, self.counter.step)
        metric_logger = MetricLogger(
            self.counter, self.training.log_steps, file.last, self.task.metric
        )
        metric_logger.listeners.append(file.append)
        if tensorboard:
            from keras_transformer.training.tensorboard_log import TensorBoardLog

            log = TensorBoardLog(self.run.path / "tensorboard", self.counter.step)
            metric_logger.listeners.append(log.write)
        return metric_logger

    @contextlib.contextmanager
    def _shown(self, metric_logger: MetricLogger) -> Iterator[list[keras.callbacks.Callback]]:
        """Yields the progress callback, if any, and ends its line."""
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
        """Yields the callback that ends training on SIGTERM and Ctrl-C."""

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
        if dev is None or not self.training.validation_time_share:
            return []
        measure = DevMetric(self.model, dev, self.run.vocabularies(), self.task, self.training)
        averages: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        if self.weight_average is not None:
            averages = self.weight_average.applied
        is_due = lambda: self.training.is_validated(self.counter.step)  # noqa: E731
        return [ValidateMetric(self.task.metric, measure, averages, is_due)]

    def _saves_checkpoints(self) -> keras.callbacks.Callback:
        return SaveCheckpoint(
            self.counter, self.save, self.task.metric, self.checkpoints.is_regular
        )

    def _stops_early(self) -> list[keras.callbacks.Callback]:
        if self.training.stop_metric is None:
            return []
        metric = self.task.find_metric(self.training.stop_metric)
        patience, is_validated = self.training.stop_patience, self.training.is_validated
        return [StopEarly(self.counter, self.checkpoints, metric, patience, is_validated)]

    def _state(self) -> dict[str, Any]:
        """Returns what training resumes from besides the model and its optimizer."""
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
    """Returns the sum of the values of all replicas; waits until all workers have called it."""
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
        metric: the task's.
        is_due: whether a step has a checkpoint.
    """

    def __init__(
        self,
        counter: StepCounter,
        save: Callable[[int, dict[str, float]], None],
        metric: Metric | None = None,
        is_due: Callable[[int], bool] = lambda step: True,
    ) -> None:
        super().__init__()
        self.metric = metric
        self.is_due = is_due
        self.counter = counter
        self.save = save

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.is_due(self.counter.step):
            self.save(self.counter.step, dev_metrics(logs, self.metric))
