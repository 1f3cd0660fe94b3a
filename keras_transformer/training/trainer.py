"""The program of a training run: what happens in which order.

 1. Options become configurations (commands/train.py)    settings.new_configs, changed_configs
 2. Vocabularies, token ids, files of the run           run.prepare_run
 3. Only this process may train the run                 RunDirectory.lock
 4. Build and compile the model                         Trainer.__init__
 5. Read the newest checkpoint, go on from its step     Checkpoints.resume
 6. Plan batches from that step on, for all devices     Trainer._batches, BatchPlan
 7. One update after another (models/update.py)         Trainer.train, TensorFlowUpdate.update
 8. After an update: log, validate, save                Trainer._after_update
 9. Stop: at the last step, by a metric, by a signal    Trainer.train, Checkpoints.is_at_end
10. Average checkpoints                                 Trainer.average

A checkpoint holds weights, optimizer, random states of dropout, and how many updates in a row were
skipped. The place in the data follows from the step (data/batches.py), totals from the last row of
metrics.jsonl. A run that gets a signal saves first; one that is killed repeats the updates since
its last checkpoint. Either ends, on a CPU, with the very weights of a run that was not stopped.
"""

import contextlib
import hashlib
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.data.batches import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    BatchPlan,
    BatchShape,
    training_batches,
)
from keras_transformer.data.corpus import ParallelText, TokenizedCorpus
from keras_transformer.errors import InputError
from keras_transformer.host import noted_signals
from keras_transformer.models import Seq2SeqModel, build_model
from keras_transformer.training.checkpoints import AVERAGE
from keras_transformer.training.distribution import (
    distributed,
    num_workers,
    report_lost_worker,
    report_out_of_memory,
    wait_for_workers,
    worker_index,
)
from keras_transformer.training.optimizer import compile_for_training, compile_shapes, freeze
from keras_transformer.training.progress import TrainingLog
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.validation import Validation, check_validation

