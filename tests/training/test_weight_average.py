import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training.metrics import StepCounter
from keras_transformer.training.trainer import WeightAverage


@pytest.fixture(params=["one device", "mirrored"])
def strategy(request) -> tf.distribute.Strategy:
    if request.param == "one device":
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(["CPU:0"])


def test_the_average_follows_the_weights_and_validation_sees_it(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
    kernel = model.trainable_weights[0]
    steps = StepCounter()
    average = WeightAverage(model, 0.5, steps)
    expected, seen = float(kernel.numpy()[0, 0]), []

    class Follow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal expected
            decay = min(0.5, (1 + steps.step) / (10 + steps.step))
            expected = decay * expected + (1 - decay) * kernel.numpy()[0, 0]

        def on_test_batch_begin(self, batch, logs=None):
            seen.append(kernel.numpy()[0, 0])

    x = np.arange(24.0)[:, None] / 24
    model.fit(
        x,
        3 * x,
        batch_size=2,
        validation_data=(x, x),
        verbose=0,
        callbacks=[steps, average, Follow()],
    )
    assert steps.step == 12
    (value,) = average.variables.values()
    np.testing.assert_allclose(value.numpy()[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    trained = kernel.numpy()[0, 0]
    assert abs(trained - expected) > 1e-3
    with pytest.raises(KeyError), average.applied():
        np.testing.assert_allclose(kernel.numpy()[0, 0], expected, rtol=1e-5)
        raise KeyError
    assert kernel.numpy()[0, 0] == trained
