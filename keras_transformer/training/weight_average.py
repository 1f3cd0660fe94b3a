"""An exponential moving average of the weights, beside those that are trained."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training.checkpoint_contents import by_name
from keras_transformer.training.step_counter import StepCounter


class WeightAverage(keras.callbacks.Callback):
    """Averages the weights after each batch, and validates with the average.

    After step t, average = d * average + (1 - d) * weights with
    d = min(decay, (1 + t) / (10 + t)), so that the first values are forgotten soon (Abadi et al.
    2016, tf.train.ExponentialMovingAverage).

    Args:
        model: whose weights; built under the strategy that trains it.
        decay: d in the long run, between 0 and 1.
        counter: counts the batches.

    Attributes:
        variables: the averages by the weights' paths within the model, for checkpoints.
    """

    def __init__(self, model: keras.Model, decay: float, counter: StepCounter) -> None:
        super().__init__()
        self._weights = model.trainable_weights
        self._decay = decay
        self._counter = counter
        self._strategy = model.distribute_strategy
        with self._strategy.scope():
            # Each replica averages its own copy of the weights: they need not talk.
            averages = [
                tf.Variable(
                    weight.value,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for weight in self._weights
            ]
        self.variables = dict(zip(by_name(model, self._weights), averages, strict=True))
        self._update = tf.function(self._update_all, autograph=False)
        self._stack = contextlib.ExitStack()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self._counter.step
        self._update(tf.constant(min(self._decay, (1 + step) / (10 + step)), tf.float32))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._stack.enter_context(self.applied())

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model the averages for a while."""
        trained = [tf.identity(weight.value) for weight in self._weights]
        for weight, average in zip(self._weights, self.variables.values(), strict=True):
            weight.assign(average.read_value())
        try:
            yield
        finally:
            for weight, value in zip(self._weights, trained, strict=True):
                weight.assign(value)

    def _update_all(self, decay: tf.Tensor) -> None:
        def update() -> None:
            for weight, average in zip(self._weights, self.variables.values(), strict=True):
                average.assign_add((1 - decay) * (tf.convert_to_tensor(weight.value) - average))

        self._strategy.run(update)
