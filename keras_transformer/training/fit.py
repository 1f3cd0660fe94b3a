"""Trains a model on a run directory with `model.fit`, from its last checkpoint on."""

import functools
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.data import (
    TokenizedCorpus,
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.models import Transformer
from keras_transformer.training.callbacks import MetricsFile, SaveCheckpoint, Throughput
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TargetTokens, TokenAccuracy
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.schedules import InverseSquareRoot


def compile_for_training(model: Transformer, training: TrainingConfig) -> None:
    """Compiles the model with the paper's optimizer, schedule and loss (5.3, 5.4).

    XLA is left off: on a CPU it slows this step.
    """
    if training.learning_rate is None:
        schedule = InverseSquareRoot(model.config.model_dim, training.warmup_steps)
    else:
        schedule = InverseSquareRoot.with_peak(training.learning_rate, training.warmup_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens()],
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus,
    validation: TokenizedCorpus | None = None,
    *,
    tensorboard: bool = False,
    verbose: Any = "auto",
) -> Transformer:
    """Trains the run to its number of steps and returns its model.

    A run that has checkpoints goes on from the newest: weights, optimizer, random numbers of
    dropout and place in the data. At the end the newest checkpoints are averaged (6.1) into
    checkpoint `average`, and the model returned has those weights.

    Args:
        run: an existing run directory.
        corpus: the sentence pairs to train on.
        validation: pairs whose loss is shown at each checkpoint.
        tensorboard: whether to write TensorBoard logs into the run directory.
        verbose: as of `keras.Model.fit`.
    """
    model_config, _, training = run.configs()
    checkpoints = run.checkpoints()
    keras.utils.set_random_seed(training.seed)
    model = Transformer(model_config, dtype=keras.DTypePolicy(training.precision))
    compile_for_training(model, training)
    step = 0
    if checkpoints.steps():
        step = checkpoints.steps()[-1]
        checkpoints.restore(model, f"step-{step}", optimizer=True)

    def step_after(epoch: int) -> int:
        return min((epoch + 1) * training.checkpoint_steps, training.train_steps)

    callbacks = [
        Throughput(),
        SaveCheckpoint(checkpoints, step_after),
        MetricsFile(run.path / "metrics.jsonl", step_after),
    ]
    if tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(run.path / "tensorboard"))
    held_out = None
    if validation is not None:
        count = sum(bucket_corpus(validation, batch_tokens=training.batch_tokens).batches)
        held_out = to_dataset(
            functools.partial(evaluation_batches, validation, batch_tokens=training.batch_tokens)
        ).apply(tf.data.experimental.assert_cardinality(count))
    for first, last, interval in _intervals(step, training):
        batches = functools.partial(
            training_batches,
            corpus,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            first_step=step,
        )
        model.fit(
            to_dataset(batches),
            validation_data=held_out,
            initial_epoch=first,
            epochs=last,
            steps_per_epoch=interval,
            callbacks=callbacks,
            shuffle=False,  # the batches are shuffled already
            verbose=verbose,
        )
        step = step_after(last - 1)

    if checkpoints.steps()[-training.average_last :]:
        checkpoints.average(model, checkpoints.steps()[-training.average_last :])
        checkpoints.save_average(model)
    return model


def _intervals(step: int, training: TrainingConfig) -> list[tuple[int, int, int]]:
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
