"""The loss that the paper trains with (5.4).

Shapes: B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID

Tensor = Any


def log_normalizer(logits: Tensor) -> Tensor:
    """Returns log Z = log(sum(exp(logits))) [...] of float32 logits [..., V].

    Computed as max(z) - log(max(softmax(z))): the softmax is one fused pass, which the gradient
    needs anyway, and its largest entry is at least 1/V, so that its logarithm is exact.
    """
    return ops.max(logits, axis=-1) - ops.log(ops.max(ops.softmax(logits), axis=-1))


def label_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """Returns the logits [...] of the labels [...], from logits [..., V]."""
    return ops.squeeze(ops.take_along_axis(logits, labels[..., None], axis=-1), -1)


def smoothed_cross_entropy(labels: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """Returns the loss [N] of each symbol, for int32 labels [N] and float32 logits [N, V].

    See `SmoothedCrossEntropy`. The gradient is written out, softmax(z) - smoothing / V, less
    1 - smoothing at the label: the automatic one scatters into a zero matrix [N, V], which on a
    CPU took a third of a whole training step.
    """

    @ops.custom_gradient
    def loss(logits: Tensor) -> tuple[Tensor, Any]:
        count, size = ops.shape(logits)
        rows = ops.stack([ops.arange(count, dtype="int32"), labels], axis=-1)  # [N, 2]

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            slope = (args[0] if upstream is None else upstream)[:, None]  # [N, 1]
            others = (ops.softmax(logits) - smoothing / size) * slope  # [N, V]
            own = ops.take_along_axis(others, labels[:, None], axis=-1) - (1 - smoothing) * slope
            return ops.scatter_update(others, rows, own[:, 0])

        labelled = (1.0 - smoothing) * label_logits(labels, logits)
        value = log_normalizer(logits) - labelled - smoothing * ops.mean(logits, axis=-1)
        return value, gradient

    return loss(logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy with label smoothing, averaged over the real target symbols.

    The label's distribution is (1 - smoothing) * one_hot + smoothing / V (Szegedy et al. 2016,
    section 7; Vaswani et al. 2017, 5.4). With log-probabilities log p = z - log Z this is
        loss = log Z - (1 - smoothing) * z[label] - smoothing * mean(z).
    Symbols whose label is padding count nothing, and the sum is divided by the number of the
    others.

    Args:
        smoothing: the share of probability spread over the whole vocabulary; 0.1 in the paper.

    Example:
        >>> loss = SmoothedCrossEntropy(smoothing=0.0)
        >>> float(loss(np.array([[1, 0]]), np.zeros((1, 2, 4))))  # log 4; the padding is left out
        1.3862943649291992
    """

    def __init__(
        self, smoothing: float = 0.1, name: str = "smoothed_cross_entropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.smoothing = smoothing

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        labels = ops.convert_to_tensor(y_true)
        real = ops.cast(ops.not_equal(labels, PAD_ID), "float32")
        losses = self.call(labels, ops.convert_to_tensor(y_pred)) * real
        total = ops.sum(losses if sample_weight is None else losses * sample_weight)
        return total / ops.maximum(ops.sum(real), 1.0)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss of each symbol, [B, T], for labels [B, T] and logits [B, T, V]."""
        size = ops.shape(y_pred)[-1]
        logits = ops.cast(ops.reshape(y_pred, (-1, size)), "float32")
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        losses = smoothed_cross_entropy(labels, logits, self.smoothing)
        return ops.reshape(losses, ops.shape(y_true))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"smoothing": self.smoothing}
