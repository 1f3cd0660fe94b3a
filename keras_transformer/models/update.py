"""The update that a batch makes under TensorFlow, on any number of devices, in reading order.

Keras averages the losses of replicas and of accumulated parts of a batch with equal weights,
however many tokens each has, and clips gradients before it sums those of the replicas. Here

    check        the batch, outside of XLA, which drops checks
    count        tokens = the real target tokens of the batch, summed over the replicas
    accumulate   gradients of the summed loss / tokens over the parts of a replica's rows
    sum          them over the replicas, and clip the sum by its global norm
    apply        the gradients, or skip the update where their norm is not finite

so that, but for dropout masks and rounding, any number of devices and of parts makes the update
that one device makes. In float16 Keras wraps the optimizer in one that scales the loss: gradients,
their norm and the limit of clipping have that factor until it divides by it. If `uses_xla`, by
default on a GPU, XLA compiles all but the check into one program; under a strategy, even of one
replica, the gradients alone: replicas synchronize after them.

Shapes: B batch, T target length.
"""

import warnings
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.models.checks import checked_ids, require
from keras_transformer.objectives import TRAINING_PREFIX, SmoothedCrossEntropy

Gradients = list[Tensor | None]  # None for a weight that the loss does not reach


class TensorFlowUpdate(keras.Model):
    """A model that TensorFlow trains and evaluates by these methods, not by Keras's.

    Each replica runs these methods on its own rows. Attributes and arguments are those of
    `TokenWeightedModel` (token_weighted.py).
    """

    accumulation_steps: int
    clip_norm: float | None
    uses_xla: bool
    max_length: int | None

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        *args: Any,
        jit_compile: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        if isinstance(loss, list | tuple | dict) and len(losses := keras.tree.flatten(loss)) == 1:
            (loss,) = losses
        if loss_weights is not None:
            raise InputError("the model has one loss: give a loss that is scaled, no loss_weights")
        known = keras.losses.get(loss) if isinstance(loss, str) else loss
        is_function = known is keras.losses.sparse_categorical_crossentropy
        if is_function or getattr(known, "from_logits", True) is False:
            raise InputError(
                "the loss takes probabilities, the model gives logits; give SmoothedCrossEntropy() "
                "or one of Keras's with from_logits=True"
            )
        is_split = self.accumulation_steps > 1 or self.distribute_strategy.num_replicas_in_sync > 1
        reduction = getattr(loss, "reduction", "mean")
        if is_split and reduction in ("sum", "none", None, "mean_with_sample_weight"):
            raise InputError(
                "the parts of a batch are weighted by their real tokens, which needs a loss that "
                f"is a mean over them, such as SmoothedCrossEntropy; got the reduction {reduction}"
            )
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        wants_xla = has_gpu if jit_compile == "auto" else bool(jit_compile)
        with self.distribute_strategy.scope():
            self.bad_steps = _counter("bad_steps")
            self.bad_steps_in_a_row = _counter("bad_steps_in_a_row")
        # XLA compiles the programs below, and not the whole step, which tf.distribute forbids.
        super().compile(optimizer, loss, None, *args, jit_compile=False, **kwargs)
        self._sums_loss = (
            isinstance(loss, SmoothedCrossEntropy)
            and type(loss).__call__ is SmoothedCrossEntropy.__call__
            and type(self).compute_loss is keras.Model.compute_loss
        )
        self.uses_xla = wants_xla and not self.run_eagerly
        self._update_program = _program(self._update)
        self._gradients_program = _program(self._gradients)
        inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if inner and self.distribute_strategy.num_replicas_in_sync > 1:
            # `_sum_and_clip` sums the gradients; the optimizer would sum them again.
            inner._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars

    def train_step(self, data: Any) -> dict[str, Tensor]:
        """Makes one update from one replica's rows of a batch, for `fit`."""
        metrics = self.update(data)
        if _num_replicas() == 1:
            return metrics
        return _for_keras(self.metrics_of_all_replicas())

    def test_step(self, data: Any) -> dict[str, Tensor]:
        """Evaluates one replica's rows of a batch."""
        self._loss_and_metrics(self._checked(data), training=False)
        values = _for_keras(self.metrics_of_all_replicas()).items()
        return {name: value for name, value in values if not name.startswith(TRAINING_PREFIX)}

    def update(self, data: Any) -> dict[str, Tensor]:
        """Makes one update from one replica's rows of a batch.

        Returns:
            The metrics so far; of several replicas none, see `metrics_of_all_replicas`.
        """
        is_one_program = self.uses_xla and not tf.distribute.has_strategy()
        update = self._update_program if is_one_program else self._update
        result: dict[str, Tensor] = update(self._checked(data))
        return result

    def _checked(self, data: Any) -> Any:
        """Returns the rows of a batch; raises an error for wrong ids or labels."""
        x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
        weight = None if weight is None else tf.convert_to_tensor(weight)
        if weight is not None and weight.shape.rank == 1:
            weight = weight[:, None]  # Keras's losses would broadcast [B] along the tokens
        leaves = [] if isinstance(labels, dict) else keras.tree.flatten(labels)
        if len(leaves) != 1 or leaves[0] is None:
            raise InputError(
                "the labels of a batch must be one array of ids [B, T], got "
                f"{'none' if labels is None else f'a {type(labels).__name__}'}"
            )
        if not isinstance(x, dict) or not {"source", "target"} <= x.keys():
            return data  # the model's call raises an error that names the inputs
        config, longest = self.config, self.max_length
        with tf.device("CPU:0"):  # where the batch comes from: a GPU need not wait
            source = checked_ids("source", x["source"], config.vocabulary_size, longest)
            target = checked_ids("target", x["target"], config.target_size, longest)
            labels = checked_ids("labels", leaves[0], config.target_size)
            is_as_long = tf.equal(tf.shape(labels)[1], tf.shape(target)[1])
            message = "labels must be as long as the target, which is BOS and the labels but EOS"
            labels = require(labels, is_as_long, message)
        x = {**x, "source": source, "target": target}
        return keras.utils.pack_x_y_sample_weight(x, labels, weight)

    def _update(self, data: Any) -> dict[str, Tensor]:
        """Makes an update; returns the metrics so far on one device, {} on several."""
        _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        tokens = tf.maximum(sum_over_replicas(_count_tokens(labels)), 1.0)
        gradients = self._accumulated(data, tokens)
        if self.trainable_weights:
            gradients, norm = self._sum_and_clip(gradients)
            self._apply_if(tf.math.is_finite(norm), gradients)
        else:
            warnings.warn("The model has no trainable weights.", stacklevel=2)
        return self.get_metrics_result() if _num_replicas() == 1 else {}

    def _accumulated(self, data: Any, tokens: Tensor) -> Gradients:
        """Returns the gradients of the loss summed over these rows, divided by `tokens`."""
        are_compiled = self.uses_xla and tf.distribute.has_strategy()
        find_gradients = self._gradients_program if are_compiled else self._gradients
        if self.accumulation_steps == 1:
            return find_gradients(data, tokens)
        rows = tf.shape(keras.tree.flatten(data)[0])[0]
        size = tf.maximum(-(-rows // self.accumulation_steps), 1)
        parts = -(-rows // size)  # so that no part is empty

        def split(tensor: Tensor | None) -> Tensor | None:
            """Returns [parts, size, ...]: rows of padding, which count nothing, fill the last."""
            if tensor is None:
                return None
            padding = [[0, parts * size - rows], *[[0, 0]] * (len(tensor.shape) - 1)]
            shape = tf.concat([[parts, size], tf.shape(tensor)[1:]], axis=0)
            return tf.reshape(tf.pad(tensor, padding), shape)

        data = keras.tree.map_structure(split, data)
        # Which weights the loss reaches; filled while the loop, whose variables cannot be None, is
        # traced.
        is_reached: list[bool] = []

        def add_part(part: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            rows_of_part = keras.tree.map_structure(lambda x: None if x is None else x[part], data)
            gradients = find_gradients(rows_of_part, tokens)
            is_reached[:] = [gradient is not None for gradient in gradients]
            pairs = zip(sums, gradients, strict=True)
            return part + 1, [old if new is None else old + new for old, new in pairs]

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_weights]
        _, sums = tf.while_loop(
            lambda part, _: part < parts, add_part, (0, zeros), parallel_iterations=1
        )
        return [total if reached else None for total, reached in zip(sums, is_reached, strict=True)]

    def _gradients(self, data: Any, tokens: Tensor) -> Gradients:
        with tf.GradientTape() as tape:
            loss = self._loss_and_metrics(data, training=True)
            scaled = self.optimizer.scale_loss(loss / tokens)
        # Gradients of embeddings are sparse: not for XLA, `while_loop` and some optimizers.
        return [
            None if gradient is None else tf.convert_to_tensor(gradient)
            for gradient in tape.gradient(scaled, self.trainable_weights)
        ]

    def _loss_and_metrics(self, data: Any, training: bool) -> Tensor:
        """Returns the loss summed over the real tokens of these rows; updates the metrics."""
        x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
        logits = self(x, training=training)
        if self._sums_loss:
            total, own_tokens = self.loss.sum_and_tokens(labels, logits, weight)
            total += own_tokens * sum(tf.cast(loss, tf.float32) for loss in self.losses)
        else:  # a mean over the real tokens, divided by the number of replicas
            own_tokens = _count_tokens(labels)
            loss = self.compute_loss(x, labels, logits, weight, training=training)
            total = own_tokens * tf.cast(loss, tf.float32) * _num_replicas()
        mean = total / tf.maximum(own_tokens, 1.0)
        self._loss_tracker.update_state(mean, sample_weight=own_tokens)
        self.compute_metrics(x, labels, logits, weight)
        return total

    def _sum_and_clip(self, gradients: Gradients) -> tuple[Gradients, Tensor]:
        """Returns the batch's gradients, clipped, and their global norm before clipping, float32.

        `_apply_if` skips the update if this norm is not finite. The clipped gradients then have NaN
        too, by which in float16 the optimizer decides to skip.
        """
        reached = [gradient for gradient in gradients if gradient is not None]
        sums = sum_over_replicas(reached)
        norm = _global_norm(sums)
        if self.clip_norm is not None:
            limit = self.clip_norm * tf.cast(self._loss_scale(), tf.float32)
            factor = tf.minimum(1.0, limit / norm)
            sums = [gradient * tf.cast(factor, gradient.dtype) for gradient in sums]
        rest = iter(sums)
        return [None if gradient is None else next(rest) for gradient in gradients], norm

    def _loss_scale(self) -> Any:
        """Returns the factor of the loss, and so of its gradients."""
        optimizer = self.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):  # in float16
            return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        return optimizer.loss_scale_factor or 1.0

    def _apply_if(self, is_good: Tensor, gradients: Gradients) -> None:
        """Has the optimizer update, or skips and counts the update.

        In float16 the loss scale's optimizer skips by itself; under XLA, which is one device here,
        all variables are put back; else a branch that all replicas take together skips.
        """
        self.bad_steps.assign_add(tf.cast(~is_good, tf.int64))
        in_a_row = self.bad_steps_in_a_row
        in_a_row.assign(tf.where(is_good, tf.zeros_like(in_a_row), in_a_row + 1))

        def apply(gradients: Gradients) -> None:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))

        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            apply(gradients)  # skips bad updates itself, and lowers its scale
        elif tf.__internal__.get_enclosing_xla_context() is not None:
            # On a GPU the host waits for the condition of a branch: select without.
            variables = [v.value for v in (*self.trainable_weights, *self.optimizer.variables)]
            before = [tf.identity(variable) for variable in variables]
            apply(gradients)
            for variable, old in zip(variables, before, strict=True):
                variable.assign(tf.where(is_good, variable.read_value(), old))
        else:
            # Replicas wait for each other in `apply_gradients`, which tf.distribute forbids within
            # a branch of one replica: the branch is taken for all of them.
            def apply_on_all(strategy: Any, gradients: Gradients, is_good: Tensor) -> None:
                tf.cond(
                    strategy.experimental_local_results(is_good)[0],
                    lambda: strategy.extended.call_for_each_replica(apply, args=(gradients,)),
                    lambda: None,
                )

            context = tf.distribute.get_replica_context()
            context.merge_call(apply_on_all, args=(gradients, is_good))

    # Besides the update

    def rehearse(self, data: Any) -> None:
        """Compiles the update for this shape by running it; the caller restores the variables."""
        if tf.distribute.has_strategy():
            self._accumulated(data, tf.constant(1.0))
        else:
            self.update(data)

    def metrics_of_all_replicas(self) -> dict[str, Tensor]:
        """Returns the metrics so far; Keras would average those of the replicas."""
        if _num_replicas() == 1:
            return self.get_metrics_result()
        metrics = self.metrics
        states = [[tf.convert_to_tensor(v) for v in metric.variables] for metric in metrics]
        results: dict[str, Tensor] = {}
        for metric, state in zip(metrics, sum_over_replicas(states), strict=True):
            result = metric.stateless_result(state)
            results |= result if isinstance(result, dict) else {metric.name: result}
        return results

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds metrics and loss under a strategy, from one replica's rows of a batch.

        Keras takes the mean of the replicas' rows, which is undefined for several workers and
        for replicas with different numbers of rows, and reads a batch, which begins another pass
        over data that are shuffled in each. Without a strategy this builds the layers that a
        subclass has added, so that their weights exist before their gradients.
        """
        is_built = all(layer.built for layer in self._flatten_layers())
        if self._distribute_strategy is None and is_built:
            return
        strategy = self.distribute_strategy
        if iterator is not None:
            data_batch = iterator.data_adapter.get_tf_dataset().element_spec

        def of_one_replica(value: Any) -> Any:
            if isinstance(value, tf.TypeSpec):
                return tf.nest.flatten(value, expand_composites=True)[0]
            return strategy.experimental_local_results(value)[0]

        with strategy.scope():
            self._symbolic_build(data_batch=tf.nest.map_structure(of_one_replica, data_batch))


def sum_over_replicas(values: Any) -> Any:
    """Returns a nest of tensors, each summed over the replicas; each replica calls it."""
    if _num_replicas() == 1:
        return values
    context = tf.distribute.get_replica_context()
    # Several workers can reduce only tensors that are on a device, which some are not yet.
    flat = [tf.identity(value) for value in keras.tree.flatten(values)]
    # They also pack the tensors of one call into one, of one dtype.
    for dtype in dict.fromkeys(value.dtype for value in flat):
        places = [place for place, value in enumerate(flat) if value.dtype == dtype]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [flat[place] for place in places])
        for place, total in zip(places, sums, strict=True):
            flat[place] = total
    return keras.tree.pack_sequence_as(values, flat)


def _num_replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _program(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method as a program of XLA, traced once, and compiled once for each shape.

    It is a plain function, which Keras does not export with the model.
    """
    program = tf.function(method, jit_compile=True, autograph=False)
    return lambda *data: program(*data)


def _counter(name: str) -> Any:
    # Not a Keras variable: it is a weight neither of the model nor of the optimizer. TensorFlow has
    # int32 variables on the host, where a program of XLA on a GPU cannot reach them.
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


def _count_tokens(labels: Tensor) -> Tensor:
    """Returns the number of real tokens of labels [B, T], float32."""
    return tf.reduce_sum(tf.cast(tf.not_equal(labels, PAD_ID), tf.float32))


def _global_norm(gradients: list[Tensor]) -> Tensor:
    halves = [tf.constant(0.0)]
    for gradient in gradients:
        wide = gradient if gradient.dtype == tf.float64 else tf.cast(gradient, tf.float32)
        halves.append(tf.cast(tf.nn.l2_loss(wide), tf.float32))
    return tf.sqrt(2.0 * tf.add_n(halves))


def _for_keras(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns values of several workers with a first axis, over which Keras takes the mean."""
    strategy = tf.distribute.get_strategy()
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if is_multi_worker and strategy.extended._in_multi_worker_mode():  # Keras's own condition
        return {name: tf.reshape(value, [1]) for name, value in values.items()}
    return values
