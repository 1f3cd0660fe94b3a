"""Ids to ids: how a `SearchConfig`, and the options of single sentences, become a search.

What the configuration leaves neutral is not in the graph at all, unless sentences may set it.

Shapes: B sentences, S source length, N translations of a sentence; P phrases of a sentence, M
tokens of the longest one.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID, SearchConfig
from keras_transformer.config.options import field_types
from keras_transformer.config.search import MAX_PHRASES
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.errors import InputError
from keras_transformer.search import (
    BannedPhrases,
    Constraint,
    ForbidUnknown,
    Hypotheses,
    MinLength,
    NoRepeatNgram,
    Prefix,
    RepetitionPenalty,
    beam_search,
    kv_cache_capacities,
    sample,
    sentence_seeds,
)
from keras_transformer.text import Tokenizer, Vocabulary

# No request may exhaust the memory: what is longer is ignored.
MAX_PHRASE_LENGTH = 64  # tokens of a phrase
_MAX_PHRASES_BYTES = 1 << 16  # of all phrases of a sentence
_MAX_FLOAT = 1e6  # of float options: far beyond useful values, and nothing made of it is NaN
# Tokens by which the minimum length of a request may exceed its source, where translations may be
# much longer: by one number, a request of a word would take the time of one of 500 words.
_MAX_EXTRA_MIN_LENGTH = 50

# Types of the columns of a request, by those of the fields.
_COLUMN_TYPES: dict[Any, tf.DType] = {float: tf.float32, int: tf.int32, tuple[str, ...]: tf.string}


def search_translations(
    model: TranslationModel,
    source: Tensor,
    search: SearchConfig,
    target: Vocabulary,
    options: Mapping[str, Tensor] | None = None,
    max_length_bound: int | None = None,
    constraints: Sequence[Constraint] = (),
    projection: Any = None,
    details: bool = False,
) -> Hypotheses:
    """Returns translations of source ids [B, S], each with EOS, then PAD.

    Args:
        model: translates.
        source: the ids, no longer than the model may read.
        search: how to search.
        target: the vocabulary, which gives the tokens of the configuration's phrases.
        options: what sentences set instead of the configuration, by the names of its fields,
            numbers as [B]; "prefix" as int32 [B, any], phrases as int32 [B, P, M].
        max_length_bound: the most tokens that any translation may have before EOS, where shapes
            must be known before the graph runs, as for XLA.
        constraints: in addition to those of the configuration, for example a task's.
        projection: the `projection` of the model's states, if a caller has it.
        details: whether to return `Hypotheses.details`, and among them "output_cut", bool [B, N]:
            whether a translation has as many tokens as it may have, after which EOS is forced.
    """
    lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # [B], without EOS
    settings = read_config(search, target) | dict(options or {})
    is_sampled = search.method == "sampling"
    state = model.encode(
        source,
        num_hypotheses=search.num_translations if is_sampled else search.beam_size,
        capacity=None if max_length_bound is None else kv_cache_capacities(max_length_bound)[0],
        coverage=details or "coverage_penalty" in settings,  # whose steps are the attention
    )
    if projection is not None:
        state = state._replace(projection=projection)
    arguments = dict(
        max_lengths=max_lengths(settings, lengths),
        length_penalty=settings["length_penalty"],  # without a neutral value: always there
        length_penalty_form=search.length_penalty_form,
        coverage_penalty=settings.get("coverage_penalty", 0.0),
        constraints=[*make_constraints(settings, search, target), *constraints],
        num_translations=search.num_translations,
        max_length_bound=max_length_bound,
        details=details,
    )
    if is_sampled:
        settings["seed"] = sentence_seeds(settings["seed"], source)
        sampling = {name: settings[name] for name in SearchConfig.unused_by("beam")}
        hypotheses = sample(model.step, state, **arguments, **sampling)
    else:
        hypotheses = beam_search(
            model.step, state, **arguments, beam_size=search.beam_size, early_stop=search.early_stop
        )
    if not details:
        return hypotheses
    output_cut = hypotheses.lengths > arguments["max_lengths"][:, None]  # EOS counts in lengths
    return hypotheses._replace(details=hypotheses.details | {"output_cut": output_cut})


def read_config(search: SearchConfig, target: Vocabulary) -> dict[str, Any]:
    """Returns the settings of a configuration that belong in the graph."""
    settings: dict[str, Any] = {}
    types = field_types(type(search))
    for field in dataclasses.fields(search):
        value, neutral = getattr(search, field.name), field.metadata["neutral"]
        kind = types[field.name]
        if field.metadata["per_sentence"] and kind in (int, float) and value != neutral:
            settings[field.name] = (
                value if neutral is None else tf.constant(value, _COLUMN_TYPES[kind])
            )
    if search.banned_phrases:
        ids = encode_phrases("banned_phrases", search.banned_phrases, target)
        # Padded in Python: XLA cannot compile ragged tensors. [1, P, M], one for all sentences.
        padded = [*itertools.zip_longest(*ids, fillvalue=PAD_ID)]
        settings["banned_phrases"] = tf.transpose(tf.constant(padded, tf.int32))[None]
    return settings


def option_types(search: SearchConfig) -> dict[str, tf.DType]:
    """Returns the options that may differ between sentences, with the types of their columns."""
    unused, kinds = search.unused_by(search.method), field_types(type(search))
    types = {
        field.name: _COLUMN_TYPES[kinds[field.name]]
        for field in dataclasses.fields(search)
        if field.metadata["per_sentence"] and field.name not in unused
    }
    return types | {"prefix": tf.string}


def read_options(
    columns: Mapping[str, Tensor],
    search: SearchConfig,
    tokenizer: Tokenizer,
    source_lengths: Tensor,
) -> tuple[dict[str, Tensor], Tensor]:
    """Returns the settings of single sentences from the columns of a request.

    No value is an error, since a request shares its batch with others: negative numbers and NaN
    stand for the configuration's value, and too large ones are clipped. A prefix beyond the longest
    translation of the row is cut, and so is a minimum length beyond that or
    `_MAX_EXTRA_MIN_LENGTH`: the whole batch would wait for it.

    Args:
        columns: a tensor [B] for each name of `option_types`; phrases one to a line.
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
    most = tf.minimum(max_lengths(settings, source_lengths), source_lengths + _MAX_EXTRA_MIN_LENGTH)
    shortest = columns["min_length"]
    is_ignored |= shortest > most
    settings["min_length"] = tf.where(shortest > most, most, settings["min_length"])
    longest = source_lengths + limit  # [B]
    prefix = tokenizer.tokenize(columns["prefix"], search.max_source_length + limit + 1)
    lengths = tf.cast(prefix.row_lengths(), tf.int32)
    is_ignored |= (lengths > longest) | _has_unknown(prefix)
    lengths = tf.minimum(lengths, longest)
    places = tf.range(tf.maximum(tf.reduce_max(lengths), 0))  # of no rows it is negative
    ids = prefix.to_tensor(PAD_ID)[:, : tf.size(places)]
    settings["prefix"] = tf.where(places < lengths[:, None], ids, PAD_ID)
    lines = columns["banned_phrases"]
    if search.banned_phrases:
        lines = tf.where(lines == "", "\n".join(search.banned_phrases), lines)
    settings["banned_phrases"], some_are_ignored = read_phrases(lines, tokenizer)
    return settings, is_ignored | some_are_ignored


