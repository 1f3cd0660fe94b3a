"""Loss, metrics and learning rate schedules, in `keras.ops`.

Cross-entropy with label smoothing (Vaswani et al. 2017, 5.4), metrics over the real target tokens,
and the schedule of the paper (5.3) beside other decays.

Shapes: B batch, T target length, V vocabulary.
"""

import math
from typing import Any

import keras
from keras import ops
from keras.src.losses.loss import scale_loss_for_distribution

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice

# Name prefix of metrics that a model updates in `call` during training only: evaluation does not
# show them.
TRAINING_PREFIX = "train_"


def _flat_labels_and_logits(labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns labels [B, T] as int32 [N] and logits [B, T, V] as float32 [N, V], N = B * T.

    Loss and metrics call this and the functions below alike, so that TensorFlow recognizes their
    common passes over the logits and makes each once.
    """
    logits = ops.cast(logits, "float32")  # first, as `keras.losses.Loss` does
    flat = ops.reshape(logits, (-1, ops.shape(logits)[-1]))
    return ops.cast(ops.reshape(labels, (-1,)), "int32"), flat


def log_normalizer(logits: Tensor) -> Tensor:
    """Returns log Z = log(sum(exp(logits))) [N] of float32 logits [N, V].

    It is max(z) - log(max(softmax(z))): the softmax is one fused pass, which the gradient of the
    loss needs anyway, and its largest entry is at least 1/V, so that its logarithm is exact.
    """
    return ops.max(logits, axis=-1) - ops.log(ops.max(ops.softmax(logits), axis=-1))


def _label_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """Returns the logits [N] of int32 labels [N], from logits [N, V]; any for unknown labels."""
    labels = ops.clip(labels, 0, ops.shape(logits)[-1] - 1)
    return ops.squeeze(ops.take_along_axis(logits, labels[:, None], axis=-1), -1)


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """Returns the loss [N] of each token, for int32 labels [N] and float32 logits [N, V].

    See `SmoothedCrossEntropy`. The gradient is written out, softmax(z) less the label's
    distribution: the automatic one scatters into a zero matrix [N, V], which on a CPU took a third
    of a whole training step.
    """

    @ops.custom_gradient
    def with_gradient(logits: Tensor) -> tuple[Tensor, Any]:
        # All from the argument: under JAX a custom gradient cannot close over values that depend
        # on the differentiated ones (UnexpectedTracerError).
        size = ops.shape(logits)[-1]
        value = log_normalizer(logits) - (1.0 - smoothing) * _label_logits(labels, logits)
        if smoothing:  # 0 times the mean of logits with -inf, of tokens ruled out, is NaN
            value = value - smoothing * ops.mean(logits, axis=-1)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            slope = (args[0] if upstream is None else upstream)[:, None]  # [N, 1]
            is_label = ops.equal(ops.arange(size, dtype="int32"), labels[:, None])  # [N, V]
            of_others = smoothing / size
            expected = ops.where(is_label, 1.0 - smoothing + of_others, of_others)
            return (ops.softmax(logits) - expected) * slope

        return value, gradient

    losses = with_gradient(logits)
    # A label outside of the vocabulary makes the loss NaN.
    is_known = ops.logical_and(labels >= 0, labels < ops.shape(logits)[-1])
    return losses * ops.sqrt(ops.where(is_known, 1.0, -1.0))  # NaN, and no constant NaN


def _real(labels: Tensor) -> Tensor:
    """Returns 1 for the real tokens among labels, 0 for padding, in float32."""
    return ops.cast(ops.not_equal(labels, PAD_ID), "float32")


def _weights(labels: Tensor, sample_weight: Any) -> Tensor:
    """Returns the weight of each token of labels [B, T], 0 for padding, as float32 [B, T].

    `sample_weight` is None, [B], [B, T] or [B, T, 1].
    """
    if sample_weight is None:
        return _real(labels)
    weights = ops.cast(sample_weight, "float32")
    return _real(labels) * ops.reshape(weights, (*ops.shape(weights), 1)[:2])


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy with label smoothing, averaged over the real target tokens.

    The label's distribution is (1 - smoothing) * one_hot + smoothing / V (Szegedy et al. 2016,
    section 7; Vaswani et al. 2017, 5.4). With log-probabilities log p = z - log Z this is
        loss = log Z - (1 - smoothing) * z[label] - smoothing * mean(z).
    Padding labels count nothing: the sum is divided by the number of the other labels. Sample
    weights, [B] or [B, T], multiply the losses and do not change that number.

    Args:
        smoothing: the share of probability spread over the whole vocabulary; 0.1 in the paper.

    Example:
        >>> loss = SmoothedCrossEntropy(smoothing=0.0)
        >>> float(loss(np.array([[1, 0]]), np.zeros((1, 2, 4))))  # log 4; padding does not count
        1.3862943649291992
    """

    def __init__(self, smoothing: float = 0.1, name: str = "smoothed_cross_entropy") -> None:
        if not 0 <= smoothing < 1:
            raise InputError(f"smoothing must be at least 0 and below 1, got {smoothing}")
        super().__init__(name=name, dtype="float32")  # represents the labels exactly
        self.smoothing = smoothing

    def sum_and_tokens(
        self, labels: Tensor, logits: Tensor, sample_weight: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the sum of the weighted losses of the real tokens, and their number, float32."""
        labels = ops.reshape(labels, ops.shape(logits)[:-1])  # of [B, T, 1] too, as Keras does
        losses = self.call(labels, logits) * _weights(labels, sample_weight)  # [B, T]
        return ops.sum(losses), ops.sum(_real(labels))

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        total, tokens = self.sum_and_tokens(y_true, y_pred, sample_weight)
        # As Keras's losses do: gradients are summed over replicas.
        return scale_loss_for_distribution(total / ops.maximum(tokens, 1.0))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss of each token, [B, T], for labels [B, T] and logits [B, T, V]."""
        labels, logits = _flat_labels_and_logits(y_true, y_pred)
        losses = smoothed_cross_entropy(labels, logits, self.smoothing)
        return ops.reshape(losses, ops.shape(y_true))

    def get_config(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing, "name": self.name}


class _MeanOfTokens(keras.metrics.Mean):
    """The base of metrics that are means over the real target tokens."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        weights = _weights(ops.reshape(y_true, ops.shape(y_pred)[:-1]), sample_weight)
        values = self.values(*_flat_labels_and_logits(y_true, y_pred))
        super().update_state(values, ops.reshape(weights, (-1,)))

    def values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the value [N] of each of int32 labels [N], for float32 logits [N, V]."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_MeanOfTokens):
    """The share of real target tokens whose logit is the highest; a tie counts as right."""

    def __init__(self, name: str = "accuracy", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"  # for `EarlyStopping` and `ModelCheckpoint`

    def values(self, labels: Tensor, logits: Tensor) -> Tensor:
        is_best = ops.equal(_label_logits(labels, logits), ops.max(logits, axis=-1))
        return ops.cast(is_best, "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_MeanOfTokens):
    """exp of the mean negative log-probability of the real target tokens, without smoothing."""

    def __init__(self, name: str = "perplexity", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"

    def values(self, labels: Tensor, logits: Tensor) -> Tensor:
        return log_normalizer(logits) - _label_logits(labels, logits)

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TargetTokens(keras.metrics.Sum):
    """The number of real target tokens seen."""

    def __init__(self, name: str = "target_tokens", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        super().update_state(_real(ops.convert_to_tensor(y_true)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Padding(keras.metrics.Mean):
    """The share of padding among the target tokens of the batches."""

    def __init__(self, name: str = "padding", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        super().update_state(1.0 - _real(ops.reshape(ops.convert_to_tensor(y_true), (-1,))))


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    Vaswani et al. 2017, 5.3, eq. 3:
        lrate = scale * model_dim^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)
    The first update is step 1 (Keras counts from 0). At its peak, step = warmup_steps, the
    rate is scale * (model_dim * warmup_steps)^-0.5.

    Args:
        model_dim: width of the model.
        warmup_steps: updates until the peak; 4,000 in the paper.
        scale: a factor; 1 in the paper.

    Raises:
        InputError: `model_dim` or `warmup_steps` is below 1.
    """

    def __init__(self, model_dim: int, warmup_steps: int = 4000, scale: float = 1.0) -> None:
        super().__init__()
        if model_dim < 1 or warmup_steps < 1:
            raise InputError(
                f"model_dim and warmup_steps must be at least 1, got {model_dim} and {warmup_steps}"
            )
        self.model_dim = model_dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)
        return self.scale * self.model_dim**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        return {"model_dim": self.model_dim, "warmup_steps": self.warmup_steps, "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then a constant rate or a decay to 0 just after the last update.

    With p = (step - warmup_steps) / (train_steps + 1 - warmup_steps), the rate after warm-up is the
    peak times (1 + cos(pi p)) / 2 ("cosine", Loshchilov and Hutter 2017, eq. 5, without restarts),
    or 1 ("constant"). The first update is step 1.

    Args:
        peak: the highest rate.
        warmup_steps: updates until the peak; 1 means no warm-up.
        train_steps: updates in total.
        decay: "constant" or "cosine".

    Example:
        >>> schedule = WarmUp(1e-3, warmup_steps=100, train_steps=1000, decay="cosine")
        >>> model.compile(keras.optimizers.Adam(schedule), SmoothedCrossEntropy())
    """

    def __init__(
        self, peak: float, warmup_steps: int, train_steps: int, decay: str = "constant"
    ) -> None:
        super().__init__()
        check_choice("decay", decay, ("constant", "cosine"))
        if warmup_steps < 1 or train_steps < 1:
            raise InputError(
                f"warmup_steps and train_steps must be at least 1, got {warmup_steps} and "
                f"{train_steps}"
            )
        if decay != "constant" and warmup_steps >= train_steps:
            raise InputError(
                f"decay {decay} needs steps after the warm-up, got warmup_steps {warmup_steps} and "
                f"train_steps {train_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.train_steps = train_steps
        self.decay = decay

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        decay_steps = max(self.train_steps + 1 - self.warmup_steps, 1)
        progress = ops.clip((step - self.warmup_steps) / decay_steps, 0.0, 1.0)
        factor = ops.ones_like(step)
        if self.decay == "cosine":
            factor = (1.0 + ops.cos(math.pi * progress)) / 2
        return self.peak * ops.minimum(step / self.warmup_steps, factor)

    def get_config(self) -> dict[str, Any]:
        names = ("peak", "warmup_steps", "train_steps", "decay")
        return {name: getattr(self, name) for name in names}
