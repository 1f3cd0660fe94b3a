"""Ids to ids: encodes sources with a model, and searches as a `SearchConfig` says.

Shapes: B sentences, S source length, N translations of a sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.decoding import Tensor, TranslationModel
from keras_transformer.search.beam import beam_search
from keras_transformer.search.constraints import (
    Constraint,
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    Prefix,
    RepetitionPenalty,
)
from keras_transformer.search.loop import Hypotheses, kv_cache_capacities
from keras_transformer.search.sampling import sample, sentence_seeds


def search_model(
    model: TranslationModel,
    source: Tensor,
    search: SearchConfig,
    settings: Mapping[str, Any],
    *,
    space_ids: Sequence[int] = (),
    constraints: Sequence[Constraint] = (),
    max_length_bound: int | None = None,
    projection: Any = None,
) -> Hypotheses:
    """Finds translations of source ids, each with EOS, then PAD.

    Args:
        model: translates.
        source: int32 [B, S], each row with EOS, then PAD; no longer than the model may read.
        search: what is the same for all sentences: the method, the size of the beam, ...
        settings: those of `number_settings(search)`, or in their place what single sentences ask
            for. Each is a number, or a tensor [B] or [1]; "prefix" is int32 [B, any].
        space_ids: tokens that are only spaces, see `MinLength`.
        constraints: in addition to those of the settings, for example a task's.
        max_length_bound: the most tokens that any translation may have before EOS, where shapes
            must be known before the graph runs, as for XLA.
        projection: the `projection` of the model's states, if a caller has it.
    """
    lengths = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # [B], without EOS
    is_beam = search.method == "beam"
    state = model.encode(
        source,
        num_hypotheses=search.beam_size if is_beam else search.num_translations,
        capacity=None if max_length_bound is None else kv_cache_capacities(max_length_bound)[0],
        coverage="coverage_penalty" in settings,
    )
    if projection is not None:
        state = state._replace(projection=projection)
    arguments = dict(
        max_lengths=max_lengths(settings, lengths),
        num_translations=search.num_translations,
        length_penalty=settings["length_penalty"],
        length_penalty_form=search.length_penalty_form,
        coverage_penalty=settings.get("coverage_penalty", 0.0),
        constraints=[*make_constraints(settings, search, space_ids), *constraints],
        max_length_bound=max_length_bound,
    )
    if is_beam:
        return beam_search(
            model.step, state, beam_size=search.beam_size, early_stop=search.early_stop, **arguments
        )
    return sample(
        model.step,
        state,
        seed=sentence_seeds(settings["seed"], source),
        **{name: settings[name] for name in ("temperature", "top_k", "top_p")},
        **arguments,
    )


def number_settings(search: SearchConfig) -> dict[str, Any]:
    """Returns the numbers of a configuration that belong in the graph: those that are not off."""
    numbers = {
        name: getattr(search, name)
        for name, option in REQUEST_OPTIONS.items()
        if option.type is not str
    }
    return {name: value for name, value in numbers.items() if value != REQUEST_OPTIONS[name].off}


def make_constraints(
    settings: Mapping[str, Any], search: SearchConfig, space_ids: Sequence[int] = ()
) -> list[Constraint]:
    """Makes the constraints of the settings that have one."""
    makers: dict[str, Callable[[Tensor], Constraint]] = {
        "min_length": lambda shortest: MinLength(shortest, space_ids),
        "prefix": Prefix,
        "repetition_penalty": RepetitionPenalty,
        "no_repeat_ngram": NoRepeatNgram,
    }
    constraints = [make(settings[name]) for name, make in makers.items() if name in settings]
    return constraints + [ForbidUnknown()] * search.forbid_unknown


def max_lengths(settings: Mapping[str, Any], lengths: Tensor) -> Tensor:
    """The most tokens of the translations before EOS, int32 [B], for sources of lengths [B]."""
    longest = lengths + settings["max_extra_length"]
    limit = settings.get("max_length", 0)
    longest = tf.where(limit > 0, tf.minimum(longest, limit), longest)
    if "prefix" in settings:
        # A prefix beyond the limit stays whole, and EOS follows it.
        prefix_lengths = tf.math.count_nonzero(settings["prefix"], axis=1, dtype=tf.int32)
        longest = tf.maximum(longest, prefix_lengths)
    return longest
