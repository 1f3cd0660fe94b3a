"""Ids to ids: `Seq2SeqModel.generate`, with graphs that later calls use again.

Shapes: B sentences, S source length, N hypotheses of a sentence.
"""

import types
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import EOS_ID, SearchConfig
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.models.checks import check_shape, checked_ids
from keras_transformer.search import Constraint, Hypotheses
from keras_transformer.search.model_search import number_settings, search_model

# Options that may change from call to call of a graph, by the type of their values.
_NUMBER_TYPES = {float: tf.float32, int: tf.int32}


def generate(
    model: Any, source: Any, *, constraints: Sequence[Constraint] = (), **options: Any
) -> Hypotheses:
    """Returns the hypotheses for source ids [B, S]; arguments as in `Seq2SeqModel.generate`."""
    ids = _checked(source, model)
    options = {name: value for name, value in options.items() if value is not None}
    # Without the defaults for text: an empty output is one, and samples have no length penalty.
    defaults = {"min_length": 0} | ({} if options["method"] == "beam" else {"length_penalty": 0.0})
    search = SearchConfig.from_dict(defaults | options)
    if for_text := [name for name in ("max_source_length", "replace_unknowns") if name in options]:
        raise InputError(
            f"{', '.join(for_text)} would have no effect on ids; Translator takes text"
        )
    values = {name: options[name] for name in REQUEST_OPTIONS if name in options}
    if search.max_length:  # instead of 50 more than the row has
        values.setdefault("max_extra_length", search.max_length)
    if model.max_length is not None:  # learned positions, one of them for BOS
        longest = model.max_length - 1
        # Which also rejects a longer min_length.
        search = search.replace(max_length=min(search.max_length or longest, longest))
        values["max_length"] = search.max_length
    numbers = {
        name: tf.constant(value, _NUMBER_TYPES[REQUEST_OPTIONS[name].type])
        for name, value in values.items()
    }

    def run(source: Tensor, numbers: dict[str, Tensor]) -> Hypotheses:
        settings = number_settings(search) | numbers
        return search_model(model, source, search, settings, constraints=constraints)

    # A graph reads the variables of its first call; `quantize` and `enable_lora` make others.
    variables = tuple(map(id, model.variables))
    if model.generation is None or model.generation.variables != variables:
        model.generation = types.SimpleNamespace(variables=variables, graphs={})
    fixed = sorted((name, value) for name, value in options.items() if name not in numbers)
    key = (*fixed, *numbers)
    if constraints or key not in model.generation.graphs:
        scalars = {name: tf.TensorSpec([], tensor.dtype) for name, tensor in numbers.items()}
        signature = [tf.TensorSpec([None, None], tf.int32), scalars]
        graph = tf.function(run, input_signature=signature, autograph=False)
        if constraints:  # which may be of this batch
            return graph(ids, numbers)
        model.generation.graphs[key] = graph
    return model.generation.graphs[key](ids, numbers)


def _checked(source: Any, model: Any) -> Tensor:
    """Returns source ids [B, S], int32; warns if no row has EOS."""
    check_shape("source", source)
    ids = tf.convert_to_tensor(source)
    if ids.shape.rank != 2 or not (ids.dtype.is_integer or tf.size(ids) == 0):
        raise InputError(
            f"source must be integer ids [B, S], got {ids.dtype.name} of shape {ids.shape}; "
            "Translator takes text"
        )
    size = model.config.vocabulary_size
    ids = checked_ids("source", tf.cast(ids, tf.int32), size, model.max_length)
    if tf.executing_eagerly() and len(ids) and not tf.reduce_any(ids == EOS_ID):
        warnings.warn(
            f"no row of source has EOS ({EOS_ID}), which ends each row in `fit`; append it",
            stacklevel=4,
        )
    return ids
