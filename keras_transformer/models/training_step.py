"""A Keras model whose loss and gradients count every real target symbol once.

Keras averages the losses of replicas, and of accumulated parts of a batch, with equal weight,
however many symbols each has, and clips gradients before it adds up the replicas'. Here the mean
is taken over the real target symbols of the whole batch and its gradient is clipped, so that any
number of devices and of parts gives the weights that one device gives.
"""

from typing import Any

import keras
from keras import ops, tree

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError

Tensor = Any


class TokenWeightedModel(keras.Model):
    """Base of the models: `fit` and `evaluate` weight every batch by its real target symbols.

    Under TensorFlow the steps below replace Keras's own, on one device and under any
    `tf.distribute` strategy. Other backends train on one device, where a loss that averages over
    the real symbols, such as `SmoothedCrossEntropy`, is right as it is.
    """

    accumulation_steps = 1
    clip_norm: float | None = None

    def compile(
        self,
        *args: Any,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Compiles as `keras.Model.compile` does, with two options of the update.

        Args:
            *args, **kwargs: of `keras.Model.compile`.
            accumulation_steps: parts into which a batch is cut to save memory; the update is
                that of the whole batch.
            clip_norm: the largest global norm of a gradient; None does not clip.

        Raises:
            InputError: a number is out of range, or the backend is not TensorFlow.
        """
        if accumulation_steps < 1 or (clip_norm is not None and clip_norm <= 0):
            raise InputError(
                "accumulation_steps must be at least 1 and clip_norm above 0, got "
                f"{accumulation_steps} and {clip_norm}"
            )
        if keras.backend.backend() != "tensorflow" and (accumulation_steps > 1 or clip_norm):
            raise InputError(
                "accumulation_steps and clip_norm need the TensorFlow backend; give the optimizer "
                "gradient_accumulation_steps and global_clipnorm in their place"
            )
        super().compile(*args, **kwargs)
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _train_step(self: TokenWeightedModel, data: Any) -> dict[str, Tensor]:
        """Runs one update on one replica's rows of a batch."""
        _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        tokens = tf.maximum(_sum_over_replicas(_count_tokens(labels)), 1.0)
        gradients = _accumulate(self, data, tokens)
        if self.clip_norm is not None:
            gradients = _clip(self, gradients)
        # The optimizer adds up the gradients of the replicas.
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.get_metrics_result()

    def _test_step(self: TokenWeightedModel, data: Any) -> dict[str, Tensor]:
        """Evaluates one replica's rows of a batch."""
        _loss_and_metrics(self, data, training=False)
        return self.get_metrics_result()

    def _accumulate(model: TokenWeightedModel, data: Any, tokens: Tensor) -> list[Tensor]:
        """Returns the gradients of the loss summed over these rows, divided by `tokens`."""
        parts = model.accumulation_steps
        if parts == 1:
            return _gradients(model, data, tokens)
        rows = tf.shape(tree.flatten(data)[0])[0]
        parts = tf.minimum(parts, rows)  # none is empty

        def add_part(part: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            first, last = rows * part // parts, rows * (part + 1) // parts
            rows_of_part = tree.map_structure(
                lambda tensor: None if tensor is None else tensor[first:last], data
            )
            gradients = _gradients(model, rows_of_part, tokens)
            pairs = zip(sums, gradients, strict=True)
            return part + 1, [total + tf.convert_to_tensor(new) for total, new in pairs]

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in model.trainable_weights]
        _, sums = tf.while_loop(
            lambda part, _: part < parts, add_part, (0, zeros), parallel_iterations=1
        )
        return sums

    def _gradients(model: TokenWeightedModel, data: Any, tokens: Tensor) -> list[Tensor]:
        weights = model.trainable_weights
        with tf.GradientTape() as tape:
            loss = _loss_and_metrics(model, data, training=True)
            scaled = model.optimizer.scale_loss(loss / tokens)
        return tape.gradient(scaled, weights, unconnected_gradients="zero")

    def _clip(model: TokenWeightedModel, gradients: list[Tensor]) -> list[Tensor]:
        """Returns this replica's share of the batch's gradient, cut to `clip_norm`."""
        scale = getattr(model.optimizer, "dynamic_scale", 1.0)  # of the loss, in float16
        gradients = _sum_over_replicas([tf.convert_to_tensor(value) for value in gradients])
        limit = model.clip_norm * tf.cast(scale, tf.float32)
        gradients, _ = tf.clip_by_global_norm(gradients, limit)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return [gradient / replicas for gradient in gradients]

    def _loss_and_metrics(model: TokenWeightedModel, data: Any, training: bool) -> Tensor:
        """Returns the loss summed over the real symbols of these rows; updates the metrics."""
        x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
        logits = model(x, training=training)
        loss = model.compute_loss(
            x=x, y=labels, y_pred=logits, sample_weight=weight, training=training
        )
        # Keras has divided by the number of replicas, for its mean of means.
        loss *= tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)
        tokens = _count_tokens(labels)
        model._loss_tracker.update_state(loss, sample_weight=tokens)
        model.compute_metrics(x, labels, logits, weight)
        return loss * tokens

    def _count_tokens(labels: Tensor) -> Tensor:
        return ops.sum(ops.cast(ops.not_equal(labels, PAD_ID), "float32"))

    def _sum_over_replicas(values: Any) -> Any:
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return values
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    TokenWeightedModel.train_step = _train_step
    TokenWeightedModel.test_step = _test_step
