"""The program of a training run: what happens in which order, from resuming to the average.

A `Trainer` builds the model and sets all that training depends on to the newest checkpoint:
weights, optimizer, random numbers of dropout, moving averages. `Trainer.train` is the loop over the
batches, from the step of that checkpoint on; what follows an update is a function of its step
(`Due`). Nothing depends on wall-clock time: a run that is killed and resumed ends with the weights
of one that was not.
"""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf
from typing_extensions import Self

from keras_transformer.config import TrainingConfig
from keras_transformer.data import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    BatchPlan,
    ParallelText,
    TokenizedCorpus,
    training_batches,
)
from keras_transformer.errors import InputError
from keras_transformer.host import noted_signals
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.training.distribution import (
    all_or_none,
    distributed,
    report_out_of_memory,
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
from keras_transformer.training.optimizer import (
    WeightAverage,
    compile_for_training,
    compile_shapes,
    freeze,
)
from keras_transformer.training.prepare import subword_samplers
from keras_transformer.training.progress import Progress
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.validation import Validation, check_validation

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
        self.run, self.strategy, self.worker = run, strategy, worker_of(strategy)
        self.configs, self.checkpoints = run.configs(), run.checkpoints()
        self.task, self.training = self.configs.task, self.configs.training
        keras.utils.set_random_seed(self.training.seed)
        with strategy.scope():
            self.model = build_model(self.configs.model, dtype=self.training.precision)
            freeze(self.model, self.training.freeze)
            if self.training.lora_rank is not None:
                self.model.enable_lora(self.training.lora_rank)
            compile_for_training(self.model, self.training, jit_compile)
            decay, self.weight_average = self.training.ema_decay, None
            # What training resumes from besides the model and its optimizer.
            self._state: Any = {"extra": {"bad_steps_in_a_row": self.model.bad_steps_in_a_row}}
            if decay is not None:
                self.weight_average = WeightAverage(self.model, decay, self.model.uses_xla)
                self._state["average_weights"] = self.weight_average.variables
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
        check_validation(training, devs[0] if devs else None)
        if self.step >= training.train_steps or self._is_stalled():
            return
        vocabularies = self.run.vocabularies()
        # Few shapes where XLA compiles a program for each.
        usual_shapes = MAX_COMPILED_SHAPES if model.uses_xla else MAX_SHAPES
        max_shapes = self._max_shapes(usual_shapes)
        kept = {"max_shapes": max_shapes} | ({"text": corpus.text} if corpus.text else {})
        self._on_chief(lambda: self.run.keep_trained_with(**kept))
        options: Any = {
            "batch_tokens": training.batch_tokens,
            "batch_sentences": training.batch_sentences,
            "max_shapes": max_shapes,
            "mix_weights": self.configs.corpora.weights,
        }
        shapes = BatchPlan(corpus, **options).shapes  # raises in this thread if it is impossible
        batches = distributed(
            self.strategy,
            training_batches,
            corpus,
            **options,
            seed=training.seed,
            first_step=self.step,
            resample=subword_samplers(self.configs.corpora, vocabularies),
        )
        stream, validate = iter(batches), None
        if devs:
            validate = Validation(
                model, devs, vocabularies, self.configs, usual_shapes, self.weight_average
            )

        @tf.function(autograph=False)
        def update(stream: Any) -> Any:
            return self.strategy.run(model.update, args=(next(stream),))

        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(noted_signals())
            meter, progress, log = self._open_log(stack, validate, tensorboard, show)
            stack.enter_context(report_out_of_memory())
            if model.uses_xla:
                show_compiling = show and self.worker.is_chief
                if show_compiling and len(shapes) > usual_shapes:
                    print(
                        f"The run began without XLA, with {len(shapes)} shapes of batches: XLA now "
                        f"compiles a program for each, not for {usual_shapes}."
                    )
                compile_shapes(model, shapes, show_compiling)

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
                    if not due.log:
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
            lambda: self.checkpoints.save(self.model, self.step, metrics=metrics, **self._state)
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

    def _max_shapes(self, usual: int) -> int:
        """Returns how many shapes batches may have; a run that has begun keeps its number.

        Which pairs the batches of a step have depends on it: with another one, as XLA has, a
        resumed run would not come to some pairs, and to others twice.
        """
        kept = self.run.trained_with.get("max_shapes", usual) if self.step else usual
        return int(value_of_chief(self.strategy, kept))

    def _open_log(
        self,
        stack: contextlib.ExitStack,
        validate: Validation | None,
        tensorboard: bool,
        show: bool,
    ) -> tuple[TrainingMeter, Progress | None, Callable[[Row, Mapping[str, float]], None]]:
        """Returns what measures batches, what shows progress, and a function that logs a row.

        Only the chief writes files and shows progress.
        """
        dev_metrics = validate.dev_metrics if validate else []
        metrics = [metric for metric, _ in dev_metrics]
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
                    sizes = {
                        metric: (measure.num_sentences, measure.num_all)
                        for metric, measure in dev_metrics
                    }
                    progress = Progress(meter, sizes, self.training.train_steps)
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

    def _signal_to_any(self, received: Sequence[signal.Signals], due: Due) -> signal.Signals | None:
        """Returns the signal to heed: this worker's, or SIGTERM for that of another worker.

        All workers must stop after the same step, so they ask each other every few steps.
        """
        own = received[-1] if received else None
        if self.worker.count == 1:
            return own
        if due.ask and sum_over_workers(self.strategy, float(own is not None)):
            return own or signal.SIGTERM
        return None

    def _is_stalled(self) -> bool:
        return bool(value_of_chief(self.strategy, self.run.is_stalled(self.step)))

    def _resume(self) -> int:
        """Reads the newest checkpoint and returns its step, which all workers must agree on."""
        with all_or_none(self.strategy):
            step = self.checkpoints.resume(self.model, **self._state)
        chief_step = int(value_of_chief(self.strategy, step))
        if sum_over_workers(self.strategy, float(step != chief_step)):
            raise InputError(
                f"the workers do not resume from the same checkpoint: worker {self.worker.index} "
                f"read step {step}, the first worker step {chief_step}; check that all of them can "
                f"read {self.checkpoints.folder}, and start again"
            )
        return step

    def _on_chief(self, write: Callable[[], None]) -> None:
        with all_or_none(self.strategy):
            if self.worker.is_chief:
                write()

    def _sum_metrics(self) -> dict[str, tf.Tensor]:
        """Returns the metrics of several replicas, which each update would have to wait for."""
        local = self.strategy.experimental_local_results
        return {name: local(each)[0] for name, each in self._summed_metrics().items()}
