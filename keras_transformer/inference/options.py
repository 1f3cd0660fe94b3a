"""From a `SearchConfig` and the options of single sentences to a search with a model.

What the configuration leaves neutral is not in the graph at all, unless sentences may set it.

Shapes: B sentences, S source length, N translations a sentence, P phrases a sentence, M tokens of
the longest one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, MOST_PHRASES, PAD_ID, UNK_ID, SearchConfig
from keras_transformer.data import Shortlist
from keras_transformer.decoding import DecodingState, Tensor, TranslationModel, VocabularySubset
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
    RequiredPhrases,
    beam_search,
    kv_cache_capacities,
    sample,
    sentence_seeds,
)
from keras_transformer.text import Tokenizer, Vocabulary

# The target tokens that a batch of sentences may be translated with, looked up in the graph.
#
# Shapes: B sentences, S source length, U source vocabulary, M candidates of a token, V target
# vocabulary, C tokens chosen.


def make_lookup(
    shortlist: Shortlist | None, search: SearchConfig, target_size: int, has_xla: bool
) -> "ShortlistLookup | None":
    """Returns what a search needs of a shortlist, None where it asks for none.

    Raises:
        InputError: it asks for one that is not there, or that XLA would have to know beforehand.
    """
    if not search.shortlist:
        return None
    if shortlist is None or has_xla:
        raise InputError(
            "a search with a shortlist needs one that was learned, and no XLA; give it, or leave "
            "shortlist at 0"
        )
    return ShortlistLookup(shortlist.first(search.shortlist), target_size)


class ShortlistLookup(tf.Module):
    """A shortlist as variables, which an export saves.

    Args:
        shortlist: for a model's vocabularies.
        target_size: V.
    """

    def __init__(self, shortlist: Shortlist, target_size: int) -> None:
        super().__init__(name="shortlist")
        self.candidates = tf.Variable(shortlist.candidates, trainable=False)  # [U, M]
        is_common = np.isin(np.arange(target_size), shortlist.common)
        self.is_common = tf.Variable(is_common, trainable=False)  # [V]

    def restrict(
        self, state: DecodingState, source: Tensor, forced: Sequence[Tensor]
    ) -> tuple[DecodingState, VocabularySubset]:
        """Returns the state of which steps give logits of `subset` alone, and these tokens."""
        subset = self.subset(source, forced)
        projection = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, subset.ids, axis=-1), state.projection
        )
        return state._replace(projection=projection), subset

    def subset(self, source: Tensor, forced: Sequence[Tensor] = ()) -> VocabularySubset:
        """Returns the tokens that any of the sentences may have.

        Args:
            source: int32 [B, S].
            forced: more of them, int32 of any shape.
        """
        ids = [tf.gather(self.candidates, source), *forced]
        ids = tf.concat([tf.reshape(each, [-1]) for each in ids], axis=0)
        is_chosen = tf.tensor_scatter_nd_update(
            tf.convert_to_tensor(self.is_common), ids[:, None], tf.ones_like(ids, tf.bool)
        )
        chosen = tf.cast(tf.where(is_chosen)[:, 0], tf.int32)
        places = tf.cumsum(tf.cast(is_chosen, tf.int32), exclusive=True)
        return VocabularySubset(chosen, tf.where(is_chosen, places, tf.size(chosen)))


# Tokens of a phrase that are read, so that no request can exhaust the memory.
MAX_PHRASE_LENGTH = 64

# Limit of float options: far beyond useful values, and nothing computed from it becomes NaN.
_LARGEST = 1e6

# The options that may differ from sentence to sentence, with the types of their numbers. A negative
# number in a request stands for the configuration's value.
NUMBERS: dict[str, tf.DType] = {
    "length_penalty": tf.float32,
    "coverage_penalty": tf.float32,
    "repetition_penalty": tf.float32,
    "no_repeat_ngram": tf.int32,
    "min_length": tf.int32,
    "max_length": tf.int32,
    "max_extra_length": tf.int32,
}
BEAM_NUMBERS = {"diversity_penalty": tf.float32}
SAMPLING_NUMBERS = {
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "seed": tf.int32,
}
TEXTS = ("prefix", "banned_phrases", "required_phrases")

# The options at which nothing is in the graph.
_NEUTRAL = {"coverage_penalty": 0, "repetition_penalty": 1, "no_repeat_ngram": 0, "min_length": 0}


def search_translations(
    model: TranslationModel,
    source: Tensor,
    search: SearchConfig,
    target: Vocabulary,
    options: Mapping[str, Tensor] | None = None,
    max_length_bound: int | None = None,
    constraints: Sequence[Constraint] = (),
    shortlist: ShortlistLookup | None = None,
) -> Hypotheses:
    """Returns translations of source ids [B, S], each with EOS, then PAD.

    Args:
        model: see `TranslationModel`.
        source: cut already to what the model is to read.
        target: gives the tokens of the phrases in the configuration.
        options: what sentences set in place of the configuration, by the names of its fields,
            numbers as [B]; "prefix" as int32 [B, any], phrases as int32 [B, P, M].
        max_length_bound: the most tokens that any translation may have before EOS, where shapes
            must be known before the graph runs, as for XLA.
        constraints: others than those of the configuration, such as a task's.
        shortlist: which tokens translations may have.
    """
    lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # without EOS
    settings = _settings(search, target) | dict(options or {})
    max_lengths = _max_lengths(settings, lengths)
    is_sampled = search.method == "sampling"
    state = model.encode(
        source,
        num_hypotheses=search.num_translations if is_sampled else search.beam_size,
        capacity=None if max_length_bound is None else kv_cache_capacities(max_length_bound)[0],
        coverage="coverage_penalty" in settings,
    )
    forced = [settings[name] for name in ("prefix", "required_phrases") if name in settings]
    state, vocabulary = shortlist.restrict(state, source, forced) if shortlist else (state, None)
    arguments = dict(
        bos_ids=tf.fill(tf.shape(lengths), BOS_ID),
        max_lengths=max_lengths,
        length_penalty=settings["length_penalty"],
        length_penalty_form=search.length_penalty_form,
        coverage_penalty=settings.get("coverage_penalty", 0.0),
        constraints=[*_constraints(settings, search, target, lengths), *constraints],
        num_translations=search.num_translations,
        max_length_bound=max_length_bound,
        vocabulary=vocabulary,
    )
    if is_sampled:
        settings["seed"] = sentence_seeds(settings["seed"], source)
        sampling = {name: settings[name] for name in SAMPLING_NUMBERS}
        return sample(model.step, state, **arguments, **sampling)
    return beam_search(
        model.step,
        state,
        **arguments,
        beam_size=search.beam_size,
        beam_groups=search.beam_groups,
        diversity_penalty=settings["diversity_penalty"],
        early_stop=search.early_stop,
    )


def _constraints(
    settings: Mapping[str, Tensor], search: SearchConfig, target: Vocabulary, lengths: Tensor
) -> list[Constraint]:
    makers: dict[str, Callable[[Tensor], Constraint]] = {
        "min_length": lambda shortest: MinLength(shortest, target.space_ids),
        "prefix": Prefix,
        "repetition_penalty": RepetitionPenalty,
        "no_repeat_ngram": NoRepeatNgram,
        "banned_phrases": BannedPhrases,
        "required_phrases": RequiredPhrases,
    }
    found = [make(settings[name]) for name, make in makers.items() if name in settings]
    return found + [ForbidUnknown(lengths)] * search.forbid_unknown


def _settings(search: SearchConfig, target: Vocabulary) -> dict[str, Tensor]:
    """Returns the fields that are always in the graph, and others that are not neutral."""
    always = ("length_penalty", "max_extra_length", "max_length", *BEAM_NUMBERS, *SAMPLING_NUMBERS)
    settings: dict[str, Any] = {name: getattr(search, name) for name in always}
    for name, neutral in _NEUTRAL.items():
        value = getattr(search, name)
        if value != neutral:
            settings[name] = tf.constant(value, NUMBERS[name])
    for name in ("banned_phrases", "required_phrases"):
        if phrases := getattr(search, name):
            ids = tf.ragged.constant(encode_phrases(name, phrases, target), tf.int32)
            settings[name] = ids.to_tensor(PAD_ID)[None]  # the same for all sentences
    return settings


def encode_phrases(name: str, phrases: Sequence[str], target: Vocabulary) -> list[list[int]]:
    """Returns the tokens of phrases.

    Args:
        name: of the option, for the error message.

    Raises:
        InputError: one has no tokens, or unknown ones.
    """
    tokens = target.encode(phrases)
    for phrase, ids in zip(phrases, tokens, strict=True):
        if not ids or UNK_ID in ids:
            raise InputError(
                f"{name}: the vocabulary cannot spell {phrase!r}; leave it out, or write it with "
                "characters of the training text"
            )
    return tokens


def _max_lengths(settings: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
    """Returns the tokens that each translation may have before EOS, int32 [B]."""
    limit = settings["max_length"]
    max_lengths = lengths + settings["max_extra_length"]
    max_lengths = tf.where(limit > 0, tf.minimum(max_lengths, limit), max_lengths)
    if "prefix" in settings:
        # A prefix may be longer than the limit: it stays whole, and only EOS follows it then.
        prefix_lengths = tf.math.count_nonzero(settings["prefix"], axis=1, dtype=tf.int32)
        max_lengths = tf.maximum(max_lengths, prefix_lengths)
    return max_lengths


# Options of single sentences, as they come in a request.


def option_types(search: SearchConfig) -> dict[str, tf.DType]:
    """Returns what may differ from sentence to sentence, with the type of its column."""
    method_numbers: dict[str, tf.DType] = {}
    if search.method == "sampling":
        method_numbers = SAMPLING_NUMBERS
    elif search.beam_groups > 1:
        method_numbers = BEAM_NUMBERS
    return NUMBERS | method_numbers | dict.fromkeys(TEXTS, tf.string)


def read_options(
    columns: Mapping[str, Tensor], search: SearchConfig, tokenizer: Tokenizer
) -> dict[str, Tensor]:
    """Returns the `options` of `search_translations` from the columns of a request.

    No value is refused, since a request shares its batch with others: negative numbers and NaN
    mean what the configuration says, and too large ones are clipped.

    Args:
        columns: for each name of `option_types` a tensor [B]; phrases one to a line.
        search: what holds for sentences without options.
    """
    options: dict[str, Tensor] = {}
    for name, values in columns.items():
        if name in TEXTS:
            continue
        default = tf.constant(getattr(search, name), values.dtype)
        options[name] = tf.where(values >= 0, values, default)  # not where it is NaN
        if values.dtype.is_floating:
            options[name] = tf.minimum(options[name], _LARGEST)  # also where it is infinite
    options["repetition_penalty"] = tf.maximum(options["repetition_penalty"], 1e-3)
    limit = search.max_extra_length
    options["max_extra_length"] = tf.minimum(options["max_extra_length"], limit)
    prefix = tokenizer.tokenize(columns["prefix"], search.max_source_length + limit)
    options["prefix"] = prefix.to_tensor(PAD_ID)
    for name in ("banned_phrases", "required_phrases"):
        lines = columns[name]
        exported: Sequence[str] = getattr(search, name)
        if exported:
            lines = tf.where(tf.strings.strip(lines) == "", "\n".join(exported), lines)
        options[name] = read_phrases(lines, tokenizer, MOST_PHRASES[name])
    return options


def read_phrases(lines: Tensor, tokenizer: Tokenizer, most: int) -> Tensor:
    """Returns the tokens of phrases, one to a line of each text [B], as int32 [B, P, M].

    Those beyond the first `most` of a text are not read, nor those with an unknown token: a
    translation would have that token in place of what was meant.
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
