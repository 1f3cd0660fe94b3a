"""The token-weighted training step under TensorFlow, on one device and under any strategy."""

import warnings
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.objectives import OF_TRAINING_ONLY


class TensorFlowModel(keras.Model):
    """A Keras model with the steps that `TokenWeightedModel` has under TensorFlow.

    Attributes:
        accumulation_steps, clip_norm: see `TokenWeightedModel.compile`.
        uses_xla: whether XLA compiles the forward and backward pass.
        bad_steps, bad_steps_in_a_row: int32 variables, updates that were left out.
    """

    accumulation_steps: int
    clip_norm: float | None
    uses_xla: bool

    def _prepare_step(self, jit_compile: bool | str) -> None:
        """Decides on XLA and makes the counters."""
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        self.uses_xla = has_gpu if jit_compile == "auto" else bool(jit_compile)
        with self.distribute_strategy.scope():
            # No Keras variables: these are neither weights of the model nor of the optimizer.
            self.bad_steps, self.bad_steps_in_a_row = (
                tf.Variable(
                    0,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    name=name,
                )
                for name in ("bad_steps", "bad_steps_in_a_row")
            )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds metrics and loss under a strategy, from one replica's rows of the first batch.

        Keras takes the mean of the replicas' rows, which is undefined for several workers and for
        replicas with different numbers of rows. Without a strategy this builds layers that a
        subclass has added, so that their weights exist before their gradients are asked for.
        """
        is_built = all(layer.built for layer in self._flatten_layers())
        if self._distribute_strategy is None and is_built:
            return
        strategy = self.distribute_strategy
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)

        def rows_of_one(value: Any) -> Any:
            distributed = isinstance(value, tf.distribute.DistributedValues)
            return strategy.experimental_local_results(value)[0] if distributed else value

        with strategy.scope():
            self._symbolic_build(data_batch=tree.map_structure(rows_of_one, data_batch))

    def train_step(self, data: Any) -> dict[str, Tensor]:
        """Runs one update on one replica's rows of a batch."""
        _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        tokens = tf.maximum(_sum_over_replicas(_count_tokens(labels)), 1.0)
        gradients = _accumulate(self, data, tokens)
        if not gradients:
            warnings.warn("The model has no trainable weights.", stacklevel=2)
            return _metrics_of_all_replicas(self)
        if self.clip_norm is not None:
            gradients = _clip(self, gradients)
        _apply_if_finite(self, gradients)
        return _metrics_of_all_replicas(self)

    def test_step(self, data: Any) -> dict[str, Tensor]:
        """Evaluates one replica's rows of a batch."""
        _loss_and_metrics(self, data, training=False)
        metrics = _metrics_of_all_replicas(self)
        return {name: metrics[name] for name in metrics if not name.startswith(OF_TRAINING_ONLY)}


