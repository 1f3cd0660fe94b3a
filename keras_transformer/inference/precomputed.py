"""Models whose weights no longer change.

What a model makes of its weights alone, such as the matrix of its last projection laid out for
decoding, is then made once, and not for every request.

Shapes: B sentences, S source length.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingState, Tensor, TranslationModel
from keras_transformer.inference.precision import Int8Model
from keras_transformer.models import Ensemble


def precompute(model: TranslationModel) -> Any:
    """Returns a model that translates as this one does, as long as its weights do not change.

    They stay the model's own; after a change of them precompute it anew. An `Int8Model` stays as it
    is: what it would store is what it is there to save.
    """
    if isinstance(model, Ensemble):
        return Ensemble([precompute(each) for each in model.models])
    return model if isinstance(model, PrecomputedModel | Int8Model) else PrecomputedModel(model)


class PrecomputedModel:
    """A model with what its states share, `DecodingState.shared`, among its variables.

    Args:
        model: see `TranslationModel`; its weights must not change from now on.
    """

    def __init__(self, model: TranslationModel) -> None:
        self._model = model
        state = model.encode(tf.constant([[EOS_ID]]))
        self._shared = tf.nest.map_structure(
            lambda value: keras.Variable(value, trainable=False, dtype=value.dtype, name="shared"),
            state.shared,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def variables(self) -> list[Any]:
        """The model's variables, and what its states share."""
        return [*self._model.variables, *tf.nest.flatten(self._shared)]

    def encode(self, source: Tensor, **options: Any) -> DecodingState:
        """Reads the source ids [B, S], see `Transformer.encode`."""
        shared = tf.nest.map_structure(
            lambda variable: tf.convert_to_tensor(variable.value), self._shared
        )
        return self._model.encode(source, **options)._replace(shared=shared)
