"""Models whose weights are kept in fewer bits, for smaller and faster exports.

bfloat16 stores weights in two bytes and computes in them: faster on processors that have
instructions for it. int8 stores matrices in one byte an entry and dequantizes them into float32
once for each batch: it saves disk and download, not time, and each batch that is under way takes
the memory of the weights in float32.

Shapes: B sentences, S source length, W hypotheses a sentence.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding import DecodingState, Tensor
from keras_transformer.errors import InputError
from keras_transformer.models import Ensemble, Seq2SeqModel


def in_precision(model: Any, precision: str) -> Any:
    """Returns a model that translates as this one does, its weights in another precision.

    Args:
        model: in float32; one model, or an ensemble.
        precision: "float32", "bfloat16" or "int8".

    Raises:
        InputError: there is no such precision.
    """
    if precision == "float32":
        return model
    if isinstance(model, Ensemble):
        return Ensemble([in_precision(each, precision) for each in model.models])
    if precision == "bfloat16":
        rounded = type(model)(model.config, dtype="bfloat16")
        rounded.set_weights(model.get_weights())
        return rounded
    if precision == "int8":
        return Int8Model(model)
    raise InputError(f"precision must be float32, bfloat16 or int8, got {precision!r}")


class Int8Model:
    """A model whose matrices are stored in one byte an entry.

    Each row of the model's lookup tables, and each column of another matrix, is divided by the
    largest of its absolute values and multiplied by 127. Vectors stay as they are: they are few.
    It has `attention` and `token_values` where the model has.

    Args:
        model: in float32.
    """

    def __init__(self, model: Seq2SeqModel) -> None:
        self.config = model.config
        self.dtype_policy = model.dtype_policy
        self._model = model
        for name in ("attention", "token_values"):
            if hasattr(model, name):
                setattr(self, name, functools.partial(self._ask, name))
        self._lookup_tables = {id(table) for table in model.embedding_tables()}
        # For each variable of the model what is stored: itself, or integers and their scales.
        self._stored = [self._store(variable) for variable in model.variables]

    @property
    def variables(self) -> list[Any]:
        """What is stored."""
        return [each for stored in self._stored for each in stored]

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """See `Seq2SeqModel.call`."""
        with self._using(self._restore()):
            return self._model.call(inputs, training=training)

    def encode(self, source: Tensor, **options: Any) -> DecodingState:
        """Encodes the source ids [B, S] and keeps the dequantized weights for `step`."""
        weights = self._restore()
        with self._using(weights):
            state = self._model.encode(source, **options)
        return state._replace(shared=(weights, state.shared))

    def step(self, ids: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Reads one more token of each hypothesis [B, W], see `TranslationModel.step`."""
        weights, shared = state.shared
        with self._using(weights):
            logits, after = self._model.step(ids, state._replace(shared=shared))
        return logits, after._replace(shared=state.shared)

    def _ask(self, name: str, inputs: dict[str, Tensor]) -> Any:
        with self._using(self._restore()):
            return getattr(self._model, name)(inputs)

    def _store(self, variable: keras.Variable) -> list[keras.Variable]:
        values = keras.ops.convert_to_numpy(variable.value)
        if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
            return [variable]
        axis = 1 if id(variable) in self._lookup_tables else 0
        scales = np.maximum(np.abs(values).max(axis=axis, keepdims=True), 1e-12) / 127
        integers = np.rint(values / scales)
        return [
            keras.Variable(integers, dtype="int8", trainable=False, name=f"{variable.name}_int8"),
            keras.Variable(scales, dtype="float32", trainable=False, name=f"{variable.name}_scale"),
        ]

    def _restore(self) -> list[Tensor]:
        """Returns the values of all variables of the model."""
        return [
            tf.convert_to_tensor(stored[0].value)
            if len(stored) == 1
            else tf.cast(stored[0].value, tf.float32) * stored[1].value
            for stored in self._stored
        ]

    @contextlib.contextmanager
    def _using(self, values: list[Tensor]) -> Iterator[None]:
        """Has the model's variables stand for these values."""
        pairs = zip(self._model.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            yield
