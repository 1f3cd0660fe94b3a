"""Models: ordinary Keras models with `encode` and `step` for decoding."""

from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.transformer import Transformer

__all__ = ["Ensemble", "Transformer"]
