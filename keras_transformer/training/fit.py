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
from keras_transformer.training.checkpoints import Checkpoints
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
        accumulation_steps=training.accumulation_steps,
        clip_norm=training.clip_norm,
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)


def train(
    run: RunDirectory,
    corpus: TokenizedCorpus,
    validation: TokenizedCorpus | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
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
        strategy: from `make_strategy`; None trains on one device.
        tensorboard: whether to write TensorBoard logs into the run directory.
        verbose: as of `keras.Model.fit`.
    """
    strategy = strategy or tf.distribute.get_strategy()
    _, _, training = run.configs()
    checkpoints = run.checkpoints()
    with strategy.scope():
        model, step = _start(run, checkpoints)
        batching = {
            "batch_tokens": training.batch_tokens,
            # Each replica gets as many rows as the others.
            "rows_multiple": strategy.num_replicas_in_sync,
        }
        held_out = None if validation is None else _validation_data(validation, batching)
        callbacks = _callbacks(run, checkpoints, training, tensorboard)
        for first, last, interval in _intervals(step, training):
            batches = functools.partial(
                training_batches, corpus, seed=training.seed, first_step=step, **batching
            )
            model.fit(
                _not_sharded(to_dataset(batches)),
                validation_data=held_out,
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=interval,
                callbacks=callbacks,
                shuffle=False,  # the batches are shuffled already
                verbose=verbose,
            )
            step = _step_after(last - 1, training)

        newest = checkpoints.steps()[-training.average_last :]
        if newest:
            checkpoints.average(model, newest)
            checkpoints.save_average(model)
    return model


def _start(run: RunDirectory, checkpoints: Checkpoints) -> tuple[Transformer, int]:
    """Returns the run's model, compiled and with the newest checkpoint's state, and its step."""
    model_config, _, training = run.configs()
    keras.utils.set_random_seed(training.seed)
    model = Transformer(model_config, dtype=keras.DTypePolicy(training.precision))
    compile_for_training(model, training)
    steps = checkpoints.steps()
    if not steps:
        return model, 0
    checkpoints.restore(model, f"step-{steps[-1]}", optimizer=True)
    return model, steps[-1]


def _validation_data(corpus: TokenizedCorpus, batching: dict[str, int]) -> tf.data.Dataset:
    count = sum(bucket_corpus(corpus, **batching).batches)
    batches = to_dataset(functools.partial(evaluation_batches, corpus, **batching))
    return _not_sharded(batches.apply(tf.data.experimental.assert_cardinality(count)))


def _not_sharded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, told that a strategy cuts up its batches and not its files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _callbacks(
    run: RunDirectory, checkpoints: Checkpoints, training: TrainingConfig, tensorboard: bool
) -> list[keras.callbacks.Callback]:
    step_after = functools.partial(_step_after, training=training)
    callbacks = [
        Throughput(),
        SaveCheckpoint(checkpoints, step_after),
        MetricsFile(run.path / "metrics.jsonl", step_after),
    ]
    if tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(run.path / "tensorboard"))
    return callbacks


def _step_after(epoch: int, training: TrainingConfig) -> int:
    """Returns the number of updates at the end of what `fit` calls an epoch, counted from 0."""
    return min((epoch + 1) * training.checkpoint_steps, training.train_steps)


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
