"""What a run trains with: optimizer, schedule, loss, metrics, frozen parts."""

import concurrent.futures
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf
from tqdm import tqdm

from keras_transformer.config import TrainingConfig, split_list
from keras_transformer.data.batches import BatchShape
from keras_transformer.errors import InputError, check_choice
from keras_transformer.host import num_cores
from keras_transformer.models import Seq2SeqModel
from keras_transformer.models.fused_adam import FusedAdam
from keras_transformer.objectives import (
    InverseSquareRoot,
    Padding,
    Perplexity,
    SmoothedCrossEntropy,
    TargetTokens,
    TokenAccuracy,
    WarmUp,
)


def compile_for_training(
    model: Seq2SeqModel, training: TrainingConfig, jit_compile: bool | Literal["auto"] = "auto"
) -> None:
    """Compiles the model with loss (5.4), optimizer and schedule, by default the paper's (5.3).

    It was built under the strategy that trains it.
    """
    optimizer = FusedAdam(
        _schedule(training, model.config.model_dim),
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        weight_decay=training.weight_decay or None,
    )
    if training.weight_decay:
        # Decay of gains and biases would only keep norms from doing their work.
        vectors = [weight for weight in model.trainable_weights if len(weight.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity(), TargetTokens(), Padding()],
        accumulation_steps=training.accumulation_steps,
        clip_norm=training.clip_norm,
        jit_compile=jit_compile,
    )
    model.optimizer.build(model.trainable_variables)


def compile_shapes(model: Seq2SeqModel, shapes: Sequence[BatchShape], show: bool) -> None:
    """Lets XLA compile the update for each shape of batches, side by side, before the first one.

    Padding runs through each program once; what that changes is put back. `show` says whether to
    show how many are done.
    """
    strategy = model.distribute_strategy
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids, tf.TensorSpec([], tf.bool)], autograph=False)
    def rehearse(source: tf.Tensor, target: tf.Tensor, runs: tf.Tensor) -> None:
        data = {"source": source, "target": target}, target
        tf.cond(runs, lambda: strategy.run(model.rehearse, args=(data,)), lambda: None)

    def compile_shape(rows: int, source: int, target: int, runs: bool = True) -> None:
        rows = -(-rows // strategy.num_replicas_in_sync)
        rehearse(tf.zeros([rows, source], tf.int32), tf.zeros([rows, target], tf.int32), runs)

    counters = model.bad_steps, model.bad_steps_in_a_row
    variables = [*model.variables, *model.optimizer.variables, *counters]
    values = [variable.numpy() for variable in variables]
    # TensorFlow prepares the function at its first call. Each thread would do that for itself, and
    # wait for the others: 8 threads took 40 s on a GPU machine.
    compile_shape(1, 1, 1, runs=False)
    with concurrent.futures.ThreadPoolExecutor(num_cores()) as pool:
        futures = [pool.submit(compile_shape, *shape) for shape in shapes]
        done = concurrent.futures.as_completed(futures)
        for future in tqdm(done, "Compiling", len(shapes), unit=" programs", disable=not show):
            future.result()
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _schedule(training: TrainingConfig, model_dim: int) -> Any:
    warmup_steps, peak = training.warmup_steps, training.learning_rate
    if training.schedule != "paper":
        peak = (model_dim * warmup_steps) ** -0.5 if peak is None else peak
        return WarmUp(peak, warmup_steps, training.train_steps, training.schedule)
    if peak is None:
        return InverseSquareRoot(model_dim, warmup_steps)
    return InverseSquareRoot(1, warmup_steps, scale=peak * warmup_steps**0.5)


def freeze(model: Seq2SeqModel, parts: str | None) -> None:
    """Makes the weights of some parts untrainable; call it before the model is compiled.

    Parts are layers of the model, separated by commas, and "embeddings", which are all tables.

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
