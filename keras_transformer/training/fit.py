"""Trains a model on a run directory with `model.fit`, from its last checkpoint on."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.data import (
    Batch,
    ParallelText,
    TokenizedCorpus,
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.models import Transformer
from keras_transformer.text import SubwordSampler
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.corpora import tokenize
from keras_transformer.training.lazy_logs import LazyLogs
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.measurements import Measurements
from keras_transformer.training.metrics import Padding, Perplexity, TargetTokens, TokenAccuracy
from keras_transformer.training.metrics_file import MetricsFile
from keras_transformer.training.progress import Progress
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.schedules import InverseSquareRoot
from keras_transformer.training.scores import dev_metrics
from keras_transformer.training.step_counter import StepCounter
from keras_transformer.training.stopping import (
    StopEarly,
    StopOnBadSteps,
    StopOnSignal,
    lack_of_memory_told,
)
from keras_transformer.training.strategies import worker_of
from keras_transformer.training.validation import DevBleu, ValidateBleu
from keras_transformer.training.weight_average import WeightAverage

# Weights that are no matrices: decay would only keep norms from doing their work.
_NO_DECAY = ["gain", "bias"]


def compile_for_training(
    model: Transformer, training: TrainingConfig, jit_compile: bool | Literal["auto"] = "auto"
) -> None:
    """Compiles the model with the paper's optimizer, schedule and loss (5.3, 5.4).

    Args:
        model: built under the strategy that trains it.
        training: the hyperparameters.
        jit_compile: as of `TokenWeightedModel.compile`.
    """
    if training.learning_rate is None:
        schedule = InverseSquareRoot(model.config.model_dim, training.warmup_steps)
    else:
        schedule = InverseSquareRoot.with_peak(training.learning_rate, training.warmup_steps)
    optimizer = keras.optimizers.Adam(
        schedule,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        weight_decay=training.weight_decay or None,
    )
    if training.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=_NO_DECAY)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens(), Padding()],
        accumulation_steps=training.accumulation_steps,
        clip_norm=training.clip_norm,
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus,
    dev: ParallelText | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    jit_compile: bool | Literal["auto"] = "auto",
    tensorboard: bool = False,
    show: bool = True,
) -> Transformer:
    """Trains the run to its end and returns its model.

    A run that has checkpoints goes on from the newest: weights, optimizer, random numbers of
    dropout and place in the data. At the end checkpoints are averaged (6.1) into checkpoint
    `average`, and the model returned has those weights.

    Args:
        run: an existing run directory.
        corpus: the sentence pairs to train on.
        dev: pairs whose loss and BLEU are measured at each checkpoint.
        strategy: from `make_strategy`; None trains on one device.
        jit_compile: as of `TokenWeightedModel.compile`.
        tensorboard: whether to write TensorBoard logs into the run directory.
        show: whether to tell on standard output how it goes.

    Raises:
        Stopped: by SIGTERM or Ctrl-C, after a checkpoint of the present step was written.
        InputError: a checkpoint cannot be written, memory does not suffice, or gradients stay
            non-finite; the last good checkpoint stays.
    """
    session = _Session(run, strategy or tf.distribute.get_strategy(), jit_compile, show)
    with session.strategy.scope():
        session.train(corpus, dev, tensorboard)
        session.average()
    return session.model


class _Session:
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
        callbacks, stop_on_signal = self._callbacks(dev, tensorboard)
        held_out = None if dev is None else self._validation_data(dev)
        for first, last, interval in intervals(self.counter.step, self.training):
            if is_stopped_early(self.training, self.checkpoints, self.counter.step):
                return
            batches = functools.partial(
                self._training_batches, corpus, first_step=self.counter.step
            )
            with lack_of_memory_told(), stop_on_signal:
                self.model.fit(
                    self._distributed(batches),
                    validation_data=held_out,
                    initial_epoch=first,
                    epochs=last,
                    steps_per_epoch=interval,
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

    def _callbacks(
        self, dev: ParallelText | None, tensorboard: bool
    ) -> tuple[list[keras.callbacks.Callback], contextlib.AbstractContextManager[Any]]:
        """Returns the callbacks in the order in which they need each other's work."""
        counter, training, checkpoints = self.counter, self.training, self.checkpoints
        callbacks: list[keras.callbacks.Callback] = [counter]
        if self.weight_average is not None:
            callbacks.append(self.weight_average)
        if dev is not None and training.bleu_share:
            applied = self.weight_average.applied if self.weight_average else contextlib.nullcontext
            bleu = DevBleu(self.model, dev, self.run.vocabularies(), self.data, training)
            callbacks.append(ValidateBleu(bleu, applied))
        callbacks += self._reports(tensorboard)
        callbacks.append(StopOnBadSteps(counter, checkpoints, training.max_bad_steps))
        callbacks.append(SaveCheckpoint(counter, self.save))
        if training.stop_metric is not None:
            callbacks.append(
                StopEarly(counter, checkpoints, training.stop_metric, training.stop_patience)
            )
        if self.worker.count > 1:
            # Each would stop after another batch, and wait for the others in vain.
            return callbacks, contextlib.nullcontext()
        stop_on_signal = StopOnSignal(counter, self.save, checkpoints.is_regular)
        return [*callbacks, stop_on_signal], stop_on_signal

    def _reports(self, tensorboard: bool) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that tell how it goes."""
        if not self.worker.is_chief:
            return []
        file = MetricsFile(self.run.path / "metrics.jsonl", self.counter.step)
        measurements = Measurements(self.counter, self.training.log_steps, file.last)
        measurements.listeners.append(file.append)
        if tensorboard:
            from keras_transformer.training.tensorboard_log import TensorBoardLog

            log = TensorBoardLog(self.run.path / "tensorboard", self.counter.step)
            measurements.listeners.append(log.write)
        if not self.show:
            return [measurements]
        progress = Progress(measurements, self.training.train_steps)
        measurements.listeners.append(progress.show)
        return [measurements, progress]

    def _training_batches(self, corpus: TokenizedCorpus, **options: Any) -> Iterator[Batch]:
        rate, resample = self.data.subword_sampling, None
        if rate:
            source, target = self.run.vocabularies()
            resample = SubwordSampler(source, alpha=rate), SubwordSampler(target, alpha=rate)
        return training_batches(
            corpus,
            seed=self.training.seed,
            mix_weights=self.data.weights,
            resample=resample,
            **self._batching(),
            **options,
        )

    def _validation_data(self, dev: ParallelText) -> Any:
        corpus = tokenize(dev, self.run.vocabularies())
        tokens = self.training.batch_tokens
        count = sum(bucket_corpus(corpus, batch_tokens=tokens).batches)
        batches = functools.partial(evaluation_batches, corpus, **self._batching())
        return self._distributed(batches, count)

    def _batching(self) -> dict[str, Any]:
        return {
            "batch_tokens": self.training.batch_tokens,
            "replicas": self.strategy.num_replicas_in_sync,
            "shard": (self.worker.index, self.worker.count),
        }

    def _distributed(self, batches: Callable[[], Iterator[Batch]], count: int | None = None) -> Any:
        """Returns this worker's batches as a data set, whose rows the replicas share."""
        dataset = to_dataset(batches)
        if count is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        if self.worker.count > 1:
            return self.strategy.distribute_datasets_from_function(lambda context: dataset)
        options = tf.data.Options()
        # A strategy is to cut up the batches and not the files that they come from.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options)

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
            self.strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce(
                    tf.distribute.ReduceOp.SUM, tf.constant(1.0)
                )
            )


