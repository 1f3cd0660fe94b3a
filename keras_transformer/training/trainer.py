"""One process that trains a run: its model, its callbacks and its checkpoints."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.data import ParallelText, TokenizedCorpus
from keras_transformer.models import build_model
from keras_transformer.tasks import Metric
from keras_transformer.training.checkpoint_metrics import dev_metrics
from keras_transformer.training.compilation import compile_for_training
from keras_transformer.training.freezing import freeze
from keras_transformer.training.input_pipeline import TrainingInput
from keras_transformer.training.intervals import epochs_with_validation, intervals
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
from keras_transformer.training.strategies import sum_over_workers, worker_of
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
            freeze(self.model, self.training.freeze)
            compile_for_training(self.model, self.training, jit_compile)
            self.weight_average = None
            if self.training.ema_decay is not None:
                self.weight_average = WeightAverage(
                    self.model, self.training.ema_decay, self.counter
                )
        self.counter.step = self.checkpoints.resume(self.model, **self._state())
        self.is_measured = self.checkpoints.steps() != [0] or 0 in self.checkpoints.metrics.read()

    def train(
        self, corpus: TokenizedCorpus, devs: Sequence[ParallelText], tensorboard: bool
    ) -> None:
        """Trains to the end of the run, or until a metric of the first dev set stops it."""
        dev = devs[0] if devs else None
        check_validation(self.training, self.task, dev)
        validations = self._validations(devs)
        batches = TrainingInput(self.run, self.strategy)
        held_out = None if dev is None else batches.validation_batches(dev)
        metric_logger = self._metric_logger([each.metric for each in validations], tensorboard)
        with (
            self._shown(metric_logger) as progress,
            self._stops_on_signal(metric_logger) as stop,
        ):
            if held_out is not None and not self.is_measured:
                with report_out_of_memory():
                    self._measure_start(held_out, validations, metric_logger)
            callbacks = [
                self.counter,
                *([] if self.weight_average is None else [self.weight_average]),
                *validations,
                metric_logger,
                *progress,
                StopOnBadSteps(self.counter, self.checkpoints, self.training.max_bad_steps),
                self._saves_checkpoints(),
                *self._stops_early(),
                stop,
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
                        validation_freq=epochs_with_validation(first, last, self.training),
                        callbacks=LazyLogs(callbacks, self.model),
                        shuffle=False,  # the batches are shuffled already
                        verbose=0,
                    )

    def _measure_start(
        self, held_out: Any, validations: Sequence[ValidateMetric], metric_logger: MetricLogger
    ) -> None:
        """Measures the weights that the run starts from, before the first update."""
        logs = self.model.evaluate(held_out, verbose=0, return_dict=True)
        logs = {f"val_{name}": value for name, value in logs.items()}
        for each in validations:
            each.on_epoch_end(-1, logs)
        metric_logger.on_start(logs)
        metrics = dev_metrics(logs, self.task.metric)
        self._on_chief(lambda: self.checkpoints.metrics.write(0, metrics))  # then `is_measured`

    def average(self) -> None:
        """Gives the model the average of its last or best checkpoints, and writes it (6.1)."""
        steps = self.checkpoints.to_average(self.training.average_last, self.training.average_best)
        if steps:
            self.checkpoints.average(self.model, steps)
            self._on_chief(lambda: self.checkpoints.save_weights(self.model))

    def save(self, step: int, metrics: dict[str, float] | None = None) -> None:
        """Writes a checkpoint; all workers wait until the chief has done so."""
        self._on_chief(
            lambda: self.checkpoints.save(self.model, step, metrics=metrics, **self._state())
        )

    def _metric_logger(self, metrics: Sequence[Metric], tensorboard: bool) -> MetricLogger:
        """Returns the metric logger; only the chief's writes files."""
        make = functools.partial(
            MetricLogger, self.counter, self.training.log_steps, metrics=metrics
        )
        if not self.worker.is_chief:
            return make()
        file = MetricsFile(self.run.metrics_path, self.counter.step if self.is_measured else -1)
        rate = self.training.sustained_tflops
        if rate is not None:
            rate *= 1e12 * self.strategy.num_replicas_in_sync
        metric_logger = make(last=file.last, sustained_flops=rate)
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

    def _stops_on_signal(self, metric_logger: MetricLogger) -> StopOnSignal:
        def save(step: int) -> None:
            metric_logger.finish()
            self.save(step)

        def ask_all(has_signal: bool) -> bool:
            return sum_over_workers(self.strategy, float(has_signal)) > 0

        asks = ask_all if self.worker.count > 1 else None
        checks = self.checkpoints.is_regular, self.training.is_validated
        return StopOnSignal(self.counter, save, *checks, asks)

    def _validations(self, devs: Sequence[ParallelText]) -> list[ValidateMetric]:
        """Returns a callback for each dev set; none where validation is to take no time."""
        if not self.training.validation_time_share:
            return []
        average, is_validated = self.weight_average, self.training.is_validated
        averages = contextlib.nullcontext if average is None else average.applied
        search = self.run.configs().search_config()
        options = self.run.vocabularies(), self.task, self.training, search
        is_due = lambda: is_validated(self.counter.step)  # noqa: E731
        return [
            ValidateMetric(
                self.task.metric.of_dev_set(number),
                DevMetric(self.model, dev, *options),
                averages,
                is_due,
            )
            for number, dev in enumerate(devs, start=1)
        ]

    def _saves_checkpoints(self) -> keras.callbacks.Callback:
        """Returns what writes a checkpoint, with its metrics, at the end of an interval."""

        def save(epoch: int, logs: dict[str, Any]) -> None:
            if self.checkpoints.is_regular(self.counter.step):
                self.save(self.counter.step, dev_metrics(logs, self.task.metric))

        return keras.callbacks.LambdaCallback(on_epoch_end=save)

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
            sum_over_workers(self.strategy, 0.0)  # they wait for each other
