"""Models that keep what depends on their weights alone, such as the logits' matrix laid out for
decoding, in place of computing it for every request.

Shapes: B sentences, S source length.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.inference.quantization import Int8Model
from keras_transformer.models import Ensemble


def cache_projection(model: TranslationModel) -> Any:
    """Returns a model that translates as this one does, and shares its weights.

    An `Int8Model` is returned as it is: storing the projection would undo the saving in space.
    """
    if isinstance(model, Ensemble):
        return Ensemble([cache_projection(each) for each in model.models])
    return (
        model
        if isinstance(model, CachedOutputProjection | Int8Model)
        else CachedOutputProjection(model)
    )


def refresh(model: TranslationModel) -> None:
    """Computes again what precomputed models keep, where their weights have changed."""
    for each in model.models if isinstance(model, Ensemble) else [model]:
        if isinstance(each, CachedOutputProjection):
            each.refresh()


class CachedOutputProjection:
    """A model that stores the `projection` of its decoding states as variables.

    After a change of weights call `refresh`; a `Translator` does before each call from Python.

    Args:
        model: see `TranslationModel`. The projection must be differentiable by the weights that it
            depends on.
    """

    def __init__(self, model: TranslationModel) -> None:
        self._model = model
        weights = [
            each.value for each in model.variables if keras.backend.is_float_dtype(each.dtype)
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for weight in weights:
                tape.watch(weight)
            projection = self._compute()
        gradients = tape.gradient(tf.nest.flatten(projection), weights)
        self._weights = [
            weight for weight, each in zip(weights, gradients, strict=True) if each is not None
        ]
        self._values = self._read_weights()
        self._projection = tf.nest.map_structure(
            lambda value: keras.Variable(
                value, trainable=False, dtype=value.dtype, name="projection"
            ),
            projection,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def variables(self) -> list[Any]:
        """The model's variables, and the projection."""
        return [*self._model.variables, *tf.nest.flatten(self._projection)]

    def encode(self, source: Tensor, **options: Any) -> DecodingState:
        """Reads the source ids [B, S], see `TranslationModel.encode`."""
        projection = tf.nest.map_structure(
            lambda variable: tf.convert_to_tensor(variable.value), self._projection
        )
        return self._model.encode(source, **options)._replace(projection=projection)

    def refresh(self) -> None:
        """Computes again what states share if a weight that it depends on has changed."""
        values = self._read_weights()
        if all(map(_is_same, values, self._values)):
            return
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), self._projection, self._compute()
        )
        self._values = values

    def _compute(self) -> Any:
        return self._model.encode(tf.constant([[EOS_ID]])).projection

    def _read_weights(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(weight.read_value()) for weight in self._weights]


def _is_same(value: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> bool:
    """Whether two readings of a variable are equal.

    Readings on a CPU are the variable's own memory, which TensorFlow does not write to while a
    reading of it is kept: any change makes a copy, so the same address means the same values.
    """
    return value.ctypes.data == kept.ctypes.data or np.array_equal(value, kept)
