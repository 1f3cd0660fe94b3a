"""A program for test_devices.py: trains a small model 20 updates, in each of several ways.

    python train_on_devices.py FOLDER WAY [WAY ...]

A way is DEVICES-PARTS-COMPILER-LOSS, such as 2-1-plain-ours: mirrored replicas ("alone" for a
strategy with one of them, 1 for no strategy, "workers" for those of TF_CONFIG); accumulated parts
of a batch; plain or xla; ours, keras, ponder: ours and the cost of a Universal Transformer, or
spoiled: ours in float16, with one sentence whose loss is infinite.
Each leaves its weights and its metrics in FOLDER/WAY.npz. Devices can be split only before
TensorFlow starts, and a process remembers the collective operations of one number of replicas and
one kind of update: hence a program, which is started for each.
"""

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import EOS_ID, TransformerConfig, UniversalConfig
from keras_transformer.models import build_model
from keras_transformer.objectives import Perplexity, SmoothedCrossEntropy, TokenAccuracy

UPDATES, ROWS = 20, 8
SIZES = dict(vocabulary_size=11, model_dim=16, feed_forward_dim=32, num_heads=2, dropout=0.0)
CONFIG = TransformerConfig(**SIZES, num_layers=1)
PONDERING = UniversalConfig(**SIZES, num_steps=3, halting_bias=0.0, ponder_weight=0.1)


class SpoiledLoss(SmoothedCrossEntropy):
    """Infinite for a sentence of nine times the token 4."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        is_spoiled = tf.reduce_all(tf.equal(y_true, 4), axis=-1, keepdims=True)
        return super().call(y_true, y_pred) * tf.where(is_spoiled, float("inf"), 1.0)


def batches() -> Iterator[Any]:
    """Yields sentences of 1 to 9 tokens; the last batch fills the first two of eight rows.

    The last row of the batch in the middle is nine times the token 4.
    """
    random = np.random.default_rng(1)
    for update in range(UPDATES):
        lengths = random.integers(1, 10, size=(ROWS, 1))
        if update == UPDATES - 1:
            lengths[2:] = 0
        places, words = np.arange(9), random.integers(4, 11, size=(ROWS, 9))
        labels = np.where(places < lengths - 1, words, np.where(places < lengths, EOS_ID, 0))
        if update == UPDATES // 2:
            labels[-1], lengths[-1] = 4, 9
        source = np.where(lengths > 0, random.integers(3, 11, size=(ROWS, 6)), 0)
        target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
        yield {"source": source, "target": target}, labels


def dataset(strategy: tf.distribute.Strategy) -> Any:
    ids = tf.TensorSpec([None, None], tf.int32)
    whole = tf.data.Dataset.from_generator(
        batches, output_signature=({"source": ids, "target": ids}, ids)
    )
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return whole

    def own_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = ROWS // context.num_input_pipelines
        first = rows * context.input_pipeline_id
        return whole.map(
            lambda *batch: tf.nest.map_structure(lambda ids: ids[first : first + rows], batch)
        )

    return strategy.distribute_datasets_from_function(own_rows)


def make_strategy(devices: str) -> tf.distribute.Strategy:
    if devices == "1":
        return tf.distribute.get_strategy()
    devices = {"alone": "1"}.get(devices, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(int(devices))])


def train(way: str, workers: tf.distribute.Strategy | None) -> dict[str, Any]:
    devices, parts, compiler, loss = way.split("-")
    strategy = workers or make_strategy(devices)
    keras.utils.set_random_seed(0)
    losses = {
        "keras": lambda: keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=0
        ),
        "spoiled": SpoiledLoss,
    }
    with strategy.scope():
        model = build_model(
            PONDERING if loss == "ponder" else CONFIG,
            dtype="mixed_float16" if loss == "spoiled" else None,
        )
        optimizer = keras.optimizers.Adam(0.003, beta_2=0.98, epsilon=1e-9)
        if loss == "spoiled":  # the scale is such that nothing else overflows
            optimizer = keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam(0.003), initial_scale=2.0**8
            )
        model.compile(
            optimizer=optimizer,
            loss=losses.get(loss, SmoothedCrossEntropy)(),
            metrics=[TokenAccuracy(), Perplexity()],
            clip_norm=None if loss == "spoiled" else 1.0,  # clipping adds the replicas' up before
            accumulation_steps=int(parts),
            jit_compile=compiler == "xla",
        )
        model.optimizer.build(model.trainable_variables)
    start = model.get_weights()
    shown = []  # after each batch, which Keras means over the replicas
    show = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: shown.append([logs["loss"], logs["accuracy"]])
    )
    history = model.fit(
        dataset(strategy), steps_per_epoch=UPDATES, shuffle=False, verbose=0, callbacks=[show]
    ).history
    weights = model.get_weights()
    return {
        "weights": np.concatenate([weight.ravel() for weight in weights]),
        "bad_steps": int(model.bad_steps.numpy()),
        "change": max(np.abs(a - b).max() for a, b in zip(weights, start, strict=True)),
        "metrics": np.array([values[0] for _, values in sorted(history.items())]),
        "shown": np.array(shown),
    }


def main(folder: pathlib.Path, ways: list[str]) -> None:
    cluster = json.loads(os.environ.get("TF_CONFIG", "null"))
    workers = None
    if cluster is None:
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * 4
        tf.config.set_logical_device_configuration(cpu, devices)
    else:
        workers = tf.distribute.MultiWorkerMirroredStrategy()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # saves time
    for way in ways:
        name = way if cluster is None else f"{way}-{cluster['task']['index']}"
        np.savez(folder / f"{name}.npz", **train(way, workers))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
