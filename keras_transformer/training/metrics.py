"""What training shows beside its loss, over the real target symbols.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.training.losses import label_logits, log_normalizer

Tensor = Any


def _real(labels: Tensor) -> Tensor:
    return ops.cast(ops.not_equal(labels, PAD_ID), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(keras.metrics.Mean):
    """The share of real target symbols to which the model gave the highest logit."""

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        labels = ops.cast(y_true, "int32")
        best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        super().update_state(ops.cast(ops.equal(best, labels), "float32"), _real(labels))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(keras.metrics.Mean):
    """exp of the mean negative log-probability of the real target symbols, without smoothing."""

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        losses = log_normalizer(logits) - label_logits(labels, logits)
        super().update_state(losses, _real(labels))

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TargetTokens(keras.metrics.Sum):
    """The number of real target symbols seen."""

    def __init__(self, name: str = "target_tokens", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        super().update_state(_real(ops.convert_to_tensor(y_true)))
