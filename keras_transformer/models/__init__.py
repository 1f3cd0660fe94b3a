"""Models that learn to turn one sequence into another, each with `call`, `encode`, `step`."""

from keras_transformer.models.transformer import Transformer

__all__ = ["Transformer"]
