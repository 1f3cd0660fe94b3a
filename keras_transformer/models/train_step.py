"""The update that a batch makes: every real target token counts once, on any number of devices.

Keras averages the losses of replicas and of accumulated parts of a batch with equal weights,
however many tokens each has, and clips gradients before it sums those of the replicas. Under
TensorFlow, `TokenWeightedModel` replaces Keras's step, on one device and with any `tf.distribute`
strategy:

    tokens    = the real target tokens of the batch, summed over the replicas
    gradients = of the summed loss / tokens, added up over the parts of a replica's rows
    gradients = summed over the replicas, and clipped by their global norm if a limit is given
    update the weights, or skip the update where a gradient is not finite

so that, but for dropout masks and rounding, any number of devices and of parts makes the update
that one device makes.

Shapes: B batch, T target length.
"""

import inspect
import warnings
from typing import Any, Literal

import keras

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.objectives import TRAINING_PREFIX

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


class TokenWeightedModel(keras.Model):
    """Base of the models: an update follows the mean loss of the batch's real target tokens.

    The loss shown is the mean over the real tokens of all batches. On JAX and PyTorch Keras's own
    step trains on one device. A loss that averages over the real tokens, such as
    `SmoothedCrossEntropy`, gives the same update there, but the loss shown over several batches
    weights them by rows, and only float16's loss scaling skips updates.

    Attributes:
        accumulation_steps, clip_norm: see `compile`.
        uses_xla: whether XLA compiles the forward and backward pass.
        flops_metric: a metric or None; its `update_state` gets the ids of each batch, source and
            labels.
        bad_steps, bad_steps_in_a_row: int32 variables (TensorFlow): the updates skipped since
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
            jit_compile: whether XLA compiles the forward and backward pass, once for each shape
                of a batch; "auto" compiles on a GPU (on a CPU XLA is slower). `run_eagerly`
                turns it off.

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
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self._jit_compile_asked = asked

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does; raises `InputError` if `class_weight` is given."""
        _reject_class_weight(super().fit, args, kwargs)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Trains as `keras.Model.train_on_batch` does; `InputError` as in `fit`."""
        _reject_class_weight(super().train_on_batch, args, kwargs)
        return super().train_on_batch(*args, **kwargs)

    if ON_TENSORFLOW:

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
            values = _metrics_of_all_replicas(self).items()
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


def _reject_class_weight(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = inspect.signature(method).bind_partial(*args, **kwargs).arguments
    if given.get("class_weight") is not None:
        raise InputError(
            "class_weight is not for sequences: Keras would weight each sentence by one of its "
            "labels; give sample_weight, [B] or [B, T], instead"
        )


def _counter(name: str) -> Any:
    # Not a Keras variable: it is a weight neither of the model nor of the optimizer.
    return tf.Variable(
        0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


# The parts of `train_step` under TensorFlow, in their order. Each runs on one replica.


def _accumulate(model: Any, data: Any, tokens: Tensor) -> list[Tensor]:
    """Returns the gradients of the loss summed over these rows, divided by `tokens`."""
    parts = model.accumulation_steps
    if parts == 1:
        return _gradients(model, data, tokens)
    rows = tf.shape(keras.tree.flatten(data)[0])[0]
    size = tf.maximum(-(-rows // parts), 1)
    parts = -(-rows // size)  # so that no part is empty

    def pad(tensor: Tensor | None) -> Tensor | None:
        """Adds rows of padding, which count nothing: all parts have one shape, one XLA program."""
        if tensor is None:
            return None
        return tf.pad(tensor, [[0, parts * size - rows], *[[0, 0]] * (len(tensor.shape) - 1)])

    data = keras.tree.map_structure(pad, data)

    def add_part(part: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        rows_of_part = keras.tree.map_structure(
            lambda tensor: None if tensor is None else tensor[part * size : (part + 1) * size],
            data,
        )
        gradients = map(tf.convert_to_tensor, _gradients(model, rows_of_part, tokens))
        terms = zip(model.trainable_weights, sums, gradients, strict=True)
        return part + 1, [
            tf.maximum(total, new) if _is_overwritten(weight) else total + new
            for weight, total, new in terms
        ]

    zeros = [tf.zeros(weight.shape, weight.dtype) for weight in model.trainable_weights]
    _, sums = tf.while_loop(
        lambda part, _: part < parts, add_part, (0, zeros), parallel_iterations=1
    )
    return sums


def _gradients(model: Any, data: Any, tokens: Tensor) -> list[Tensor]:
    weights = model.trainable_weights
    uses_xla = model.uses_xla and not model.run_eagerly

    def forward_and_backward(data: Any, tokens: Tensor) -> list[Tensor]:
        with tf.GradientTape() as tape:
            loss = _loss_and_metrics(model, data, training=True)
            scaled = model.optimizer.scale_loss(loss / tokens)
        gradients = tape.gradient(scaled, weights, unconnected_gradients="zero")
        # XLA has no sparse gradients, which those of embeddings are.
        return [tf.convert_to_tensor(each) for each in gradients] if uses_xla else gradients

    if not uses_xla:
        return forward_and_backward(data, tokens)
    # XLA compiles no more than this: outside of it, replicas synchronize.
    compiled = tf.function(forward_and_backward, jit_compile=True, autograph=False)
    return compiled(data, tokens)


def _loss_and_metrics(model: Any, data: Any, training: bool) -> Tensor:
    """Returns the loss summed over the real tokens of these rows; updates the metrics."""
    x, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    logits = model(x, training=training)
    loss = model.compute_loss(x=x, y=labels, y_pred=logits, sample_weight=weight, training=training)
    # Keras has divided by the number of replicas, for its mean of means.
    loss *= tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)
    own_tokens = _count_tokens(labels)
    model._loss_tracker.update_state(loss, sample_weight=own_tokens)
    model.compute_metrics(x, labels, logits, weight)
    return loss * own_tokens


def _count_tokens(labels: Tensor) -> Tensor:
    """Returns the number of real tokens of labels [B, T], float32."""
    leaves = [] if isinstance(labels, dict) else keras.tree.flatten(labels)
    if len(leaves) != 1 or leaves[0] is None:
        raise InputError(
            "the labels of a batch must be one array of ids [B, T], got "
            f"{'none' if labels is None else f'a {type(labels).__name__}'}; give `fit` the inputs "
            "and the labels"
        )
    labels = leaves[0]
    return tf.reduce_sum(tf.cast(tf.not_equal(labels, PAD_ID), tf.float32))


def _is_overwritten(weight: Any) -> bool:
    """Whether the weight's "gradient" is its next value, as for the scales of float8 layers.

    They follow the largest absolute values seen: of parts and replicas the maximum counts, and
    they are not clipped.
    """
    return getattr(weight, "overwrite_with_gradient", False)


def _clip(model: Any, gradients: list[Tensor]) -> list[Tensor]:
    """Returns the batch's clipped gradient divided by the replicas, which the optimizer sums."""
    weights = model.trainable_weights
    optimizer = model.optimizer
    scale = optimizer.loss_scale_factor or 1.0
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):  # in float16
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    learned = [
        tf.convert_to_tensor(gradient)
        for weight, gradient in zip(weights, gradients, strict=True)
        if not _is_overwritten(weight)
    ]
    limit = model.clip_norm * tf.cast(scale, tf.float32)
    learned, _ = tf.clip_by_global_norm(_sum_over_replicas(learned), limit)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    shares = iter([gradient / replicas for gradient in learned])
    pairs = zip(weights, gradients, strict=True)
    return [gradient if _is_overwritten(weight) else next(shares) for weight, gradient in pairs]


