"""The settings of a search: from a `SearchConfig`, and from the options of single sentences.

What the configuration leaves neutral is not in the graph at all, unless sentences may set it.

Shapes: B sentences, P phrases of a sentence, M tokens of the longest one.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID, SearchConfig
from keras_transformer.config.search import MOST_PHRASES
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.search import (
    BannedPhrases,
    Constraint,
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    Prefix,
    RepetitionPenalty,
)
from keras_transformer.text import Tokenizer, Vocabulary

MAX_PHRASE_LENGTH = 64  # tokens that are read of a phrase, so that no request exhausts the memory
_MAX_FLOAT = 1e6  # of float options: far beyond useful values, and nothing made of it is NaN

# Types of the columns of a request, by those of the fields.
_COLUMN_TYPES: dict[Any, tf.DType] = {
    float: tf.float32,
    int: tf.int32,
    tuple[str, ...]: tf.string,
}


def read_config(search: SearchConfig, target: Vocabulary) -> dict[str, Any]:
    """Returns the settings of a configuration that belong in the graph."""
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(search):
        value, neutral = getattr(search, field.name), field.metadata["neutral"]
        if field.metadata["per_sentence"] and field.type in (int, float) and value != neutral:
            settings[field.name] = (
                value if neutral is None else tf.constant(value, _COLUMN_TYPES[field.type])
            )
    if search.banned_phrases:
        ids = encode_phrases("banned_phrases", search.banned_phrases, target)
        # Padded in Python: XLA cannot compile ragged tensors. [1, P, M], one for all sentences.
        padded = [*itertools.zip_longest(*ids, fillvalue=PAD_ID)]
        settings["banned_phrases"] = tf.transpose(tf.constant(padded, tf.int32))[None]
    return settings


def option_types(search: SearchConfig) -> dict[str, tf.DType]:
    """Returns the options that may differ between sentences, with the types of their columns."""
    unused = search.unused_by(search.method)
    types = {
        field.name: _COLUMN_TYPES[field.type]
        for field in dataclasses.fields(search)
        if field.metadata["per_sentence"] and field.name not in unused
    }
    return types | {"prefix": tf.string}


def read_options(
    columns: Mapping[str, Tensor], search: SearchConfig, tokenizer: Tokenizer
) -> dict[str, Tensor]:
    """Returns the settings of single sentences from the columns of a request.

    No value is an error, since a request shares its batch with others: negative numbers and NaN
    stand for the configuration's value, and too large ones are clipped.

    Args:
        columns: a tensor [B] for each name of `option_types`; phrases one to a line.
        search: the configuration.
        tokenizer: of the target.
    """
    settings: dict[str, Tensor] = {}
    for name, values in columns.items():
        if values.dtype == tf.string:
            continue
        default = tf.constant(getattr(search, name), values.dtype)
        settings[name] = tf.where(values >= 0, values, default)  # False for NaN
        if values.dtype.is_floating:
            settings[name] = tf.minimum(settings[name], _MAX_FLOAT)  # infinity too
    settings["repetition_penalty"] = tf.maximum(settings["repetition_penalty"], 1e-3)
    limit = search.max_extra_length
    settings["max_extra_length"] = tf.minimum(settings["max_extra_length"], limit)
    prefix = tokenizer.tokenize(columns["prefix"], search.max_source_length + limit)
    settings["prefix"] = prefix.to_tensor(PAD_ID)
    lines = columns["banned_phrases"]
    if search.banned_phrases:
        lines = tf.where(tf.strings.strip(lines) == "", "\n".join(search.banned_phrases), lines)
    settings["banned_phrases"] = read_phrases(lines, tokenizer, MOST_PHRASES)
    return settings


def read_phrases(lines: Tensor, tokenizer: Tokenizer, most: int) -> Tensor:
    """Returns the tokens of phrases, one to a line of each text [B], as int32 [B, P, M].

    Phrases beyond the first `most` of a text are ignored, and those with an unknown token: a
    translation would have that token instead of the phrase's own.
    """
    phrases = tf.strings.split(lines, "\n")  # [B, (P)]
    is_blank = phrases.with_flat_values(tf.strings.strip(phrases.flat_values) == "")
    phrases = tf.ragged.boolean_mask(phrases, ~is_blank)[:, :most]
    ids = tokenizer.tokenize(phrases.flat_values, MAX_PHRASE_LENGTH)
    num_unknown = tf.reduce_sum(tf.cast(ids == UNK_ID, tf.int32), axis=1)
    is_phrase = (ids.row_lengths() > 0) & (num_unknown == 0)
    ids = phrases.with_flat_values(ids)  # [B, (P), (M)]
    ids = tf.ragged.boolean_mask(ids, phrases.with_flat_values(is_phrase))
    return ids.to_tensor(PAD_ID)


def encode_phrases(name: str, phrases: Sequence[str], target: Vocabulary) -> list[list[int]]:
    """Returns the tokens of phrases.

    Args:
        name: of the option, for the error message.
        phrases: their text.
        target: the vocabulary.

    Raises:
        InputError: a phrase has no tokens, or unknown ones.
    """
    tokens = target.encode(phrases)
    for phrase, ids in zip(phrases, tokens, strict=True):
        if not ids or UNK_ID in ids:
            raise InputError(
                f"{name}: the vocabulary cannot spell {phrase!r}; use characters of the training "
                "text"
            )
    return tokens


def make_constraints(
    settings: Mapping[str, Tensor], search: SearchConfig, target: Vocabulary
) -> list[Constraint]:
    """Returns the constraints of a search."""
    makers: dict[str, Callable[[Tensor], Constraint]] = {
        "min_length": lambda shortest: MinLength(shortest, target.space_ids),
        "prefix": Prefix,
        "repetition_penalty": RepetitionPenalty,
        "no_repeat_ngram": NoRepeatNgram,
        "banned_phrases": BannedPhrases,
    }
    found = [make(settings[name]) for name, make in makers.items() if name in settings]
    return found + [ForbidUnknown()] * search.forbid_unknown


def max_lengths(settings: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
    """Returns the tokens that translations of sentences may have before EOS, int32 [B]."""
    limit = settings["max_length"]
    longest = lengths + settings["max_extra_length"]
    longest = tf.where(limit > 0, tf.minimum(longest, limit), longest)
    if "prefix" in settings:
        # A prefix beyond the limit stays whole, and EOS follows it.
        prefix_lengths = tf.math.count_nonzero(settings["prefix"], axis=1, dtype=tf.int32)
        longest = tf.maximum(longest, prefix_lengths)
    return longest