def _accumulate(model: TensorFlowModel, data: Any, tokens: Tensor) -> list[Tensor]:
    """Returns the gradients of the loss summed over these rows, divided by `tokens`."""
    parts = model.accumulation_steps
    if parts == 1:
        return _gradients(model, data, tokens)
    rows = tf.shape(tree.flatten(data)[0])[0]
    size = tf.maximum(-(-rows // parts), 1)
    parts = -(-rows // size)  # none is empty
    # All parts have one shape, so that XLA compiles one program: rows of padding count nothing.
    data = tree.map_structure(
        lambda tensor: None if tensor is None else _add_rows(tensor, parts * size - rows), data
    )

    def add_part(part: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        rows_of_part = tree.map_structure(
            lambda tensor: None if tensor is None else tensor[part * size : (part + 1) * size],
            data,
        )
        gradients = _gradients(model, rows_of_part, tokens)
        pairs = zip(sums, gradients, strict=True)
        return part + 1, [total + tf.convert_to_tensor(new) for total, new in pairs]

    zeros = [tf.zeros(weight.shape, weight.dtype) for weight in model.trainable_weights]
    _, sums = tf.while_loop(
        lambda part, _: part < parts, add_part, (0, zeros), parallel_iterations=1
    )
    return sums


def _add_rows(tensor: Tensor, count: Tensor) -> Tensor:
    return tf.pad(tensor, [[0, count], *[[0, 0]] * (len(tensor.shape) - 1)])


def _gradients(model: TensorFlowModel, data: Any, tokens: Tensor) -> list[Tensor]:
    weights = model.trainable_weights

    def forward_and_backward(data: Any, tokens: Tensor) -> list[Tensor]:
        with tf.GradientTape() as tape:
            loss = _loss_and_metrics(model, data, training=True)
            scaled = model.optimizer.scale_loss(loss / tokens)
        gradients = tape.gradient(scaled, weights, unconnected_gradients="zero")
        # XLA has no sparse gradients, which those of embeddings are.
        return [tf.convert_to_tensor(each) for each in gradients] if model.uses_xla else gradients

    if not model.uses_xla:
        return forward_and_backward(data, tokens)
    # XLA compiles no more than this: outside of it, replicas synchronize.
    compiled = tf.function(forward_and_backward, jit_compile=True, autograph=False)
    return compiled(data, tokens)


def _clip(model: TensorFlowModel, gradients: list[Tensor]) -> list[Tensor]:
    """Returns this replica's share of the batch's gradient, cut to `clip_norm`."""
    scale = getattr(model.optimizer, "dynamic_scale", 1.0)  # of the loss, in float16
    gradients = _sum_over_replicas([tf.convert_to_tensor(value) for value in gradients])
    limit = model.clip_norm * tf.cast(scale, tf.float32)
    gradients, _ = tf.clip_by_global_norm(gradients, limit)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return [gradient / replicas for gradient in gradients]


def _apply_if_finite(model: TensorFlowModel, gradients: list[Tensor]) -> None:
    """Lets the optimizer add up the replicas' gradients and update, if all are finite."""
    is_finite = tf.cast(tf.math.is_finite(tf.linalg.global_norm(gradients)), tf.float32)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    is_good = tf.equal(_sum_over_replicas(is_finite), replicas)
    model.bad_steps.assign_add(tf.cast(~is_good, tf.int32))
    model.bad_steps_in_a_row.assign(tf.where(is_good, 0, model.bad_steps_in_a_row + 1))

    def update(gradients: list[Tensor]) -> None:
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # It leaves bad updates out itself, and lowers its scale for them, but goes by the first
        # replica's gradient before the replicas' are added up: all of them are reported.
        spoil = tf.where(is_good, 0.0, float("nan"))
        update([tf.convert_to_tensor(each) + tf.cast(spoil, each.dtype) for each in gradients])
        return

    # tf.distribute has no branches in a replica's own context.
    def update_all(strategy: Any, gradients: list[Tensor], is_good: Tensor) -> None:
        tf.cond(
            strategy.experimental_local_results(is_good)[0],
            lambda: strategy.extended.call_for_each_replica(update, args=(gradients,)),
            lambda: None,
        )

    tf.distribute.get_replica_context().merge_call(update_all, args=(gradients, is_good))


def _metrics_of_all_replicas(model: TensorFlowModel) -> dict[str, Tensor]:
    """Returns the metrics of the whole batch, where Keras averages those of the replicas."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return model.get_metrics_result()
    metrics = model.metrics
    states = [[tf.convert_to_tensor(v) for v in metric.variables] for metric in metrics]
    results: dict[str, Tensor] = {}
    for metric, state in zip(metrics, _sum_over_replicas(states), strict=True):
        result = metric.stateless_result(state)
        results |= result if isinstance(result, dict) else {metric.name: result}
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # Keras takes the mean over the first axis of what the workers return.
        return {name: tf.reshape(value, [1]) for name, value in results.items()}
    return results


def _loss_and_metrics(model: TensorFlowModel, data: Any, training: bool) -> Tensor:
    """Returns the loss summed over the real tokens of these rows; updates the metrics."""
    x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    logits = model(x, training=training)
    loss = model.compute_loss(x=x, y=labels, y_pred=logits, sample_weight=weight, training=training)
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
    # Several workers can reduce only tensors that are on a device, which some are not yet.
    flat = [tf.identity(value) for value in tree.flatten(values)]
    # They also pack all that is given together into one tensor.
    for dtype in dict.fromkeys(value.dtype for value in flat):
        places = [place for place, value in enumerate(flat) if value.dtype == dtype]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [flat[place] for place in places])
        for place, total in zip(places, sums, strict=True):
            flat[place] = total
    return tree.pack_sequence_as(values, flat)
