"""Metrics over the real target tokens.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.objectives.losses import (
    best_logits,
    broadcast_sample_weights,
    flat_labels_and_logits,
    label_logits,
    log_normalizer,
)

# Name prefix of metrics that a model updates in `call` during training only: evaluation does not
# show them.
OF_TRAINING_ONLY = "train_"


def _real(labels: Tensor) -> Tensor:
    return ops.cast(ops.not_equal(labels, PAD_ID), "float32")


def _weights(labels: Tensor, sample_weight: Any) -> Tensor:
    """Returns the weight of each token of labels [B, T], 0 for padding: [B * T].

    `sample_weight` is None, [B] or [B, T].
    """
    weights = _real(ops.convert_to_tensor(labels))
    if sample_weight is not None:
        weights *= broadcast_sample_weights(sample_weight, weights)
    return ops.reshape(weights, (-1,))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(keras.metrics.Mean):
    """The share of real target tokens whose logit is the highest; a tie counts as right."""

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        labels, logits = flat_labels_and_logits(y_true, y_pred)
        is_best = ops.equal(label_logits(labels, logits), best_logits(logits))
        super().update_state(ops.cast(is_best, "float32"), _weights(y_true, sample_weight))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(keras.metrics.Mean):
    """exp of the mean negative log-probability of the real target tokens, without smoothing."""

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        labels, logits = flat_labels_and_logits(y_true, y_pred)
        losses = log_normalizer(logits) - label_logits(labels, logits)
        super().update_state(losses, _weights(y_true, sample_weight))

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TargetTokens(keras.metrics.Sum):
    """The number of real target tokens seen."""

    def __init__(self, name: str = "target_tokens", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        super().update_state(_real(ops.convert_to_tensor(y_true)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Padding(keras.metrics.Mean):
    """The share of padding among the target tokens of the batches."""

    def __init__(self, name: str = "padding", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        super().update_state(1.0 - _real(ops.reshape(ops.convert_to_tensor(y_true), (-1,))))
