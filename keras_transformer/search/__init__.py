"""Search for the best translations over a step function; knows nothing else of the model."""

from keras_transformer.errors import check_backend
from keras_transformer.search.beam import beam_search
from keras_transformer.search.constraints import (
    BannedPhrases,
    Constraint,
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    OpenHypotheses,
    Prefix,
    RepetitionPenalty,
    forbid_ids,
)
from keras_transformer.search.loop import Hypotheses, kv_cache_capacities
from keras_transformer.search.sampling import sample, sentence_seeds

__all__ = [
    "BannedPhrases",
    "Constraint",
    "ForbidUnknown",
    "Hypotheses",
    "MinLength",
    "NoRepeatNgram",
    "OpenHypotheses",
    "Prefix",
    "RepetitionPenalty",
    "beam_search",
    "forbid_ids",
    "kv_cache_capacities",
    "sample",
    "sentence_seeds",
]

check_backend()