def read_phrases(lines: Tensor, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Returns the tokens of phrases, one to a line of each text [B], as int32 [B, P, M].

    Ignores phrases with an unknown token, since a translation would have that token instead of the
    phrase's own; those of more than `MAX_PHRASE_LENGTH` tokens; and those beyond the first
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
    ids = tokenizer.tokenize(phrases.flat_values, MAX_PHRASE_LENGTH + 1)
    lengths = ids.row_lengths()
    is_phrase = (lengths > 0) & (lengths <= MAX_PHRASE_LENGTH) & ~_has_unknown(ids)
    is_phrase = phrases.with_flat_values(is_phrase)
    ids = tf.ragged.boolean_mask(phrases.with_flat_values(ids), is_phrase)  # [B, (P), (M)]
    return ids.to_tensor(PAD_ID), is_ignored | ~tf.reduce_all(is_phrase, axis=1)


def _has_unknown(ids: tf.RaggedTensor) -> Tensor:
    """Returns which rows of ids [B, (length)] have an unknown token, bool [B]."""
    return tf.reduce_any(ids == UNK_ID, axis=1)


def encode_phrases(name: str, phrases: Sequence[str], target: Vocabulary) -> list[list[int]]:
    """Returns the tokens of phrases.

    Args:
        name: of the option, for the error message.
        phrases: their text.
        target: the vocabulary.

    Raises:
        InputError: a phrase has no tokens, unknown ones, or too many.
    """
    tokens = target.encode(phrases)
    for phrase, ids in zip(phrases, tokens, strict=True):
        if not ids or UNK_ID in ids:
            raise InputError(
                f"{name}: the vocabulary cannot spell {phrase!r}; use characters of the training "
                "text"
            )
        if name == "banned_phrases" and len(ids) > MAX_PHRASE_LENGTH:
            raise InputError(
                f"{name}: a phrase may have at most {MAX_PHRASE_LENGTH} tokens, got {len(ids)} in "
                f"{phrase[:40]!r}; ban a part of it"
            )
    return tokens


def make_constraints(
    settings: Mapping[str, Tensor], search: SearchConfig, target: Vocabulary
) -> list[Constraint]:
    """Returns the constraints of a search; neutral options are not in `settings`."""
    makers: dict[str, Callable[[Tensor], Constraint]] = {
        "min_length": lambda shortest: MinLength(shortest, target.space_ids),
        "prefix": Prefix,
        "repetition_penalty": RepetitionPenalty,
        "no_repeat_ngram": NoRepeatNgram,
        "banned_phrases": BannedPhrases,
    }
    constraints = [make(settings[name]) for name, make in makers.items() if name in settings]
    return constraints + [ForbidUnknown()] * search.forbid_unknown


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
