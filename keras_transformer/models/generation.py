"""Ids to ids: `Seq2SeqModel.generate`, with graphs that later calls use again.

Shapes: B sentences, S source length, N hypotheses of a sentence.
"""

import types
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError, check_choice
from keras_transformer.models.checks import check_shape, checked_ids
from keras_transformer.search import Constraint, Hypotheses, beam_search, sample, sentence_seeds

_MAX_EXTRA_LENGTH = 50  # Vaswani et al. 2017, 6.1
# Options that may change from call to call of a graph, with their types.
_NUMBERS = {
    "length_penalty": tf.float32, "coverage_penalty": tf.float32, "max_length": tf.int32,
    "temperature": tf.float32, "top_k": tf.int32, "top_p": tf.float32, "seed": tf.int64,
}  # fmt: skip


def generate(
    model: Any, source: Any, *, constraints: Sequence[Constraint] = (), **options: Any
) -> Hypotheses:
    """Returns the hypotheses for source ids [B, S]; arguments as in `Seq2SeqModel.generate`."""
    ids = _checked(source, model.config.vocabulary_size)
    options = {name: value for name, value in options.items() if value is not None}
    numbers = {
        name: tf.cast(options.pop(name), dtype)
        for name, dtype in _NUMBERS.items()
        if name in options
    }

    def search(source: Tensor, numbers: dict[str, Tensor]) -> Hypotheses:
        return _search(model, source, constraints=constraints, **options, **numbers)

    # A graph reads the variables of its first call; `quantize` and `enable_lora` make others.
    variables = tuple(map(id, model.variables))
    if model.generation is None or model.generation.variables != variables:
        model.generation = types.SimpleNamespace(variables=variables, graphs={})
    key = (*sorted(options.items()), *numbers)
    if constraints or key not in model.generation.graphs:
        types_of_numbers = {
            name: tf.TensorSpec([], tensor.dtype) for name, tensor in numbers.items()
        }
        graph = tf.function(
            search,
            input_signature=[tf.TensorSpec([None, None], tf.int32), types_of_numbers],
            autograph=False,
        )
        if constraints:  # which may be of this batch
            return graph(ids, numbers)
        model.generation.graphs[key] = graph
    return model.generation.graphs[key](ids, numbers)


def _checked(source: Any, vocabulary_size: int) -> Tensor:
    """Returns source ids [B, S], int32; warns if no row has EOS."""
    check_shape("source", source)
    ids = tf.convert_to_tensor(source)
    if ids.dtype == tf.string:
        raise InputError(
            "generate takes ids [B, S], got text; Translator(model, vocabulary).translate takes "
            "text"
        )
    if ids.shape.rank != 2 or not (ids.dtype.is_integer or tf.size(ids) == 0):
        raise InputError(
            f"source must be integer ids [B, S], got {ids.dtype.name} of shape {ids.shape}"
        )
    ids = checked_ids("source", tf.cast(ids, tf.int32), vocabulary_size)
    if tf.executing_eagerly() and len(ids) and not tf.reduce_any(ids == EOS_ID):
        warnings.warn(
            f"no row of source has EOS ({EOS_ID}), which ends each row in `fit`; append it",
            stacklevel=4,
        )
    return ids


def _search(
    model: Any,
    source: Tensor,
    *,
    method: str,
    max_length: Tensor | None = None,
    **options: Any,
) -> Hypotheses:
    check_choice("method", method, ("beam", "sampling"))
    is_beam = method == "beam"
    state = model.encode(
        source,
        num_hypotheses=options.get("beam_size", 4) if is_beam else options["num_translations"],
        coverage="coverage_penalty" in options or options.get("details", False),
    )
    lengths = tf.math.count_nonzero(source != PAD_ID, axis=1, dtype=tf.int32) - 1  # without EOS
    longest = lengths + _MAX_EXTRA_LENGTH
    if not is_beam:
        options["seed"] = sentence_seeds(options.get("seed", tf.constant(0)), source)
    return (beam_search if is_beam else sample)(
        model.step,
        state,
        max_lengths=longest if max_length is None else tf.fill(tf.shape(lengths), max_length),
        **options,
    )
