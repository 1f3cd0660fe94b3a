"""FusedAdam: the updates of Keras's Adam, and sparse gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models.fused_adam import FusedAdam
from keras_transformer.objectives import InverseSquareRoot

STRATEGIES = {
    "one device": tf.distribute.get_strategy,
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
}
OPTIONS = dict(beta_1=0.8, beta_2=0.98, epsilon=1e-9, weight_decay=0.01)


def train(optimizer_class, strategy, amsgrad) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Trains a little and returns weights and moments."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(2)])
        random = np.random.default_rng(0)
        model.set_weights([random.normal(size=weight.shape) for weight in model.weights])
        schedule = InverseSquareRoot(1, 3, scale=0.1 * 3**0.5)
        optimizer = optimizer_class(schedule, amsgrad=amsgrad, **OPTIONS)
        model.compile(optimizer, loss="mse", jit_compile=False)
    x = random.normal(size=(24, 3))
    model.fit(x, x[:, :2] ** 2, batch_size=4, shuffle=False, verbose=0)
    return model.get_weights(), [np.asarray(slot) for slot in model.optimizer.variables[2:]]


@pytest.mark.parametrize(
    ("kind", "amsgrad"), [("one device", False), ("one device", True), ("mirrored", False)]
)
def test_fused_adam_updates_match_adam(kind, amsgrad):
    expected, found = (
        train(each, STRATEGIES[kind](), amsgrad) for each in (keras.optimizers.Adam, FusedAdam)
    )
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_repeated_sparse_rows_are_summed():
    # Keras's own Adam squares the two before it adds them up.
    rows, values = [1, 0, 1], [[1.0, 2.0], [3.0, 4.0], [5.0, -3.0]]
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([3, 2]))
    results = []
    for gradient in (sparse, tf.constant([[3.0, 4.0], [6.0, -1.0], [0.0, 0.0]])):
        table = keras.Variable(np.zeros((3, 2), "float32"))
        optimizer = FusedAdam(0.1)
        optimizer.build([table])
        for _ in range(2):
            optimizer.apply_gradients([(gradient, table)])
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)
    assert np.all(results[0][:2] != 0)
