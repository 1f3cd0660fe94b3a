"""Loss, metrics and learning rate schedules, in `keras.ops`."""

from keras_transformer.objectives.losses import SmoothedCrossEntropy
from keras_transformer.objectives.metrics import (
    OF_TRAINING_ONLY,
    Padding,
    Perplexity,
    TargetTokens,
    TokenAccuracy,
)
from keras_transformer.objectives.schedules import InverseSquareRoot, WarmUp

__all__ = [
    "OF_TRAINING_ONLY",
    "InverseSquareRoot",
    "Padding",
    "Perplexity",
    "SmoothedCrossEntropy",
    "TargetTokens",
    "TokenAccuracy",
    "WarmUp",
]
