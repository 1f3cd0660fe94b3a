"""Trains a model on a run directory with `model.fit`, from its last checkpoint on."""

import contextlib
from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from keras_transformer.data import ParallelText, TokenizedCorpus
from keras_transformer.models import Seq2SeqModel
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.stopping import is_stopped_early
from keras_transformer.training.strategies import worker_of
from keras_transformer.training.trainer import Trainer


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
