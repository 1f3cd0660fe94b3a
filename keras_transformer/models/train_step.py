"""The update that a batch makes: every real target token counts once, on any number of devices.

Keras averages the losses of replicas and of accumulated parts of a batch with equal weights,
however many tokens each has, and clips gradients before it sums those of the replicas. Under
TensorFlow, `TokenWeightedModel` replaces Keras's step, on one device and with any `tf.distribute`
strategy:

    tokens    = the real target tokens of the batch, summed over the replicas
    gradients = of the summed loss / tokens, added up over the parts of a replica's rows
    gradients = summed over the replicas, and clipped by their global norm if a limit is given
    update the weights, or skip the update where their norm is not finite (in float16 the
    optimizer, which scales the loss, skips it by itself)

so that, but for dropout masks and rounding, any number of devices and of parts makes the update
that one device makes. XLA compiles all of it into one program on one device. Several replicas
synchronize between gradients and update, so that it compiles the gradients alone.

Shapes: B batch, T target length.
"""

import contextlib
import itertools
import types
import warnings
from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.objectives import TRAINING_PREFIX, check_batch, check_ids
from keras_transformer.xla import in_xla

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


class TokenWeightedModel(keras.Model):
    """Base of the models: an update follows the mean loss of the batch's real target tokens.

    The loss shown is the mean over the real tokens of all batches. On JAX and PyTorch Keras's own
    step trains on one device. A loss that averages over the real tokens, such as
    `SmoothedCrossEntropy`, gives the same update there, but the loss shown over several batches
    weights them by rows, and only float16's loss scaling skips updates.

    `class_weight` of Keras's `fit` is for one label a row; sequences take `sample_weight`.

    Attributes:
        accumulation_steps, clip_norm: see `compile`.
        uses_xla: whether XLA compiles the update.
        flops_metric: a metric or None; its `update_state` gets the ids of each batch, source and
            labels.
        bad_steps, bad_steps_in_a_row: int64 variables (TensorFlow): the updates skipped since
            `compile`, and since the last update that was not skipped.
    """

    accumulation_steps = 1
    clip_norm: float | None = None
    uses_xla = False
    flops_metric: Any = None
    _jit_compile_asked: bool | Literal["auto"] = "auto"

    def compile(
        self,
        *args: Any,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        jit_compile: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        """Compiles as `keras.Model.compile` does, with two options of the update.

        Args:
            *args, **kwargs: of `keras.Model.compile`.
            accumulation_steps: parts into which a batch is cut to save memory. The update is that
                of the whole batch if the loss is a mean over the labels that are not 0, such as
                `SmoothedCrossEntropy`.
            clip_norm: the largest global norm of a gradient; None does not clip.
            jit_compile: whether XLA compiles the update, once for each shape of a batch; "auto"
                compiles on a GPU (on a CPU XLA is slower). `run_eagerly` turns it off.

        Raises:
            InputError: a number is out of range; the batch is cut and the loss is not a mean; or
                accumulation or clipping is asked for on another backend than TensorFlow.
        """
        if accumulation_steps < 1 or (clip_norm is not None and clip_norm <= 0):
            raise InputError(
                "accumulation_steps must be at least 1 and clip_norm above 0, got "
                f"{accumulation_steps} and {clip_norm}"
            )
        asked = jit_compile
        if not ON_TENSORFLOW and (accumulation_steps > 1 or clip_norm):
            raise InputError(
                "accumulation_steps and clip_norm need the TensorFlow backend; give the optimizer "
                "gradient_accumulation_steps and global_clipnorm instead"
            )
        if ON_TENSORFLOW:
            loss: Any = kwargs.get("loss", args[1] if len(args) > 1 else None)
            is_cut = accumulation_steps > 1 or self.distribute_strategy.num_replicas_in_sync > 1
            if is_cut and getattr(loss, "reduction", "mean") in ("sum", "none", None):
                raise InputError(
                    "the parts of a batch are weighted by their real tokens, which needs a loss "
                    f"that is a mean, got the reduction {loss.reduction}; use another one, such as "
                    "SmoothedCrossEntropy"
                )
            has_gpu = bool(tf.config.list_physical_devices("GPU"))
            self.uses_xla = has_gpu if jit_compile == "auto" else bool(jit_compile)
            jit_compile = False  # of the whole step, which tf.distribute does not allow
            with self.distribute_strategy.scope():
                self.bad_steps = _counter("bad_steps")
                self.bad_steps_in_a_row = _counter("bad_steps_in_a_row")
            # In a namespace, which Keras does not export with the model.
            self._programs = types.SimpleNamespace(of_replica={})
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        optimizer: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if ON_TENSORFLOW and self.distribute_strategy.num_replicas_in_sync > 1 and optimizer:
            # `_sum_and_clip` sums the gradients, once; the optimizer's sum would be another.
            optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self._jit_compile_asked = asked

    if ON_TENSORFLOW:

        def update(self, data: Any) -> dict[str, Tensor]:
            """Makes one update from one replica's rows of a batch.

            Returns:
                The metrics so far; of several replicas none, see `metrics_of_all_replicas`.
            """
            update = _program(self, _update, is_outermost=not tf.distribute.has_strategy())
            return update(_checked(self, data, training=True))

        def rehearse(self, data: Any) -> None:
            """Runs all that XLA compiles for rows of this shape; what it leaves is of no use."""
            if tf.distribute.has_strategy():
                _accumulate(self, data, tf.constant(1.0))
            else:
                self.update(data)

        def metrics_of_all_replicas(self) -> dict[str, Tensor]:
            """Returns the metrics so far; Keras would average those of the replicas."""
            if _num_replicas() == 1:
                return self.get_metrics_result()
            metrics = self.metrics
            states = [[tf.convert_to_tensor(v) for v in metric.variables] for metric in metrics]
            results: dict[str, Tensor] = {}
            for metric, state in zip(metrics, _sum_over_replicas(states), strict=True):
                result = metric.stateless_result(state)
                results |= result if isinstance(result, dict) else {metric.name: result}
            return results

        def train_step(self, data: Any) -> dict[str, Tensor]:
            """Makes one update from one replica's rows of a batch, for `fit`."""
            return self.update(data) or _for_keras(self.metrics_of_all_replicas())

        def test_step(self, data: Any) -> dict[str, Tensor]:
            """Evaluates one replica's rows of a batch."""
            _loss_and_metrics(self, _checked(self, data), training=False)
            values = _for_keras(self.metrics_of_all_replicas()).items()
            return {name: value for name, value in values if not name.startswith(TRAINING_PREFIX)}

        def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
            """Builds metrics and loss under a strategy, from one replica's rows of a batch.

            Keras takes the mean of the replicas' rows, which is undefined for several workers and
            for replicas with different numbers of rows. Without a strategy this builds the layers
            that a subclass has added, so that their weights exist before their gradients.
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
                self._symbolic_build(data_batch=keras.tree.map_structure(rows_of_one, data_batch))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics as `keras.Model.compute_metrics` does, and `flops_metric`."""
        if self.flops_metric is not None:
            self.flops_metric.update_state(x["source"], y)
        if getattr(y_pred, "_keras_mask", None) is None:  # metrics of Keras skip padding by it
            mask = ops.not_equal(ops.reshape(y, ops.shape(y_pred)[:-1]), PAD_ID)
            with contextlib.suppress(AttributeError):  # a tensor that has no attributes
                y_pred._keras_mask = mask
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns the arguments of `compile`, for a file of the model."""
        config = super().get_compile_config()
        if not self.compiled:
            return config
        return config | {
            "accumulation_steps": self.accumulation_steps,
            "clip_norm": self.clip_norm,
            "jit_compile": self._jit_compile_asked,
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a model from a file as it was; Keras leaves that to those who override it."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)


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


# The parts of an update under TensorFlow, in their order. Each runs on one replica.


def _checked(model: Any, data: Any, training: bool = False) -> Any:
    """Returns the rows of a batch; raises an error for wrong labels, or ids without a token.

    In training with XLA, which drops the check of `PositionalEncoding`, also for sequences that are
    longer than its table.
    """
    x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    leaves = [] if isinstance(labels, dict) else keras.tree.flatten(labels)
    if len(leaves) != 1 or leaves[0] is None:
        raise InputError(
            "the labels of a batch must be one array of ids [B, T], got "
            f"{'none' if labels is None else f'a {type(labels).__name__}'}; give `fit` the inputs "
            "and the labels"
        )
    if not isinstance(x, dict) or not {"source", "target"} <= x.keys():
        return data  # the model says how to name its inputs
    for name, given in (("source", x["source"]), ("target", x["target"]), ("labels", leaves[0])):
        check_batch(name, given)
    source_size, target_size = model.config.vocabulary_size, model.config.target_size
    with tf.device("CPU:0"):  # where the batch comes from: a GPU need not wait
        ids = {
            "source": check_ids("source", x["source"], source_size),
            "target": check_ids("target", x["target"], target_size),
        }
        labels = check_ids("labels", leaves[0], target_size)
        labels = _as_long_as(ids["target"], labels)
        if training and _uses_xla(model) and getattr(model.config, "positions", "") == "learned":
            ids = {name: _within_table(name, each, model.config) for name, each in ids.items()}
    return keras.utils.pack_x_y_sample_weight({**x, **ids}, labels, weight)


def _as_long_as(target: Tensor, labels: Tensor) -> Tensor:
    """Returns labels [B, T]; raises an error if targets are not [B, T]."""
    lengths = [tf.shape(labels)[1], tf.shape(target)[1]]
    message = (
        "labels must be as long as the target: the labels are the translation and EOS, the target "
        "is BOS and the translation; got lengths:"
    )
    return _required(lengths[0] == lengths[1], labels, message, *lengths)


def _within_table(name: str, ids: Tensor, config: Any) -> Tensor:
    """Returns ids [B, T]; raises an error if positions up to T may lie beyond the learned ones."""
    room = config.max_positions - config.first_position - config.max_position_offset
    message = (
        f"{name} is longer than the {room} tokens that max_positions={config.max_positions} has "
        "room for; shorten the sequences (and max_position_offset), got tokens:"
    )
    length = tf.shape(ids)[1]
    return _required(length <= room, ids, message, length)


def _required(condition: Tensor, value: Tensor, *message: Any) -> Tensor:
    """Returns a tensor; raises an error, also in a graph, where the condition is not True."""
    with tf.control_dependencies([tf.debugging.Assert(condition, list(message))]):
        return tf.identity(value)


def _program(model: Any, function: Any, is_outermost: bool) -> Any:
    """Returns `function(model, ...)` as a function of the rest, compiled if the model uses XLA.

    It is traced once for all batches of a data set, and compiled once for each shape. Replicas of
    a strategy, be it one, synchronize outside of their programs: a replica has one program, of
    `_gradients`; without a strategy it is of `_update`.
    """

    def call(*data: Any) -> Any:
        return function(model, *data)

    if not (is_outermost and _uses_xla(model)):
        return call
    replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    programs = model._programs.of_replica
    if int(replica) not in programs:
        call.__name__ = function.__name__.strip("_")  # names the program
        programs[int(replica)] = tf.function(call, jit_compile=True, autograph=False)
    return programs[int(replica)]


def _uses_xla(model: Any) -> bool:
    return bool(model.uses_xla and not model.run_eagerly)


def _update(model: Any, data: Any) -> dict[str, Tensor]:
    """Makes an update; returns the metrics so far on one device, {} on several."""
    weights = model.trainable_weights
    _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
    tokens = tf.maximum(_sum_over_replicas(_count_tokens(labels)), 1.0)
    gradients = _accumulate(model, data, tokens)
    if weights:
        is_learned = [
            gradient is not None and not _is_overwritten(weight)
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        learned, norm = _sum_and_clip(model, list(itertools.compress(gradients, is_learned)))
        sums = iter(learned)
        gradients = [
            next(sums) if learns else _maximum_over_replicas(gradient)
            for learns, gradient in zip(is_learned, gradients, strict=True)
        ]
        _apply_if(tf.math.is_finite(norm), model, gradients)
    else:
        warnings.warn("The model has no trainable weights.", stacklevel=2)
    return model.get_metrics_result() if _num_replicas() == 1 else {}


def _accumulate(model: Any, data: Any, tokens: Tensor) -> list[Tensor | None]:
    """Returns the gradients of the loss summed over these rows, divided by `tokens`.

    They are None for weights that the loss does not reach.
    """
    find_gradients = _program(model, _gradients, is_outermost=tf.distribute.has_strategy())
    parts = model.accumulation_steps
    if parts == 1:
        return find_gradients(data, tokens)
    rows = tf.shape(keras.tree.flatten(data)[0])[0]
    size = tf.maximum(-(-rows // parts), 1)
    parts = -(-rows // size)  # so that no part is empty

    def cut(tensor: Tensor | None) -> Tensor | None:
        """Returns [parts, size, ...]: rows of padding, which count nothing, fill the last part."""
        if tensor is None:
            return None
        padding = [[0, parts * size - rows], *[[0, 0]] * (len(tensor.shape) - 1)]
        shape = tf.concat([[parts, size], tf.shape(tensor)[1:]], axis=0)
        return tf.reshape(tf.pad(tensor, padding), shape)

    data = keras.tree.map_structure(cut, data)
    weights = model.trainable_weights
    is_reached: list[bool] = []

    def add_part(part: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        rows_of_part = keras.tree.map_structure(lambda x: None if x is None else x[part], data)
        gradients = find_gradients(rows_of_part, tokens)
        is_reached[:] = [gradient is not None for gradient in gradients]
        return part + 1, [
            total
            if new is None
            else tf.maximum(total, new)
            if _is_overwritten(weight)
            else total + new
            for weight, total, new in zip(weights, sums, gradients, strict=True)
        ]

    zeros = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
    _, sums = tf.while_loop(
        lambda part, _: part < parts, add_part, (0, zeros), parallel_iterations=1
    )
    return [each if reached else None for each, reached in zip(sums, is_reached, strict=True)]


def _gradients(model: Any, data: Any, tokens: Tensor) -> list[Tensor | None]:
    with tf.GradientTape() as tape:
        loss = _loss_and_metrics(model, data, training=True)
        scaled = model.optimizer.scale_loss(loss / tokens)
    # Those of embeddings are sparse, which XLA, `while_loop` and some optimizers do not take.
    return [
        None if gradient is None else tf.convert_to_tensor(gradient)
        for gradient in tape.gradient(scaled, model.trainable_weights)
    ]


def _loss_and_metrics(model: Any, data: Any, training: bool) -> Tensor:
    """Returns the loss summed over the real tokens of these rows; updates the metrics.

    What `compute_loss` returns is a mean over them if the model's loss is one, such as
    `SmoothedCrossEntropy`.
    """
    x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    logits = model(x, training=training)
    loss = model.compute_loss(x=x, y=labels, y_pred=logits, sample_weight=weight, training=training)
    # `compute_loss` has divided by the number of replicas, for Keras's mean of means.
    loss *= tf.cast(_num_replicas(), loss.dtype)
    own_tokens = _count_tokens(labels)
    model._loss_tracker.update_state(loss, sample_weight=own_tokens)
    model.compute_metrics(x, labels, logits, weight)
    return tf.cast(loss, tf.float32) * own_tokens


def _count_tokens(labels: Tensor) -> Tensor:
    """Returns the number of real tokens of labels [B, T], float32."""
    return tf.reduce_sum(tf.cast(tf.not_equal(labels, PAD_ID), tf.float32))


def _is_overwritten(weight: Any) -> bool:
    """Whether the weight's "gradient" is its next value, as for the scales of float8 layers.

    They follow the largest absolute values seen: of parts and replicas the maximum counts, and
    they are not clipped.
    """
    return getattr(weight, "overwrite_with_gradient", False)


def _sum_and_clip(model: Any, gradients: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Returns the batch's gradients, clipped, and their global norm before, float32."""
    gradients = _sum_over_replicas(gradients)
    halves = [tf.constant(0.0)]
    for each in gradients:
        wide = each if each.dtype == tf.float64 else tf.cast(each, tf.float32)
        halves.append(tf.cast(tf.nn.l2_loss(wide), tf.float32))
    norm = tf.sqrt(2.0 * tf.add_n(halves))
    if model.clip_norm is None:
        return gradients, norm
    optimizer = model.optimizer
    scale = optimizer.loss_scale_factor or 1.0
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):  # in float16
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    factor = tf.minimum(1.0, model.clip_norm * tf.cast(scale, tf.float32) / norm)
    return [each * tf.cast(factor, each.dtype) for each in gradients], norm


