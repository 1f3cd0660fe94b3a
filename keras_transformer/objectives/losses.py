"""Cross-entropy with label smoothing (Vaswani et al. 2017, 5.4).

Shapes: B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError


def flat_labels_and_logits(labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns labels [B, T] as int32 [N] and logits [B, T, V] as float32 [N, V], N = B * T.

    Loss and metrics call this and the functions below alike, so that TensorFlow recognizes their
    common passes over the logits and makes each once.
    """
    flat = ops.reshape(logits, (-1, ops.shape(logits)[-1]))
    return ops.cast(ops.reshape(labels, (-1,)), "int32"), ops.cast(flat, "float32")


def log_normalizer(logits: Tensor) -> Tensor:
    """Returns log Z = log(sum(exp(logits))) [N] of float32 logits [N, V].

    It is max(z) - log(max(softmax(z))): the softmax is one fused pass, which the gradient needs
    anyway, and its largest entry is at least 1/V, so that its logarithm is exact.
    """
    return best_logits(logits) - ops.log(ops.max(ops.softmax(logits), axis=-1))


def best_logits(logits: Tensor) -> Tensor:
    """Returns the highest logit [N] of each row of [N, V]."""
    return ops.max(logits, axis=-1)


def label_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """Returns the logits [N] of int32 labels [N], from logits [N, V]."""
    return ops.squeeze(ops.take_along_axis(logits, labels[:, None], axis=-1), -1)


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """Returns the loss [N] of each token, for int32 labels [N] and float32 logits [N, V].

    See `SmoothedCrossEntropy`. The gradient is written out, softmax(z) - smoothing / V, less
    1 - smoothing at the label: the automatic one scatters into a zero matrix [N, V], which on a
    CPU took a third of a whole training step.
    """

    @ops.custom_gradient
    def with_gradient(logits: Tensor) -> tuple[Tensor, Any]:
        # All from the argument: under JAX a custom gradient cannot close over values that depend
        # on what is differentiated (UnexpectedTracerError).
        count, size = ops.shape(logits)
        labelled = (1.0 - smoothing) * label_logits(labels, logits)
        value = log_normalizer(logits) - labelled - smoothing * ops.mean(logits, axis=-1)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            slope = (args[0] if upstream is None else upstream)[:, None]  # [N, 1]
            others = (ops.softmax(logits) - smoothing / size) * slope  # [N, V]
            own = ops.take_along_axis(others, labels[:, None], axis=-1) - (1 - smoothing) * slope
            rows = ops.stack([ops.arange(count, dtype="int32"), labels], axis=-1)  # [N, 2]
            return ops.scatter_update(others, rows, own[:, 0])

        return value, gradient

    return with_gradient(logits)


def broadcast_sample_weights(given: Any, tokens: Tensor) -> Tensor:
    """Returns sample weights, [B] or [B, T], as float32 that multiplies tokens [B, T]."""
    given = ops.cast(given, "float32")
    return given if len(given.shape) == len(tokens.shape) else given[..., None]


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

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        real = ops.cast(ops.not_equal(y_true, PAD_ID), "float32")  # [B, T]
        # Keras divides by the number of all tokens: weights whose sum is that number make the
        # result a mean over the real ones.
        weights = real * (ops.cast(ops.size(real), "float32") / ops.maximum(ops.sum(real), 1.0))
        if sample_weight is not None:
            weights *= broadcast_sample_weights(sample_weight, real)
        return super().__call__(y_true, y_pred, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss of each token, [B, T], for labels [B, T] and logits [B, T, V]."""
        losses = smoothed_cross_entropy(*flat_labels_and_logits(y_true, y_pred), self.smoothing)
        return ops.reshape(losses, ops.shape(y_true))

    def get_config(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing, "name": self.name}
