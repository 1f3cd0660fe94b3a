"""The program of a training run: what happens in which order, from resuming to the average.

`Trainer.train` is the loop over the batches. Training never depends on wall-clock time, so a run
that is killed and resumed ends with the weights of one that was not.
"""

import concurrent.futures
import contextlib
import functools
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf
from typing_extensions import Self

from keras_transformer.config import TrainingConfig
from keras_transformer.data import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    Batch,
    BatchPlan,
    BatchShape,
    ParallelText,
    TokenizedCorpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.errors import InputError, one_line
from keras_transformer.host import num_cores
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.text import SubwordSampler
from keras_transformer.training.checkpoints import by_name
from keras_transformer.training.distribution import (
    all_or_none,
    sum_over_workers,
    value_of_chief,
    worker_of,
)
from keras_transformer.training.metrics import (
    MetricsFile,
    Row,
    TensorBoardLog,
    TrainingMeter,
    first_row,
    with_dev_values,
)
from keras_transformer.training.optimizer import compile_for_training, freeze
from keras_transformer.training.prepare import tokenize
from keras_transformer.training.progress import Progress
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.validation import DevMetric, check_validation

# Steps after which several workers ask each other whether to stop; each time a GPU must wait.
_STEPS_BETWEEN_QUESTIONS = 8


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus | None = None,
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
        corpus: the sentence pairs to train on; None means those that the run was created with.
        dev: pairs whose loss and task metric are measured at each validation; of several dev sets
            the first decides, and only the metric of the others is measured. None means those
            that the run was created with.
        strategy: from `make_strategy`; None trains on one device.
        jit_compile: as in `TokenWeightedModel.compile`.
        tensorboard: whether to write TensorBoard logs into the run directory.
        show: whether to print progress on standard output.

    Raises:
        Stopped: by SIGTERM or Ctrl-C, after a checkpoint of the present step was written.
        InputError: another process trains the run; a checkpoint cannot be written, memory does
            not suffice, or gradients stay non-finite; the last good checkpoint stays.

    Example:
        >>> run = RunDirectory.create("runs/mine", train=("train.en", "train.de"))
        >>> model = train(run)
    """
    strategy = strategy or tf.distribute.get_strategy()
    with contextlib.ExitStack() as stack:
        with all_or_none(strategy):
            if worker_of(strategy).is_chief:
                stack.enter_context(run.lock())
        corpus = run.corpus() if corpus is None else corpus
        dev = run.dev_sets() if dev is None else dev
        with strategy.scope():
            trainer = Trainer(run, strategy, jit_compile)
            devs = [dev] if isinstance(dev, ParallelText) else dev
            trainer.train(corpus, devs, tensorboard=tensorboard, show=show)
            trainer.average()
    return trainer.model


def is_finished(run: RunDirectory) -> bool:
    """Whether training has come to the end of the run, by its number of steps or by a metric."""
    configs, checkpoints = run.configs(), run.checkpoints()
    training, step = configs.training, max(checkpoints.steps(), default=0)
    is_stalled = training.stop_metric is not None and checkpoints.is_stalled(
        step, configs.task.find_metric(training.stop_metric), training.stop_patience
    )
    return (step >= training.train_steps or is_stalled) and checkpoints.has_average()


class Due(NamedTuple):
    """What follows an update, in this order.

    Attributes:
        check: read the number of skipped updates, for which a GPU must wait: twice in
            `max_bad_steps` updates.
        log: write a row of metrics.
        validate: measure the dev sets.
        save: write a checkpoint.
        ask: ask the other workers whether one of them was stopped.
    """

    check: bool
    log: bool
    validate: bool
    save: bool
    ask: bool

    @classmethod
    def after(cls, step: int, training: TrainingConfig) -> Self:
        """Returns what is due after so many updates of a run."""
        validate = training.is_validated(step)
        save = step % training.checkpoint_steps == 0 or step == training.train_steps
        return cls(
            check=step % max(1, training.max_bad_steps // 2) == 0,
            log=validate or save or step % training.log_steps == 0,
            validate=validate,
            save=save,
            ask=validate or save or step % _STEPS_BETWEEN_QUESTIONS == 0,
        )


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


class Trainer:
    """Trains a run in one process, under the scope of its strategy.

    Args:
        run: an existing run directory; its newest checkpoint is resumed from.
        strategy, jit_compile: as in `train`.

    Attributes:
        model: built and compiled.
        step: updates of the run so far.
        weight_average: the moving average of the weights, None if the run keeps none.
    """

    def __init__(
        self,
        run: RunDirectory,
        strategy: tf.distribute.Strategy,
        jit_compile: bool | Literal["auto"] = "auto",
    ) -> None:
        self.run = run
        self.strategy = strategy
        self.worker = worker_of(strategy)
        self.configs = run.configs()
        self.task, self.training = self.configs.task, self.configs.training
        self.checkpoints = run.checkpoints()
        keras.utils.set_random_seed(self.training.seed)
        with strategy.scope():
            self.model = build_model(self.configs.model, dtype=self.training.precision)
            freeze(self.model, self.training.freeze)
            if self.training.lora_rank is not None:
                self.model.enable_lora(self.training.lora_rank)
            compile_for_training(self.model, self.training, jit_compile)
            self.weight_average = None
            if self.training.ema_decay is not None:
                self.weight_average = WeightAverage(
                    self.model, self.training.ema_decay, self.model.uses_xla
                )
        self._summed_metrics = tf.function(
            lambda: strategy.run(self.model.metrics_of_all_replicas), autograph=False
        )
        self.step = self._resume()
        # A run that starts from another one's weights is first validated with them.
        is_measured = self.checkpoints.steps() != [0] or 0 in self.checkpoints.metrics.read()
        self.is_measured = bool(value_of_chief(strategy, is_measured))

    def train(
        self,
        corpus: TokenizedCorpus,
        devs: Sequence[ParallelText] = (),
        *,
        tensorboard: bool = False,
        show: bool = True,
    ) -> None:
        """Trains to the last step, or until `stop_metric` stalls; raises as `train` does."""
        model, training, checkpoints = self.model, self.training, self.checkpoints
        check_validation(training, self.task, devs[0] if devs else None)
        if self.step >= training.train_steps or self._is_stalled():
            return
        stream = iter(self._training_batches(corpus))
        validate = Validation(self, devs) if devs else None

        @tf.function(autograph=False)
        def update(stream: Any) -> Any:
            return self.strategy.run(model.update, args=(next(stream),))

        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(StopSignals())
            meter, progress, log = self._open_log(stack, validate, tensorboard, show)
            stack.enter_context(report_out_of_memory())
            if model.uses_xla:
                self._compile(corpus, show and self.worker.is_chief)

            if validate and not self.is_measured:
                values = validate()
                log(first_row(), values)
                self._on_chief(lambda: checkpoints.metrics.write(0, self._decisive(values)))

            while self.step < training.train_steps:
                # One update. The host only waits for the device in the check for bad steps.
                meter.begin_batch()
                logs = update(stream)
                self.step += 1
                if self.weight_average:
                    self.weight_average.update(self.step)
                due = Due.after(self.step, training)
                if due.log and not logs:
                    logs = self._sum_metrics()
                if logs:
                    meter.end_batch(logs)
                if progress and meter.has_values:
                    progress.end_batch(self.step)
                if due.check:
                    self._check_bad_steps()

                # Log, validate, save: the row of a checkpoint is written before it, since a
                # resumed run drops rows beyond its checkpoint.
                values = {}
                if due.log:
                    row = meter.end_row(self.step)
                    if due.validate and validate:
                        values = validate()
                    log(row, values)
                if due.save:
                    self.save(values)

                # Stop. On a signal a checkpoint is written first if there is none of this step.
                if received := self._signal_to_any(signals, due):
                    if meter.has_new_batches:
                        meter.end_batch(logs or self._sum_metrics())
                        log(meter.end_row(self.step), {})
                    if not due.save:
                        self.save()
                    raise Stopped(received, self.step)
                if due.save and self._is_stalled():
                    return

    def save(self, dev_values: Mapping[str, float] | None = None) -> None:
        """Writes a checkpoint, with what decides about it; all workers wait for the chief."""
        metrics = self._decisive(dev_values or {})
        self._on_chief(
            lambda: self.checkpoints.save(self.model, self.step, metrics=metrics, **self._state())
        )

    def average(self) -> None:
        """Gives the model the average of its last or best checkpoints, and writes it (6.1)."""
        training = self.training
        steps = self.checkpoints.to_average(training.average_last, training.average_best)
        if steps:
            if training.lora_rank is not None:  # the average has the LoRA matrices merged into it
                self.model = build_model(self.configs.model, dtype=training.precision)
            with all_or_none(self.strategy):
                self.checkpoints.average(self.model, steps)
            self._on_chief(lambda: self.checkpoints.save_weights(self.model))

    @property
    def max_shapes(self) -> int:
        """How many shapes batches may have: few where XLA compiles a program for each."""
        return MAX_COMPILED_SHAPES if self.model.uses_xla else MAX_SHAPES

    def averaged_weights(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which the model has the moving averages, if the run keeps any."""
        return self.weight_average.applied() if self.weight_average else contextlib.nullcontext()

    def _open_log(
        self,
        stack: contextlib.ExitStack,
        validate: "Validation | None",
        tensorboard: bool,
        show: bool,
    ) -> tuple[TrainingMeter, Progress | None, Callable[[Row, Mapping[str, float]], None]]:
        """Returns what measures batches, what shows progress, and a function that logs a row.

        Only the chief writes files and shows progress.
        """
        metrics = [metric for metric, _ in validate.dev_metrics] if validate else []
        listeners: list[Callable[[Row], None]] = []
        meter, progress = TrainingMeter(self.model), None
        with all_or_none(self.strategy):
            if self.worker.is_chief:
                file = MetricsFile(self.run.metrics_path, self.step if self.is_measured else -1)
                rate = self.training.sustained_tflops
                if rate is not None:
                    rate *= 1e12 * self.strategy.num_replicas_in_sync
                meter = TrainingMeter(self.model, file.last, rate)
                listeners.append(file.append)
                if tensorboard:
                    folder = self.run.path / "tensorboard"
                    listeners.append(TensorBoardLog(folder, file.rows()).write)
                if show:
                    progress = Progress(meter, metrics, self.training.train_steps)
                    listeners.append(progress.show)
                    stack.callback(progress.finish)

        def log(row: Row, dev_values: Mapping[str, float]) -> None:
            with all_or_none(self.strategy):
                for listener in listeners:
                    listener(with_dev_values(row, dev_values, metrics))

        return meter, progress, log

    def _decisive(self, dev_values: Mapping[str, float]) -> dict[str, float]:
        """Returns what is kept with a checkpoint: the values of the first dev set."""
        names = {name for name in dev_values if name.startswith("val_")} | {self.task.metric.name}
        return {name: dev_values[name] for name in dev_values if name in names}

    def _check_bad_steps(self) -> None:
        """Raises `InputError` if update after update is skipped, since no gradient is finite."""
        bad_steps = int(self.model.bad_steps_in_a_row.numpy())
        if bad_steps < self.training.max_bad_steps:
            return
        steps = self.checkpoints.steps()
        last = f"the last good checkpoint is step-{steps[-1]}" if steps else "no checkpoint yet"
        raise InputError(
            f"no gradient was finite in the {bad_steps} updates up to step {self.step}, and "
            f"{last}; train another run with a lower learning_rate or clip_norm, or raise "
            "max_bad_steps"
        )

    def _signal_to_any(self, signals: "StopSignals", due: Due) -> signal.Signals | None:
        """Returns the signal to heed: this worker's, or SIGTERM for that of another worker.

        All workers must stop after the same step, so they ask each other every few steps.
        """
        if self.worker.count == 1:
            return signals.received
        if not due.ask:
            return None
        if sum_over_workers(self.strategy, float(signals.received is not None)) > 0:
            return signals.received or signal.SIGTERM
        return None

    def _is_stalled(self) -> bool:
        """Whether `stop_metric`, if the run has one, ends it at this step."""
        if self.training.stop_metric is None:
            return False
        metric = self.task.find_metric(self.training.stop_metric)
        is_stalled = self.checkpoints.is_stalled(self.step, metric, self.training.stop_patience)
        return bool(value_of_chief(self.strategy, is_stalled))

    def _resume(self) -> int:
        """Reads the newest checkpoint and returns its step, which all workers must agree on."""
        step, failure = -1, None
        try:
            step = self.checkpoints.resume(self.model, **self._state())
        except InputError as error:  # the others must learn of it
            failure = error
        chief_step = int(value_of_chief(self.strategy, step))
        is_other = failure is not None or step != chief_step
        if self.worker.count > 1:
            is_other = sum_over_workers(self.strategy, float(is_other)) > 0
        if failure is not None:
            raise failure
        if is_other:
            raise InputError(
                f"the workers do not resume from the same checkpoint: worker {self.worker.index} "
                f"read step {step}, the first worker step {chief_step}; check that all of them can "
                f"read {self.checkpoints.folder}, and start again"
            )
        return step

    def _state(self) -> dict[str, Any]:
        """Returns what training resumes from besides the model and its optimizer."""
        state = {"extra": {"bad_steps_in_a_row": self.model.bad_steps_in_a_row}}
        if self.weight_average is not None:
            state["average_weights"] = self.weight_average.variables
        return state

    def _on_chief(self, write: Callable[[], None]) -> None:
        with all_or_none(self.strategy):
            if self.worker.is_chief:
                write()

    def _compile(self, corpus: TokenizedCorpus, show: bool) -> None:
        """Compiles the program of each shape of batches, side by side, before the first update.

        Padding runs through each of them once; what that changes is put back.
        """
        model, strategy = self.model, self.strategy
        ids = tf.TensorSpec([None, None], tf.int32)

        @tf.function(input_signature=[ids, ids], autograph=False)
        def rehearse(source: tf.Tensor, target: tf.Tensor) -> None:
            batch = {"source": source, "target": target}, target
            strategy.run(model.rehearse, args=(batch,))

        def compile_shape(shape: BatchShape) -> None:
            rows = -(-shape.rows // strategy.num_replicas_in_sync)
            rehearse(*(tf.zeros([rows, length], tf.int32) for length in shape[1:]))

        def report(count: int) -> None:
            if show:
                print(f"Compiling {len(shapes)} programs: {count} done", flush=True)

        shapes = BatchPlan(corpus, **self._plan_options()).shapes
        report(0)
        variables = [*model.variables, *model.optimizer.variables]
        variables += [model.bad_steps, model.bad_steps_in_a_row]
        values = [variable.numpy() for variable in variables]
        rehearse.get_concrete_function()  # threads would trace it at the same time
        with concurrent.futures.ThreadPoolExecutor(num_cores()) as pool:
            futures = [pool.submit(compile_shape, shape) for shape in shapes]
            for count, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                future.result()
                report(count)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _sum_metrics(self) -> dict[str, tf.Tensor]:
        """Returns the metrics of several replicas, which each update would have to wait for."""
        sums = self._summed_metrics()
        return {
            name: self.strategy.experimental_local_results(each)[0] for name, each in sums.items()
        }

    def _plan_options(self) -> dict[str, Any]:
        """Returns what the batches of training follow from, besides the corpus."""
        return {
            "batch_tokens": self.training.batch_tokens,
            "batch_sentences": self.training.batch_sentences,
            "max_shapes": self.max_shapes,
            "mix_weights": self.configs.corpora.weights,
        }

    def _training_batches(self, corpus: TokenizedCorpus) -> Any:
        """Returns the run's endless stream of batches from this step on."""
        BatchPlan(corpus, **self._plan_options())  # raises in this thread if it is impossible
        data = self.configs.corpora
        resample = None
        if data.subword_sampling:
            source, target = (
                SubwordSampler(vocabulary, alpha=data.subword_sampling) if varies else None
                for vocabulary, varies in zip(
                    self.run.vocabularies(), data.has_subwords, strict=True
                )
            )
            resample = source, target
        return distributed(
            self.strategy,
            training_batches,
            corpus,
            **self._plan_options(),
            seed=self.training.seed,
            first_step=self.step,
            resample=resample,
        )


class Validation:
    """Measures the model on the dev sets: the loss on the first, the task's metric on each.

    Args:
        trainer: has the model and its settings.
        devs: at least one.

    Attributes:
        dev_metrics: the metric of each dev set, and what measures it; none where validation is to
            take no time.
    """

    def __init__(self, trainer: Trainer, devs: Sequence[ParallelText]) -> None:
        self._model, self._weights = trainer.model, trainer.averaged_weights
        run, task, training = trainer.run, trainer.task, trainer.training
        vocabularies = run.vocabularies()
        search = trainer.configs.search_config(task.dev_search)
        self.dev_metrics = [
            (
                task.metric.of_dev_set(number),
                DevMetric(trainer.model, dev, vocabularies, task, training, search),
            )
            for number, dev in enumerate(devs, start=1)
            if training.validation_time_share
        ]
        learned = devs[0]._replace(target=list(map(task.target_text, devs[0].target)))
        corpus = tokenize(learned, vocabularies, trainer.configs.corpora.max_length)
        # As large as a part of a training batch, which is known to fit in memory, but with room
        # for the longest sentence.
        longest = max(int(lengths.max()) for lengths in corpus.lengths())
        size = max(training.batch_tokens // training.accumulation_steps, longest)
        bounds: Any = {"batch_tokens": size, "max_shapes": trainer.max_shapes}
        self.num_batches = BatchPlan(corpus, **bounds).batches_per_epoch
        self.batches = distributed(trainer.strategy, evaluation_batches, corpus, **bounds)
        self._model.make_test_function()

    def __call__(self) -> dict[str, float]:
        """Returns the values by name, of the moving averages if the run keeps any."""
        with self._weights():
            self._model.reset_metrics()
            stream, logs = iter(self.batches), {}
            for _ in range(self.num_batches):
                logs = self._model.test_function(stream)
            values = {f"val_{name}": float(value) for name, value in logs.items()}
            return values | {metric.name: measure() for metric, measure in self.dev_metrics}


class WeightAverage:
    """An exponential moving average of a model's trainable weights.

    After step t, average = d * average + (1 - d) * weights with
    d = min(decay, (1 + t) / (10 + t)), so that the first values are forgotten soon (Abadi et al.
    2016, tf.train.ExponentialMovingAverage).

    Args:
        model: built under the strategy that trains it.
        decay: d in the long run, between 0 and 1.
        jit_compile: whether XLA compiles the update of the averages, on one device.

    Attributes:
        variables: the averages by the weights' paths within the model, for checkpoints.
    """

    def __init__(self, model: keras.Model, decay: float, jit_compile: bool = False) -> None:
        self._weights = model.trainable_weights
        self._decay = decay
        self._strategy = model.distribute_strategy
        with self._strategy.scope():
            # Each replica averages its own copy of the weights: they need not communicate.
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
        is_compiled = jit_compile and self._strategy.num_replicas_in_sync == 1
        self._update = tf.function(self._update_all, autograph=False, jit_compile=is_compiled)

    def update(self, step: int) -> None:
        """Takes in the weights after a step."""
        self._update(tf.constant(min(self._decay, (1 + step) / (10 + step)), tf.float32))

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


class StopSignals:
    """A context that catches SIGTERM and Ctrl-C; a second Ctrl-C raises `KeyboardInterrupt`.

    Outside of the main thread signals cannot be caught, and those that are ignored, as under
    `nohup`, stay ignored.

    Attributes:
        received: the last signal; None while there was none.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
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

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)


# How libraries beneath TensorFlow report a lack of memory, as an internal error.
_LACKS_MEMORY = re.compile(r"out.of.memory|(cublas|cudnn).*(not.initialized|handle)", re.IGNORECASE)


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, with the flags to change, if memory runs out."""
    try:
        yield
    except (MemoryError, tf.errors.OpError) as error:
        is_known = isinstance(error, MemoryError | tf.errors.ResourceExhaustedError)
        if not is_known and not _LACKS_MEMORY.search(str(error)):
            raise
        raise InputError(
            f"out of memory with a batch ({one_line(error)}); end other programs on this GPU if "
            "there are any, raise --accumulation_steps, which makes the batches of training and of "
            "the dev set smaller, or lower --batch_tokens in another --run_dir"
        ) from error


def distributed(
    strategy: tf.distribute.Strategy,
    make_batches: Callable[..., Iterator[Batch]],
    corpus: TokenizedCorpus,
    **options: Any,
) -> Any:
    """Returns a data set of this worker's rows of batches, which its replicas cut up."""
    worker = worker_of(strategy)
    shard, replicas = (worker.index, worker.count), strategy.num_replicas_in_sync
    dataset = to_dataset(
        functools.partial(make_batches, corpus, shard=shard, replicas=replicas, **options)
    )
    if worker.count > 1:
        return strategy.distribute_datasets_from_function(lambda context: dataset)
    policy = tf.data.Options()
    # A strategy is to cut up the batches and not the files that they come from.
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return strategy.experimental_distribute_dataset(dataset.with_options(policy))
