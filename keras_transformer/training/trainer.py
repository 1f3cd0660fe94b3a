"""The program of a training run: what happens in which order.

 1. Options become configurations                       settings.new_configs
 2. Vocabularies, token ids, files of the run           run.create_run, or reopen_run
 3. Only this process may train the run                 RunDirectory.lock
 4. Build and compile the model                         Trainer.__init__
 5. Read the newest checkpoint, go on from its step     Trainer._resume
 6. Plan batches from that step on, for all devices     Trainer._batches, BatchPlan
 7. One update after another (models/update.py)         Trainer.train, TensorFlowUpdate.update
 8. After an update: log, validate, save                Due.after, Trainer._follow
 9. Stop: at the last step, by a metric, by a signal    Trainer._is_stalled, _signal_to_any
10. Average checkpoints                                 Trainer.average

A checkpoint holds weights, optimizer, random numbers of dropout and moving averages. Nothing
depends on wall-clock time: a run that is killed and resumed ends with the weights of one that was
not.
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
    BatchShape,
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
    report_lost_worker,
    report_out_of_memory,
    sum_over_workers,
    value_of_chief,
    worker_of,
)
from keras_transformer.training.metrics import first_row
from keras_transformer.training.optimizer import (
    WeightAverage,
    compile_for_training,
    compile_shapes,
    freeze,
)
from keras_transformer.training.prepare import subword_samplers
from keras_transformer.training.progress import TrainingLog
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
        Stopped: by SIGTERM, SIGHUP, Ctrl-C or the end of the program that reads standard output,
            after a checkpoint of the present step was written.
        InputError: another process trains the run; its text has changed; a checkpoint cannot be
            written, memory does not suffice, or gradients stay non-finite; the last good
            checkpoint stays.

    Example:
        >>> run = RunDirectory.create("runs/mine", train=("train.en", "train.de"))
        >>> model = train(run)
    """
    strategy = strategy or tf.distribute.get_strategy()
    with contextlib.ExitStack() as stack:
        stack.enter_context(report_lost_worker())
        with all_or_none(strategy):
            if worker_of(strategy).is_chief:
                stack.enter_context(run.lock())
        corpus = run.corpus() if corpus is None else corpus
        dev = run.dev_sets() if dev is None else dev
        with strategy.scope(), report_out_of_memory():
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

    check: bool = False
    log: bool = False
    validate: bool = False
    save: bool = False
    ask: bool = False

    @classmethod
    def after(cls, step: int, training: TrainingConfig) -> Self:
        """Returns the duties after so many updates of a run."""
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
        usual_shapes: how many shapes the batches of a new run may have.
        start_is_measured: False where the dev sets must be measured before the first update: in a
            run that starts from another one's weights.
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
            compile_for_training(self.model, self.training, jit_compile)
            decay, self.weight_average = self.training.ema_decay, None
            # What training resumes from besides the model and its optimizer.
            self._state: Any = {"extra": {"bad_steps_in_a_row": self.model.bad_steps_in_a_row}}
            if decay is not None:
                self.weight_average = WeightAverage(self.model, decay, self.model.uses_xla)
                self._state["average_weights"] = self.weight_average.variables
        # Few shapes where XLA compiles a program for each.
        self.usual_shapes = MAX_COMPILED_SHAPES if self.model.uses_xla else MAX_SHAPES
        update = self.model.update
        self._update = tf.function(
            lambda stream: strategy.run(update, args=(next(stream),)), autograph=False
        )
        self._summed_metrics = tf.function(
            lambda: strategy.run(self.model.metrics_of_all_replicas), autograph=False
        )
        self.step = self._resume()
        # A run that starts from another one's weights is first validated with them.
        is_measured = self.checkpoints.steps() != [0] or 0 in self.checkpoints.metrics.read()
        self.start_is_measured = bool(value_of_chief(strategy, is_measured))

    def train(
        self,
        corpus: TokenizedCorpus,
        devs: Sequence[ParallelText] = (),
        *,
        tensorboard: bool = False,
        show: bool = True,
    ) -> None:
        """Trains to the last step, or until `stop_metric` stalls; raises as `train` does."""
        training = self.training
        check_validation(training, devs[0] if devs else None)
        if self.step >= training.train_steps or self._is_stalled():
            return
        batches, shapes = self._batches(corpus)
        validate = self._validation(devs) if devs else None
        log = TrainingLog(
            self.run,
            self.model,
            training,
            dev_metrics=dict(validate.dev_metrics) if validate else {},
            step=self.step if self.start_is_measured else -1,
            tensorboard=tensorboard,
            show=show,
        )
        with noted_signals() as signals, contextlib.closing(log):
            if self.model.uses_xla:
                self._compile(shapes, show and self.worker.is_chief)
            if validate and not self.start_is_measured:
                values = validate()
                log.write(first_row(self.model.flops_metric is not None), values)
                self._on_chief(lambda: self.checkpoints.metrics.write(0, self._decisive(values)))
            stream = iter(batches)
            while self.step < training.train_steps:
                log.begin_batch()
                values = self._update(stream)
                self.step += 1
                log.end_batch(self.step, values)
                if self.weight_average:
                    self.weight_average.update(self.step)
                due = Due.after(self.step, training)
                self._follow(due, log, validate)
                if received := self._signal_to_any([*signals, *log.signals], due):
                    # What an interruption adds: a row and a checkpoint, if there are none yet.
                    self._follow(Due(log=not due.log, save=not due.save), log)
                    raise Stopped(received, self.step)
                if due.save and self._is_stalled():
                    return

    def _follow(self, due: Due, log: TrainingLog, validate: Validation | None = None) -> None:
        """Does what is due after an update.

        The row of a checkpoint is written before it, since a resumed run drops rows beyond its
        checkpoint. An update without any of these never waits for the device.
        """
        values: dict[str, float] = {}
        if due.check:
            self._check_bad_steps()
        if due.log:
            if self.strategy.num_replicas_in_sync > 1:
                log.end_batch(self.step, self._sum_metrics())
            row = log.end_row(self.step)
            if due.validate and validate:
                values = validate()
            log.write(row, values)
        if due.save:
            self.save(values)

    def _batches(self, corpus: TokenizedCorpus) -> tuple[Any, Sequence[BatchShape]]:
        """Returns the batches from the present step on, by device, and their shapes."""
        trained_with = self.run.trained_with if self.step else {}
        before = trained_with.get("text", corpus.text)
        if corpus.text not in (None, before):
            raise InputError(
                f"the text has changed since the run was trained to step {self.step:,}, so that it "
                "would see some of it twice and some not at all; restore the text, or give another "
                "--run_dir, with --start_from to begin with the weights of this run"
            )
        # Which pairs the batches of a step have depends on the number of shapes: with another one,
        # as XLA has, a resumed run would not come to some pairs, and to others twice.
        max_shapes = trained_with.get("max_shapes", self.usual_shapes)
        max_shapes = int(value_of_chief(self.strategy, max_shapes))
        keep = {"max_shapes": max_shapes} | ({"text": corpus.text} if corpus.text else {})
        self._on_chief(lambda: self.run.keep_trained_with(**keep))
        options: Any = {
            "batch_tokens": self.training.batch_tokens,
            "batch_sentences": self.training.batch_sentences,
            "max_shapes": max_shapes,
        }
        shapes = BatchPlan(corpus, **options).shapes  # raises in this thread if it is impossible
        batches = distributed(
            self.strategy,
            training_batches,
            corpus,
            **options,
            seed=self.training.seed,
            first_step=self.step,
            resample=subword_samplers(self.configs.corpora, self.run.vocabularies()),
        )
        return batches, shapes

    def _validation(self, devs: Sequence[ParallelText]) -> Validation:
        vocabularies = self.run.vocabularies()
        return Validation(
            self.model, devs, vocabularies, self.configs, self.usual_shapes, self.weight_average
        )

    def _compile(self, shapes: Sequence[BatchShape], show: bool) -> None:
        if show and len(shapes) > self.usual_shapes:
            print(
                f"The run began without XLA, with {len(shapes)} shapes of batches: XLA now "
                f"compiles a program for each, not for {self.usual_shapes}."
            )
        compile_shapes(self.model, shapes, show)

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
            with all_or_none(self.strategy):
                self.checkpoints.average(self.model, steps)
            self._on_chief(lambda: self.checkpoints.save_weights(self.model))

    def _decisive(self, dev_values: Mapping[str, float]) -> dict[str, float]:
        """Returns the values of the first dev set, which are stored with a checkpoint."""
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
        here = received[-1] if received else None
        if self.worker.count == 1:
            return here
        if due.ask and sum_over_workers(self.strategy, float(here is not None)):
            return here or signal.SIGTERM
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
        return {name: local(values)[0] for name, values in self._summed_metrics().items()}
