"""Trains a model on a run directory with `model.fit`, from its last checkpoint on."""

from typing import Any

import keras

from keras_transformer.config import TrainingConfig
from keras_transformer.data import TokenizedCorpus, evaluation_batches, to_dataset
from keras_transformer.models import Transformer
from keras_transformer.training.callbacks import MetricsFile, SaveCheckpoint, Throughput
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TargetTokens, TokenAccuracy
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.schedules import InverseSquareRoot


def compile_for_training(model: Transformer, training: TrainingConfig) -> None:
    """Compiles the model with the paper's optimizer, schedule and loss (5.3, 5.4).

    Keras leaves XLA off on a CPU, where it slows this step, and on elsewhere.
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

    callbacks = [
        Throughput(),
        SaveCheckpoint(checkpoints),
        MetricsFile(run.path / "metrics.jsonl"),
    ]
    if tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(run.path / "tensorboard", update_freq=100))
    held_out = None
    if validation is not None:
        held_out = evaluation_batches(validation, batch_tokens=training.batch_tokens)
    for interval_end, interval in _intervals(step, training):
        model.fit(
            to_dataset(
                corpus, batch_tokens=training.batch_tokens, seed=training.seed, first_step=step
            ),
            validation_data=held_out,
            initial_epoch=step // training.checkpoint_steps,
            epochs=interval_end,
            steps_per_epoch=interval,
            callbacks=callbacks,
            verbose=verbose,
        )
        step = int(model.optimizer.iterations)

    if checkpoints.steps()[-training.average_last :]:
        checkpoints.average(model, checkpoints.steps()[-training.average_last :])
        checkpoints.save_average(model)
    return model


def _intervals(step: int, training: TrainingConfig) -> list[tuple[int, int]]:
    """Returns the calls of `fit` that lead from `step` to the end: (last epoch, steps an epoch).

    All intervals but the last have `checkpoint_steps` steps, so there are at most two calls.
    """
    whole = training.train_steps // training.checkpoint_steps
    rest = training.train_steps % training.checkpoint_steps
    calls = []
    if step < whole * training.checkpoint_steps:
        calls.append((whole, training.checkpoint_steps))
    if rest and step < training.train_steps:
        calls.append((whole + 1, rest))
    return calls
