"""Models prepared for translating: weights in bfloat16, and a stored output projection.

Shapes: B sentences, S source length.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.errors import check_choice
from keras_transformer.models import Ensemble

PRECISIONS = ("float32", "bfloat16")


def in_precision(model: Any, precision: str) -> Any:
    """Returns a model that stores its weights, and computes, in another precision.

    bfloat16 takes half the space, and is faster on processors with instructions for it.

    Args:
        model: in float32; one model, or an ensemble.
        precision: one of `PRECISIONS`.

    Raises:
        InputError: there is no such precision.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return model
    if isinstance(model, Ensemble):
        return Ensemble([in_precision(each, precision) for each in model.models])
    rounded = type(model)(model.config, dtype=precision)
    rounded.set_weights(model.get_weights())
    return rounded


def cache_projection(model: TranslationModel) -> Any:
    """Returns a model that shares this one's weights, see `CachedOutputProjection`."""
    if isinstance(model, Ensemble):
        return Ensemble([cache_projection(each) for each in model.models])
    return model if isinstance(model, CachedOutputProjection) else CachedOutputProjection(model)


def refresh(model: TranslationModel) -> None:
    """Updates the projections that `cache_projection` stored, if weights have changed."""
    for each in model.models if isinstance(model, Ensemble) else [model]:
        if isinstance(each, CachedOutputProjection):
            each.refresh()


class CachedOutputProjection:
    """A model that stores the `projection` of its decoding states as variables.

    The matrix of the logits, laid out for decoding, depends on weights alone: stored, it need not
    be computed for every request. After a change of weights call `refresh`; a `Translator` does so
    before each call from Python.

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
        """Computes the projection again if a weight that it depends on has changed."""
        values = self._read_weights()
        if all(map(_are_equal, values, self._values)):
            return
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), self._projection, self._compute()
        )
        self._values = values

    def _compute(self) -> Any:
        return self._model.encode(tf.constant([[EOS_ID]])).projection

    def _read_weights(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(weight.read_value()) for weight in self._weights]


def _are_equal(value: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> bool:
    """Compares two readings of a variable.

    A reading on a CPU is the variable's own memory, which TensorFlow never writes to while a
    reading is kept: a change makes a copy, so the same address means the same values.
    """
    return value.ctypes.data == kept.ctypes.data or np.array_equal(value, kept)