_MAX_BAD_STEPS = 20  # updates in a row without a finite gradient


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus | None = None,
    dev: ParallelText | None = None,
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
        dev: pairs whose loss and task metric are measured at each validation; None means those
            that the run was created with, if there are any.
        strategy: from `make_strategy`; None trains on one device.
        jit_compile: as in `TokenWeightedModel.compile`.
        tensorboard: whether to write TensorBoard logs into the run directory.
        show: whether to print progress on standard output.

    Raises:
        Stopped: by SIGTERM, SIGHUP or Ctrl-C, after a checkpoint of the present step was written.
        InputError: another process trains the run; its text has changed; a checkpoint cannot be
            written, memory does not suffice, or gradients stay non-finite; the last good
            checkpoint stays.

    Example:
        >>> run = RunDirectory.create("runs/mine", train=("train.en", "train.de"))
        >>> model = train(run)
    """
    strategy = strategy or tf.distribute.get_strategy()
    corpus = run.corpus() if corpus is None else corpus
    dev = run.dev_set() if dev is None else dev
    is_chief = worker_index(strategy) == 0
    with (
        report_lost_worker(),
        report_out_of_memory(),
        run.lock() if is_chief else contextlib.nullcontext(),
        strategy.scope(),
    ):
        trainer = Trainer(run, strategy, jit_compile)
        trainer.train(corpus, dev, tensorboard=tensorboard, show=show)
        trainer.average()
    return trainer.model


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

    Of several workers the first one, the chief, writes the files; all make the same updates. The
    run exists, and its newest checkpoint is resumed from; other arguments are as in `train`.

    Attributes:
        model: built and compiled.
        step: updates of the run so far.
        usual_shapes: how many shapes the batches of a new run may have.
    """

    def __init__(
        self,
        run: RunDirectory,
        strategy: tf.distribute.Strategy,
        jit_compile: bool | Literal["auto"] = "auto",
    ) -> None:
        self.run, self.strategy = run, strategy
        self.configs, self.checkpoints = run.configs(), run.checkpoints()
        self.training = self.configs.training
        self._is_chief = worker_index(strategy) == 0
        keras.utils.set_random_seed(self.training.seed)
        with strategy.scope():
            self.model = build_model(self.configs.model, dtype=self.training.precision)
            freeze(self.model, self.training.freeze)
            compile_for_training(self.model, self.training, jit_compile)
        # What training resumes from besides the model and its optimizer.
        self._state = {"bad_steps_in_a_row": self.model.bad_steps_in_a_row}
        # Few shapes where XLA compiles a program for each.
        self.usual_shapes = MAX_COMPILED_SHAPES if self.model.uses_xla else MAX_SHAPES
        update, metrics = self.model.update, self.model.metrics_of_all_replicas
        self._update = tf.function(
            lambda stream: strategy.run(update, args=(next(stream),)), autograph=False
        )
        self._metrics = tf.function(lambda: strategy.run(metrics), autograph=False)
        self.step = self.checkpoints.resume(self.model, extra=self._state)
        # A run that starts from another one's weights is first validated with them.
        dev_metrics = self.checkpoints.dev_metrics()
        self._validates_start = self.checkpoints.steps() == [0] and 0 not in dev_metrics
        wait_for_workers(strategy)  # before the first of them writes

    def train(
        self,
        corpus: TokenizedCorpus,
        dev: ParallelText | None = None,
        *,
        tensorboard: bool = False,
        show: bool = True,
    ) -> None:
        """Trains to the last step, or until `stop_metric` stalls; raises as `train` does."""
        training = self.training
        check_validation(training, dev)
        if self._is_at_end():
            return
        batches, shapes = self._batches(corpus, self._check_batch_inputs(corpus, dev))
        validation = None
        if dev:
            vocabularies = self.run.vocabularies()
            validation = Validation(self.model, dev, vocabularies, self.configs, self.usual_shapes)
        log = TrainingLog(
            self.run,
            self.configs,
            self.model,
            validation.dev_metric if validation else None,
            step=-1 if self._validates_start else self.step,
            tensorboard=tensorboard,
            show=show,
        )
        with noted_signals() as signals, contextlib.closing(log):
            if self.model.uses_xla:
                compile_shapes(self.model, shapes, show and self._is_chief)
            if validation and self._validates_start:
                values = log.write_row(0, {}, validation)
                if self._is_chief:
                    self.checkpoints.write_metrics(0, values)
            stream = iter(batches)
            while True:
                log.begin_update()
                self._update(stream)
                self.step += 1
                log.end_update()
                self._after_update(log, validation)
                if self._is_stopped(signals):
                    self._save_early(log)
                    raise Stopped([signal.SIGTERM, *signals][-1], self.step)
                if training.is_checkpoint_step(self.step) and self._is_at_end():
                    break
        wait_for_workers(self.strategy)  # for the last checkpoint

    def _after_update(self, log: TrainingLog, validation: Validation | None) -> None:
        """Does what is due after an update.

        The row of a checkpoint is written before it, since a resumed run drops rows beyond its
        checkpoint. An update after which nothing is due never waits for the device.
        """
        step, training = self.step, self.training
        if step % (_MAX_BAD_STEPS // 2) == 0:
            self._check_bad_steps()
        if training.is_log_step(step):
            is_saved = training.is_checkpoint_step(step)
            metrics = self._metrics_since_row()
            dev_metrics = log.write_row(step, metrics, validation if is_saved else None)
            if is_saved:
                self._save(dev_metrics)

    def _metrics_since_row(self) -> dict[str, tf.Tensor]:
        """Returns the metrics of all replicas, for which an update need not wait."""
        local = self.strategy.experimental_local_results
        return {name: local(values)[0] for name, values in self._metrics().items()}

    def _is_stopped(self, signals: Sequence[signal.Signals]) -> bool:
        """Whether a signal stops the run after this step: workers ask each other at each row."""
        if num_workers(self.strategy) == 1 or self.training.is_log_step(self.step):
            return wait_for_workers(self.strategy, bool(signals))
        return False

    def _save_early(self, log: TrainingLog) -> None:
        """Writes a row and a checkpoint where a signal stops the run, unless they are there."""
        if not self.training.is_log_step(self.step):
            log.write_row(self.step, self._metrics_since_row())
        if not self.training.is_checkpoint_step(self.step):
            self._save({})

    def _check_batch_inputs(self, corpus: TokenizedCorpus, dev: ParallelText | None) -> int:
        """Checks that the text is that of the run so far, and stores its digests in the run.

        Returns:
            How many shapes batches may have, the same from the run's beginning: with another
            number, as XLA has, a resumed run would miss some pairs and see others twice.

        Raises:
            InputError: the text, or the dev set, is another one than until now.
        """
        before = self.run.batch_inputs if self.step else {}
        now = {"max_shapes": before.get("max_shapes", self.usual_shapes)}
        now |= {"text": corpus.text} if corpus.text else {}
        now |= {"dev": _digest(dev)} if dev else {}
        for name, what in (("text", "the text to train on"), ("dev", "the dev set")):
            if name in now and now[name] != before.get(name, now[name]):
                raise InputError(
                    f"{what} has changed since the run was trained to step {self.step:,}; restore "
                    "it, or give another --run_dir, with --start_from to begin with the weights "
                    "of this run"
                )
        if self._is_chief:
            self.run.write_batch_inputs({**before, **now})
        return int(now["max_shapes"])

    def _batches(
        self, corpus: TokenizedCorpus, max_shapes: int
    ) -> tuple[Any, Sequence[BatchShape]]:
        """Returns the batches from the present step on, by device, and their shapes."""
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
        )
        return batches, shapes

    def _save(self, dev_metrics: Mapping[str, float]) -> None:
        if self._is_chief:
            self.checkpoints.save(self.model, self.step, metrics=dev_metrics, extra=self._state)

    def average(self) -> None:
        """Gives the model the average of its last or best checkpoints, and writes it (6.1)."""
        checkpoints, best = self.checkpoints, self.training.average_best
        last = self.training.average_last
        steps = checkpoints.newest(last) if best is None else checkpoints.best(best)
        if steps:
            checkpoints.load_average(self.model, steps)
            wait_for_workers(self.strategy)  # all of them have read the checkpoints
            if self._is_chief:
                checkpoints.save_weights(self.model, AVERAGE)

    def _check_bad_steps(self) -> None:
        """Raises `InputError` if update after update is skipped, since no gradient is finite."""
        bad_steps = int(self.model.bad_steps_in_a_row.numpy())
        if bad_steps < _MAX_BAD_STEPS:
            return
        steps = self.checkpoints.steps()
        last = f"the last good checkpoint is step-{steps[-1]}" if steps else "no checkpoint yet"
        raise InputError(
            f"the gradient was not finite in {bad_steps} updates in a row, up to step {self.step}; "
            f"{last}; train another run with a lower learning_rate or clip_norm"
        )

    def _is_at_end(self) -> bool:
        wait_for_workers(self.strategy)  # for what the chief has written
        return self.checkpoints.is_at_end(self.step)


def _digest(dev: ParallelText) -> str:
    """Returns a digest of the pairs of a dev set."""
    text = json.dumps([list(dev.source), list(dev.target)])
    return hashlib.sha256(text.encode()).hexdigest()
