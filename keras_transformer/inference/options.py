"""Search options as tensors: those of a configuration, and those that single sentences set.

What the configuration leaves off is not in the graph at all, unless sentences may set it.

Shapes: B sentences.
"""

from collections.abc import Mapping

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID, SearchConfig
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.decoding import Tensor
from keras_transformer.search.model_search import max_lengths
from keras_transformer.text import Tokenizer

_MAX_FLOAT = 1e6  # of float options: far beyond useful values, and nothing made of it is NaN
# Tokens by which the minimum length of a request may exceed its source, where translations may be
# much longer: by one number, a request of a word would take the time of one of 500 words.
_MAX_EXTRA_MIN_LENGTH = 50
_COLUMN_TYPES = {float: tf.float32, int: tf.int32, str: tf.string}


def column_types(search: SearchConfig) -> dict[str, tf.DType]:
    """Returns the options that sentences may set, with the types of their columns."""
    unused = search.unused_by(search.method)
    return {
        name: _COLUMN_TYPES[option.type]
        for name, option in REQUEST_OPTIONS.items()
        if name not in unused
    }


def read_options(
    columns: Mapping[str, Tensor],
    search: SearchConfig,
    tokenizer: Tokenizer,
    source_lengths: Tensor,
) -> tuple[dict[str, Tensor], Tensor]:
    """Reads the settings of single sentences from the columns of a request.

    No value is an error, since a request shares its batch with others: negative numbers and NaN
    stand for the configuration's value, and too large ones are clipped. A prefix beyond the longest
    translation of the row is cut, and so is a minimum length beyond that or
    `_MAX_EXTRA_MIN_LENGTH`: the whole batch would wait for it.

    Args:
        columns: a tensor [B] for each name of `column_types`.
        search, tokenizer: the configuration, and the target's tokenizer.
        source_lengths: int [B], tokens of the sources.

    Returns:
        The settings, and which rows have one that cannot be kept as it is, bool [B]: the
        vocabulary lacks characters of the prefix, it is too long, or the row asks for a longer
        output than it may have.
    """
    settings: dict[str, Tensor] = {}
    for name, values in columns.items():
        if values.dtype == tf.string:
            continue
        default = tf.constant(getattr(search, name), values.dtype)
        settings[name] = tf.where(values >= 0, values, default)  # False for NaN
        if values.dtype.is_floating:
            least = SearchConfig.__dataclass_fields__[name].metadata["minimum"]
            settings[name] = tf.clip_by_value(settings[name], least, _MAX_FLOAT)  # infinity too
    extra = search.max_extra_length
    is_ignored = settings["max_extra_length"] > extra
    settings["max_extra_length"] = tf.minimum(settings["max_extra_length"], extra)
    if limit := search.max_length:  # such as that of a table of learned positions
        max_length = settings["max_length"]
        is_ignored |= (max_length == 0) | (max_length > limit)
        settings["max_length"] = tf.where(max_length > 0, tf.minimum(max_length, limit), limit)
    source_lengths = tf.cast(source_lengths, tf.int32)
    longest = max_lengths(settings, source_lengths)  # [B]
    most_tokens = search.max_source_length + extra + 1
    prefix = tokenizer.tokenize(columns["prefix"], most_tokens)
    is_ignored |= tokenizer.cuts(columns["prefix"], most_tokens)
    lengths = tf.cast(prefix.row_lengths(), tf.int32)
    is_ignored |= (lengths > longest) | tf.reduce_any(prefix == UNK_ID, axis=1)
    lengths = tf.minimum(lengths, source_lengths + extra)
    places = tf.range(tf.maximum(tf.reduce_max(lengths), 0))  # of no rows it is negative
    ids = prefix.to_tensor(PAD_ID)[:, : tf.size(places)]
    settings["prefix"] = tf.where(places < lengths[:, None], ids, PAD_ID)
    most = tf.minimum(longest, source_lengths + _MAX_EXTRA_MIN_LENGTH)
    shortest = columns["min_length"]
    is_ignored |= shortest > most
    settings["min_length"] = tf.where(shortest > most, most, settings["min_length"])
    return settings, is_ignored
