"""A Keras model whose loss and gradients count every real target symbol once.

Keras averages the losses of replicas with equal weight, however many symbols each replica has.
Here the mean is taken over the real target symbols of the whole batch, over all replicas, so
that any number of devices gives the weights that one device gives.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID

Tensor = Any


class TokenWeightedModel(keras.Model):
    """Base of the models: `fit` and `evaluate` weight every batch by its real target symbols.

    Under TensorFlow the steps below replace Keras's own, on one device and under any
    `tf.distribute` strategy. Other backends train on one device, where a loss that averages over
    the real symbols, such as `SmoothedCrossEntropy`, is right as it is.
    """


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _train_step(self: TokenWeightedModel, data: Any) -> dict[str, Tensor]:
        """Runs one update on one replica's part of a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = _mean_loss(self, x, y, logits, sample_weight, training=True)
            tokens = _count_tokens(y)
            # Gradients of the replicas are added up: each gets its share of the tokens.
            share = tokens / tf.maximum(_sum_over_replicas(tokens), 1.0)
            scaled_loss = self.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self._loss_tracker.update_state(loss, sample_weight=tokens)
        return self.compute_metrics(x, y, logits, sample_weight)

    def _test_step(self: TokenWeightedModel, data: Any) -> dict[str, Tensor]:
        """Evaluates one replica's part of a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        logits = self(x, training=False)
        loss = _mean_loss(self, x, y, logits, sample_weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=_count_tokens(y))
        return self.compute_metrics(x, y, logits, sample_weight)

    def _mean_loss(
        model: TokenWeightedModel, x: Any, y: Tensor, logits: Tensor, weight: Any, training: bool
    ) -> Tensor:
        loss = model.compute_loss(x=x, y=y, y_pred=logits, sample_weight=weight, training=training)
        # Keras has divided by the number of replicas, for its mean of means.
        return loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)

    def _count_tokens(labels: Tensor) -> Tensor:
        return ops.sum(ops.cast(ops.not_equal(labels, PAD_ID), "float32"))

    def _sum_over_replicas(value: Tensor) -> Tensor:
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return value
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    TokenWeightedModel.train_step = _train_step
    TokenWeightedModel.test_step = _test_step
