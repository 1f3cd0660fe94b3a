"""Search options as tensors: those of a configuration, and those that single sentences set.

What the configuration leaves off is not in the graph at all, unless sentences may set it.

Shapes: B sentences, P phrases of a sentence, M tokens of the longest one.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID, SearchConfig
from keras_transformer.config.search import MAX_PHRASES, REQUEST_OPTIONS
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError
from keras_transformer.search.model_search import max_lengths, number_settings
from keras_transformer.text import Tokenizer, Vocabulary

# No request may exhaust the memory: what is longer is ignored.
_MAX_PHRASE_LENGTH = 64  # tokens of a phrase
_MAX_PHRASES_BYTES = 1 << 16  # of all phrases of a sentence
_MAX_FLOAT = 1e6  # of float options: far beyond useful values, and nothing made of it is NaN
# Tokens by which the minimum length of a request may exceed its source, where translations may be
# much longer: by one number, a request of a word would take the time of one of 500 words.
_MAX_EXTRA_MIN_LENGTH = 50
_COLUMN_TYPES = {float: tf.float32, int: tf.int32, str: tf.string}


def config_settings(search: SearchConfig, target: Vocabulary) -> dict[str, Any]:
    """Returns the values of a configuration that belong in the graph, see `search_model`.

    Raises:
        InputError: a banned phrase has no tokens, unknown ones, or too many.
    """
    settings = number_settings(search)
    if not search.banned_phrases:
        return settings
    tokens = target.encode(search.banned_phrases)
    for phrase, ids in zip(search.banned_phrases, tokens, strict=True):
        if not ids or UNK_ID in ids or len(ids) > _MAX_PHRASE_LENGTH:
            raise InputError(
                f"banned_phrases: {phrase[:40]!r} must have 1 to {_MAX_PHRASE_LENGTH} tokens, none "
                f"of them unknown, got {target.pieces(ids[: _MAX_PHRASE_LENGTH + 1])}"
            )
    # Padded in Python: XLA cannot compile ragged tensors. [1, P, M], one for all sentences.
    padded = [*itertools.zip_longest(*tokens, fillvalue=PAD_ID)]
    return settings | {"banned_phrases": tf.transpose(tf.constant(padded, tf.int32))[None]}


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
        columns: a tensor [B] for each name of `column_types`; phrases one to a line.
        search: the configuration.
        tokenizer: of the target.
        source_lengths: int [B], tokens of the sources.

    Returns:
        The settings, and which rows have one that cannot be kept as it is, bool [B]: the
        vocabulary lacks characters of the prefix or a phrase, it is too long, or the row asks for
        a longer output than it may have.
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
    is_ignored = settings["max_extra_length"] > limit
    settings["max_extra_length"] = tf.minimum(settings["max_extra_length"], limit)
    source_lengths = tf.cast(source_lengths, tf.int32)
    longest = max_lengths(settings, source_lengths)  # [B]
    prefix = tokenizer.tokenize(columns["prefix"], search.max_source_length + limit + 1)
    lengths = tf.cast(prefix.row_lengths(), tf.int32)
    is_ignored |= (lengths > longest) | _has_unknown(prefix)
    lengths = tf.minimum(lengths, source_lengths + limit)
    places = tf.range(tf.maximum(tf.reduce_max(lengths), 0))  # of no rows it is negative
    ids = prefix.to_tensor(PAD_ID)[:, : tf.size(places)]
    settings["prefix"] = tf.where(places < lengths[:, None], ids, PAD_ID)
    most = tf.minimum(longest, source_lengths + _MAX_EXTRA_MIN_LENGTH)
    shortest = columns["min_length"]
    is_ignored |= shortest > most
    settings["min_length"] = tf.where(shortest > most, most, settings["min_length"])
    lines = columns["banned_phrases"]
    if search.banned_phrases:
        lines = tf.where(lines == "", "\n".join(search.banned_phrases), lines)
    settings["banned_phrases"], some_are_ignored = read_phrases(lines, tokenizer)
    return settings, is_ignored | some_are_ignored


def read_phrases(lines: Tensor, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Reads the tokens of phrases, one to a line of each text [B], as int32 [B, P, M].

    Ignores phrases with an unknown token, since a translation would have that token instead of the
    phrase's own; those of more than `_MAX_PHRASE_LENGTH` tokens; and those beyond the first
    `MAX_PHRASES`, or beyond the first 64 KB.

    Returns:
        The phrases, and whether any is ignored, bool [B].
    """
    is_ignored = tf.strings.length(lines) > _MAX_PHRASES_BYTES
    whole_lines = tf.strings.regex_replace(
        tf.strings.substr(lines, 0, _MAX_PHRASES_BYTES), r"[^\n]*\z", ""
    )
    phrases = tf.strings.split(tf.where(is_ignored, whole_lines, lines), "\n")  # [B, (P)]
    is_blank = phrases.with_flat_values(tf.strings.strip(phrases.flat_values) == "")
    phrases = tf.ragged.boolean_mask(phrases, ~is_blank)
    is_ignored |= phrases.row_lengths() > MAX_PHRASES
    phrases = phrases[:, :MAX_PHRASES]
    ids = tokenizer.tokenize(phrases.flat_values, _MAX_PHRASE_LENGTH + 1)
    lengths = ids.row_lengths()
    is_phrase = (lengths > 0) & (lengths <= _MAX_PHRASE_LENGTH) & ~_has_unknown(ids)
    is_phrase = phrases.with_flat_values(is_phrase)
    ids = tf.ragged.boolean_mask(phrases.with_flat_values(ids), is_phrase)  # [B, (P), (M)]
    return ids.to_tensor(PAD_ID), is_ignored | ~tf.reduce_all(is_phrase, axis=1)


def _has_unknown(ids: tf.RaggedTensor) -> Tensor:
    """Which rows of ids [B, (length)] have an unknown token, bool [B]."""
    return tf.reduce_any(ids == UNK_ID, axis=1)