class SaveCheckpoint(keras.callbacks.Callback):
    """Writes a checkpoint, with its metrics, at the end of each interval that `fit` calls an epoch.

    Args:
        counter: counts the batches.
        save: writes the checkpoint of a step.
    """

    def __init__(self, counter: StepCounter, save: Callable[[int, dict[str, float]], None]) -> None:
        super().__init__()
        self.counter = counter
        self.save = save

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.save(self.counter.step, dev_metrics(logs))


def num_shapes(run: RunDirectory, corpus: TokenizedCorpus) -> int:
    """Returns how many shapes the batches have, for each of which XLA compiles a program."""
    _, data, training = run.configs()
    return len(
        bucket_corpus(corpus, batch_tokens=training.batch_tokens, mix_weights=data.weights).buckets
    )


def is_finished(run: RunDirectory) -> bool:
    """Whether training has come to the end of the run, by its number of steps or by a metric."""
    training, checkpoints = run.configs()[2], run.checkpoints()
    step = max(checkpoints.steps(), default=0)
    at_end = step >= training.train_steps or is_stopped_early(training, checkpoints, step)
    return at_end and checkpoints.has_average()


def is_stopped_early(training: TrainingConfig, checkpoints: Checkpoints, step: int) -> bool:
    """Whether a run has been stopped, at the step where it is, by the metric that may do so."""
    if training.stop_metric is None:
        return False
    counter = StepCounter(step)
    return StopEarly(counter, checkpoints, training.stop_metric, training.stop_patience).is_due()


def intervals(step: int, training: TrainingConfig) -> list[tuple[int, int, int]]:
    """Returns the calls of `fit` that lead from `step` to the end.

    Each is (first epoch, last epoch, steps an epoch), where an epoch ends at a multiple of
    `checkpoint_steps` or at the end of training.
    """
    every, end = training.checkpoint_steps, training.train_steps
    calls = []
    while step < end:
        steps = min(every - step % every, end - step)
        count = (end - step) // every if steps == every else 1
        calls.append((step // every, step // every + count, steps))
        step += count * steps
    return calls
