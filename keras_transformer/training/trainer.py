"""One process that trains a run: its model, its callbacks and its checkpoints."""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import ops
from typing_extensions import Self

from keras_transformer.config import TrainingConfig, split_list
from keras_transformer.data import (
    Batch,
    BatchPlan,
    ParallelText,
    TokenizedCorpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.errors import InputError, check_choice, one_line
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.objectives import (
    InverseSquareRoot,
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
)
from keras_transformer.tasks import Metric, Task
from keras_transformer.text import SubwordSampler
from keras_transformer.training.checkpoints import Checkpoints, by_name, dev_metrics
from keras_transformer.training.distribution import sum_over_workers, worker_of
from keras_transformer.training.flops import TrainingFlops
from keras_transformer.training.metrics import MetricLogger, MetricsFile, Progress, StepCounter
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.validation import DevMetric, ValidateMetric, check_validation

# How `fit` is called so that checkpoints and validations come at their steps.


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


def epochs_with_validation(first: int, last: int, training: TrainingConfig) -> list[int]:
    """Returns the epochs of a call of `fit`, counted from 1, that end with a validation."""
    every, end = min(training.event_steps), training.train_steps
    epochs = range(first + 1, last + 1)
    return [epoch for epoch in epochs if training.is_validated(min(epoch * every, end))]


# Callbacks that need not wait for the device after each batch.


class LazyLogs(keras.callbacks.CallbackList):
    """A list of callbacks for `fit` that get the logs of a batch as tensors.

    Keras turns the logs of every batch into Python numbers before it calls the first callback,
    and so waits for the device each time. Here a callback that wants a number takes `float` of
    it, and waits only then. The logs of an epoch are numbers as ever.

    Args:
        callbacks: as in `fit`.
        model: whose `fit` they are for.

    Example:
        >>> model.fit(data, callbacks=LazyLogs(callbacks, model), verbose=0)
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback], model: keras.Model) -> None:
        super().__init__(callbacks, add_history=True, model=model)  # `fit` returns the history

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for callback in self.callbacks:
            callback.on_test_batch_end(batch, logs)


# What ends training before its last step, and how nothing is lost by it.
#
# On a signal a checkpoint is saved first. Training also ends where going on would be a waste: when
# a metric stops improving, gradients stay non-finite or memory runs out.

# Steps after which several workers ask each other whether to stop; each time a GPU must wait.
_STEPS_BETWEEN_QUESTIONS = 8


class Stopped(Exception):  # noqa: N818  # it is no error
    """Training was stopped by a signal, and a checkpoint of its state was written.

    Attributes:
        signal: which one.
        step: of the checkpoint.
    """

    def __init__(self, received: signal.Signals, step: int) -> None:
        super().__init__(f"stopped by {received.name} after step {step}")
        self.signal = received
        self.step = step


class StopOnSignal(keras.callbacks.Callback):
    """Ends training on SIGTERM or Ctrl-C: saves what there is, then raises `Stopped`.

    It is a context as well, in which the signals are caught; `fit` is called inside. A second
    Ctrl-C stops at once, with `KeyboardInterrupt`. Where the signals cannot be caught, outside of
    the main thread, or are ignored, as by `nohup`, all stays as it is. It comes last in the list
    of callbacks, so that at the end of an interval the others have done their work.

    Args:
        counter: counts the steps.
        save: writes the checkpoint of a step.
        is_regular: says of a step whether it gets a checkpoint anyway; `Checkpoints.is_regular`.
        is_validated: whether the dev set is evaluated after a step; that comes first.
        ask_all: for several workers, which must stop after the same step: given whether this one
            has a signal, returns whether any has. All of them call it at the same steps.

    Example:
        >>> checks = checkpoints.is_regular, training.is_validated
        >>> with StopOnSignal(counter, save, *checks) as stop:
        ...     model.fit(batches, callbacks=[counter, stop])
    """

    def __init__(
        self,
        counter: StepCounter,
        save: Callable[[int], None],
        is_regular: Callable[[int], bool] = lambda step: False,
        is_validated: Callable[[int], bool] = lambda step: False,
        ask_all: Callable[[bool], bool] | None = None,
    ) -> None:
        super().__init__()
        self.counter = counter
        self.save = save
        self.is_regular = is_regular
        self.is_validated = is_validated
        self.ask_all = ask_all
        self._received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if self.is_regular(step) or self.is_validated(step):  # see `on_epoch_end`
            return
        if self.ask_all is not None and step % _STEPS_BETWEEN_QUESTIONS:
            return
        if received := self._signal_to_any():
            self.save(step)
            raise Stopped(received, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if received := self._signal_to_any():
            if not self.is_regular(step):  # an interval that ends with a validation only
                self.save(step)
            raise Stopped(received, step)

    def _signal_to_any(self) -> signal.Signals | None:
        """Returns the signal to heed: this worker's own, or SIGTERM for that of another."""
        if self.ask_all is not None and self.ask_all(self._received is not None):
            return self._received or signal.SIGTERM
        return None if self.ask_all is not None else self._received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signal.Signals(number)


class StopEarly(keras.callbacks.Callback):
    """Ends training once a metric has not improved at so many checkpoints in a row.

    All that it knows it reads from the checkpoints' metrics: a run that is resumed stops where it
    would have stopped. It comes after the callback that saves checkpoints.

    Args:
        counter: counts the steps.
        checkpoints: hold the metrics.
        metric: which one, and its direction.
        patience: checkpoints without a better value before the run stops.
        is_validated: whether the dev set is evaluated after a step.
    """

    def __init__(
        self,
        counter: StepCounter,
        checkpoints: Checkpoints,
        metric: Metric,
        patience: int,
        is_validated: Callable[[int], bool] = lambda step: True,
    ) -> None:
        super().__init__()
        self.is_validated = is_validated
        self.counter = counter
        self.checkpoints = checkpoints
        self.metric = metric
        self.patience = patience

    def is_due(self) -> bool:
        """Whether the run has come to its end, at the step where it is."""
        best, waited = -float("inf"), 0
        for step, metrics in self.checkpoints.metrics.read().items():
            # Metrics of later steps are left by a run whose newest checkpoint was damaged, those of
            # other steps by the end of a run that was extended.
            if step > self.counter.step or not self.checkpoints.is_regular(step):
                continue
            if self.metric.name not in metrics:
                continue
            value = self.metric.rank(metrics[self.metric.name])
            waited = 0 if value > best else waited + 1
            best = max(best, value)
        return waited >= self.patience

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.is_validated(self.counter.step):
            return
        known = sorted(dev_metrics(logs, self.checkpoints.metric))
        if self.metric.name not in known:
            raise InputError(
                f"stop_metric {self.metric.name!r} is no metric of this run's dev set; it has "
                f"{', '.join(known) or 'no dev set'}"
            )
        if self.is_due():
            self.model.stop_training = True


def is_stopped_early(
    training: TrainingConfig, task: Task, checkpoints: Checkpoints, step: int
) -> bool:
    """Whether `stop_metric`, where there is one, ends the run at this step."""
    if training.stop_metric is None:
        return False
    metric = task.find_metric(training.stop_metric)
    return StopEarly(StepCounter(step), checkpoints, metric, training.stop_patience).is_due()


class StopOnBadSteps(keras.callbacks.Callback):
    """Ends training where update after update is skipped, because no gradient is finite.

    The model counts them, as `bad_steps_in_a_row`. To read the number makes a GPU wait, so it is
    read twice in `max_bad_steps` steps.

    Args:
        counter: counts the steps.
        checkpoints: names the last good one.
        max_bad_steps: skipped updates in a row that end the run.
    """

    def __init__(self, counter: StepCounter, checkpoints: Checkpoints, max_bad_steps: int) -> None:
        super().__init__()
        self.counter = counter
        self.checkpoints = checkpoints
        self.max_bad_steps = max_bad_steps

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if step % max(1, self.max_bad_steps // 2):
            return
        bad_steps = int(self.model.bad_steps_in_a_row.numpy())
        if bad_steps >= self.max_bad_steps:
            steps = self.checkpoints.steps()
            last = f"the last good checkpoint is step-{steps[-1]}" if steps else "no checkpoint yet"
            raise InputError(
                f"no gradient was finite in the {bad_steps} updates up to step {step}, and {last}; "
                "train another run with a lower learning_rate or clip_norm, or raise max_bad_steps"
            )


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, saying which flags to change, where memory runs out."""
    try:
        yield
    except (MemoryError, tf.errors.OpError) as error:
        # Libraries beneath TensorFlow report it as an internal error.
        if not isinstance(
            error, MemoryError | tf.errors.ResourceExhaustedError
        ) and "out of memory" not in str(error).lower().replace("_", " "):
            raise
        raise InputError(
            f"out of memory with a batch ({one_line(error)}); raise --accumulation_steps, which "
            "makes the batches of training and of the dev set smaller, or lower --batch_tokens in "
            "another --run_dir"
        ) from error


# An exponential moving average of the weights, beside those that are trained.


class WeightAverage(keras.callbacks.Callback):
    """Averages the weights after each batch, and validates with the average.

    After step t, average = d * average + (1 - d) * weights with
    d = min(decay, (1 + t) / (10 + t)), so that the first values are forgotten soon (Abadi et al.
    2016, tf.train.ExponentialMovingAverage).

    Args:
        model: whose weights; built under the strategy that trains it.
        decay: d in the long run, between 0 and 1.
        counter: counts the batches.

    Attributes:
        variables: the averages by the weights' paths within the model, for checkpoints.
    """

    def __init__(self, model: keras.Model, decay: float, counter: StepCounter) -> None:
        super().__init__()
        self._weights = model.trainable_weights
        self._decay = decay
        self._counter = counter
        self._strategy = model.distribute_strategy
        with self._strategy.scope():
            # Each replica averages its own copy of the weights: they need not talk.
            averages = [
                tf.Variable(
                    weight.value,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for weight in self._weights
            ]
        self.variables = dict(zip(by_name(model, self._weights), averages, strict=True))
        self._update = tf.function(self._update_all, autograph=False)
        self._stack = contextlib.ExitStack()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self._counter.step
        self._update(tf.constant(min(self._decay, (1 + step) / (10 + step)), tf.float32))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._stack.enter_context(self.applied())

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model the averages for a while."""
        trained = [tf.identity(weight.value) for weight in self._weights]
        for weight, average in zip(self._weights, self.variables.values(), strict=True):
            weight.assign(average.read_value())
        try:
            yield
        finally:
            for weight, value in zip(self._weights, trained, strict=True):
                weight.assign(value)

    def _update_all(self, decay: tf.Tensor) -> None:
        def update() -> None:
            for weight, average in zip(self._weights, self.variables.values(), strict=True):
                average.assign_add((1 - decay) * (tf.convert_to_tensor(weight.value) - average))

        self._strategy.run(update)


# The batches of a run, as data sets that the devices and machines of a strategy share.


class TrainingInput:
    """Gives `fit` what it trains and validates on.

    Args:
        run: says how batches are made, and holds the vocabularies.
        strategy: says how many devices and workers share a batch.
    """

    def __init__(self, run: RunDirectory, strategy: tf.distribute.Strategy) -> None:
        configs = run.configs()
        self._data, self._training, self._task = configs.corpora, configs.training, configs.task
        self._vocabularies = run.vocabularies()
        self._strategy = strategy
        self._worker = worker_of(strategy)
        self._sharing = {
            "batch_tokens": self._training.batch_tokens,
            "replicas": strategy.num_replicas_in_sync,
            "shard": (self._worker.index, self._worker.count),
        }

    def training_batches(self, corpus: TokenizedCorpus, first_step: int) -> Any:
        """Returns the run's endless stream of batches, starting at `first_step`."""
        resample = None
        if self._data.subword_sampling:
            source, target = (
                SubwordSampler(vocabulary, alpha=self._data.subword_sampling) if varies else None
                for vocabulary, varies in zip(
                    self._vocabularies, self._data.has_subwords, strict=True
                )
            )
            resample = source, target
        return self._distributed(
            functools.partial(
                training_batches,
                corpus,
                seed=self._training.seed,
                first_step=first_step,
                mix_weights=self._data.weights,
                resample=resample,
                **self._sharing,
            )
        )

    def validation_batches(self, text: ParallelText) -> Any:
        """Returns the batches of one pass over a dev set.

        They are as large as one accumulated part of a training batch, which is known to fit in
        memory, but have room for the longest sentence. Pairs too long for training are left out
        here too.
        """
        learned = text._replace(target=list(map(self._task.learned_text, text.target)))
        corpus = tokenize(learned, self._vocabularies, self._data.max_length)
        longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
        part = self._training.batch_tokens // self._training.accumulation_steps
        sharing = self._sharing | {"batch_tokens": max(part, longest)}
        count = BatchPlan(corpus, batch_tokens=sharing["batch_tokens"]).batches_per_epoch
        return self._distributed(functools.partial(evaluation_batches, corpus, **sharing), count)

    def _distributed(self, batches: Callable[[], Iterator[Batch]], count: int | None = None) -> Any:
        """Returns this worker's rows of the batches, which its replicas cut up."""
        dataset = to_dataset(batches)
        if count is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        if self._worker.count > 1:
            return self._strategy.distribute_datasets_from_function(lambda context: dataset)
        options = tf.data.Options()
        # A strategy is to cut up the batches and not the files that they come from.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options)


def num_shapes(run: RunDirectory, corpus: TokenizedCorpus) -> int:
    """Returns how many shapes the batches have, for each of which XLA compiles a program."""
    configs = run.configs()
    data, training = configs.corpora, configs.training
    plan = BatchPlan(corpus, batch_tokens=training.batch_tokens, mix_weights=data.weights)
    return len(plan.shapes)


# Adam (Kingma and Ba 2015) in one operation a weight.


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """Makes the updates of `keras.optimizers.Adam`, and keeps the same variables.

    Keras composes each weight's update from a dozen operations, a thousand a step in a small
    model: they took 5 to 8% of the time of `tiny`. TensorFlow has one kernel for the update.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.amsgrad:
            raise ValueError("FusedAdam has no amsgrad; use keras.optimizers.Adam")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its moments."""
        index = self._get_variable_index(variable)
        step = ops.cast(self.iterations + 1, "float32")
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(self._momentums[index]),
            v=_handle(self._velocities[index]),
            beta1_power=ops.power(self.beta_1, step),
            beta2_power=ops.power(self.beta_2, step),
            lr=ops.cast(learning_rate, "float32"),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.convert_to_tensor(gradient),
        )


def _handle(variable: Any) -> tf.Tensor:
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


# The optimizer, schedule, loss and metrics that a run trains with (5.3, 5.4).


def compile_for_training(
    model: Seq2SeqModel, training: TrainingConfig, jit_compile: bool | Literal["auto"] = "auto"
) -> None:
    """Compiles the model with the paper's optimizer, schedule and loss (5.3, 5.4).

    Args:
        model: built under the strategy that trains it.
        training: the hyperparameters.
        jit_compile: as in `TokenWeightedModel.compile`.
    """
    if training.learning_rate is None:
        schedule = InverseSquareRoot(model.config.model_dim, training.warmup_steps)
    else:
        schedule = InverseSquareRoot.with_peak(training.learning_rate, training.warmup_steps)
    optimizer = FusedAdam(
        schedule,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        weight_decay=training.weight_decay or None,
    )
    if training.weight_decay:
        # Decay of gains and biases would only keep norms from doing their work.
        vectors = [weight for weight in model.trainable_weights if len(weight.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    model.flops_metric = TrainingFlops(model)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens(), Padding()],
        accumulation_steps=training.accumulation_steps,
        clip_norm=training.clip_norm,
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)


# Parts of a model whose weights training leaves as they are.


def freeze(model: Seq2SeqModel, parts: str | None) -> None:
    """Makes the weights of some parts untrainable; before the model is compiled.

    Args:
        model: any architecture; its layers are its parts, and "embeddings" are all tables.
        parts: their names, separated by commas.

    Raises:
        InputError: it has no such part, or nothing is left to train.
    """
    weights = {layer.name: layer.weights for layer in model.layers if layer.weights}
    weights["embeddings"] = model.embedding_tables()
    for name in split_list(parts):
        check_choice("freeze", name, tuple(sorted(weights)))
        for weight in weights[name]:
            weight.trainable = False
    if not model.trainable_weights:
        raise InputError(f"freeze {parts} leaves no weights to train; name fewer parts")


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
            from keras_transformer.training.metrics import TensorBoardLog

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


# Trains a model on a run directory with `model.fit`, from its last checkpoint on.


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus,
    dev: ParallelText | Sequence[ParallelText] | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    jit_compile: bool | Literal["auto"] = "auto",
    tensorboard: bool = False,
    show: bool = True,
) -> Seq2SeqModel:
    """Trains the run to its end and returns its model.

    A run that has checkpoints resumes from the newest: weights, optimizer, random numbers of
    dropout and place in the data. At the end checkpoints are averaged (6.1) into checkpoint
    `average`, and the model returned has those weights.

    Args:
        run: an existing run directory.
        corpus: the sentence pairs to train on.
        dev: pairs whose loss and task metric are measured at each validation; of several dev sets
            the first decides, and the others have only their metric measured.
        strategy: from `make_strategy`; None trains on one device.
        jit_compile: as in `TokenWeightedModel.compile`.
        tensorboard: whether to write TensorBoard logs into the run directory.
        show: whether to print progress on standard output.

    Raises:
        Stopped: by SIGTERM or Ctrl-C, after a checkpoint of the present step was written.
        InputError: another process trains the run; a checkpoint cannot be written, memory does
            not suffice, or gradients stay non-finite; the last good checkpoint stays.
    """
    strategy = strategy or tf.distribute.get_strategy()
    devs = [dev] if isinstance(dev, ParallelText) else list(dev or ())
    with run.lock() if worker_of(strategy).is_chief else contextlib.nullcontext():
        trainer = Trainer(run, strategy, jit_compile, show)
        with strategy.scope():
            trainer.train(corpus, devs, tensorboard)
            trainer.average()
    return trainer.model


def is_finished(run: RunDirectory) -> bool:
    """Whether training has come to the end of the run, by its number of steps or by a metric."""
    configs, checkpoints = run.configs(), run.checkpoints()
    training, step = configs.training, max(checkpoints.steps(), default=0)
    at_end = step >= training.train_steps or is_stopped_early(
        training, configs.task, checkpoints, step
    )
    return at_end and checkpoints.has_average()