def _apply_if(is_good: Tensor, model: Any, gradients: list[Tensor | None]) -> None:
    """Has the optimizer update, or skips and counts the update."""
    model.bad_steps.assign_add(tf.cast(~is_good, tf.int64))
    in_a_row = model.bad_steps_in_a_row
    in_a_row.assign(tf.where(is_good, tf.zeros_like(in_a_row), in_a_row + 1))

    def update(gradients: list[Tensor | None]) -> None:
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        update(gradients)  # skips bad updates itself, and lowers its scale
        return

    if in_xla():  # on a GPU the host waits for the condition of a branch: select without one
        variables = [v.value for v in (*model.trainable_weights, *model.optimizer.variables)]
        before = [tf.identity(variable) for variable in variables]
        update(gradients)
        for variable, old in zip(variables, before, strict=True):
            variable.assign(tf.where(is_good, variable.read_value(), old))
        return

    # Replicas wait for each other in `apply_gradients`, which tf.distribute forbids within a branch
    # of one replica: the branch is taken for all of them.
    def update_all(strategy: Any, gradients: list[Tensor | None], is_good: Tensor) -> None:
        tf.cond(
            strategy.experimental_local_results(is_good)[0],
            lambda: strategy.extended.call_for_each_replica(update, args=(gradients,)),
            lambda: None,
        )

    tf.distribute.get_replica_context().merge_call(update_all, args=(gradients, is_good))


def _for_keras(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns values of several workers as Keras takes the mean of them: over their first axis."""
    if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
        return {name: tf.reshape(value, [1]) for name, value in values.items()}
    return values


def _num_replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _sum_over_replicas(values: Any) -> Any:
    """Returns a nest of tensors, each summed over the replicas."""
    if _num_replicas() == 1:
        return values
    context = tf.distribute.get_replica_context()
    # Several workers can reduce only tensors that are on a device, which some are not yet.
    flat = [tf.identity(value) for value in keras.tree.flatten(values)]
    # They also pack all that is given together into one tensor.
    for dtype in dict.fromkeys(value.dtype for value in flat):
        places = [place for place, value in enumerate(flat) if value.dtype == dtype]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [flat[place] for place in places])
        for place, total in zip(places, sums, strict=True):
            flat[place] = total
    return keras.tree.pack_sequence_as(values, flat)


def _maximum_over_replicas(value: Tensor | None) -> Tensor | None:
    if value is None or _num_replicas() == 1:
        return value
    values = tf.distribute.get_replica_context().all_gather(value[None], axis=0)
    return tf.reduce_max(values, axis=0)