def _apply_if_finite(model: Any, gradients: list[Tensor]) -> None:
    """Has the optimizer sum the replicas' gradients and update, if all of them are finite."""
    is_finite = tf.cast(tf.math.is_finite(tf.linalg.global_norm(gradients)), tf.float32)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    is_good = tf.equal(_sum_over_replicas(is_finite), replicas)
    model.bad_steps.assign_add(tf.cast(~is_good, tf.int32))
    model.bad_steps_in_a_row.assign(tf.where(is_good, 0, model.bad_steps_in_a_row + 1))

    gradients = [
        _maximum_over_replicas(gradient) if _is_overwritten(weight) else gradient
        for weight, gradient in zip(model.trainable_weights, gradients, strict=True)
    ]

    def update(gradients: list[Tensor]) -> None:
        model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # It skips bad updates itself and lowers its scale, but looks at the first replica's
        # gradients only: on a bad step those of every replica become NaN.
        spoil = tf.where(is_good, 0.0, float("nan"))
        update([tf.convert_to_tensor(each) + tf.cast(spoil, each.dtype) for each in gradients])
        return

    # Replicas wait for each other in `apply_gradients`, which tf.distribute forbids within a branch
    # of one replica: the branch is taken for all of them.
    def update_all(strategy: Any, gradients: list[Tensor], is_good: Tensor) -> None:
        tf.cond(
            strategy.experimental_local_results(is_good)[0],
            lambda: strategy.extended.call_for_each_replica(update, args=(gradients,)),
            lambda: None,
        )

    tf.distribute.get_replica_context().merge_call(update_all, args=(gradients, is_good))


def _metrics_of_all_replicas(model: Any) -> dict[str, Tensor]:
    """Returns the metrics of the whole batch; Keras would average those of the replicas."""
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


def _sum_over_replicas(values: Any) -> Any:
    """Returns a nest of tensors, each summed over the replicas."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
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


def _maximum_over_replicas(value: Tensor) -> Tensor:
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return value
    values = tf.distribute.get_replica_context().all_gather(value[None], axis=0)
    return tf.reduce_max(values, axis=0)


if ON_TENSORFLOW:

    @keras.saving.register_keras_serializable(package="keras_transformer")
    class FusedAdam(keras.optimizers.Adam):
        """`keras.optimizers.Adam` (Kingma and Ba 2015) with one operation per weight.

        Keras composes each weight's update from a dozen operations, a thousand per step in a small
        model, which take 5 to 8% of the time of `tiny`. TensorFlow has one kernel for the update.
        The variables are the same.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.amsgrad:
                raise ValueError("FusedAdam has no amsgrad; use keras.optimizers.Adam")

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            """Updates a variable and its moments."""
            index = self._get_variable_index(variable)
            step = keras.ops.cast(self.iterations + 1, "float32")
            tf.raw_ops.ResourceApplyAdam(
                var=_handle(variable),
                m=_handle(self._momentums[index]),
                v=_handle(self._velocities[index]),
                beta1_power=keras.ops.power(self.beta_1, step),
                beta2_power=keras.ops.power(self.beta_2, step),
                lr=keras.ops.cast(learning_rate, "float32"),
                beta1=self.beta_1,
                beta2=self.beta_2,
                epsilon=self.epsilon,
                grad=tf.convert_to_tensor(gradient),
            )

    def _handle(variable: Any) -> tf.Tensor:
        return (variable.value if isinstance(variable, keras.Variable) else variable).handle
