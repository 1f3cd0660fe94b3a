"""Search for the best translations over a step function; knows nothing else of the model."""

from keras_transformer.errors import check_backend
from keras_transformer.search.beam import beam_search
from keras_transformer.search.bracket_constraint import BalancedBrackets, CopiedWords
from keras_transformer.search.constraints import (
    Constraint,
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    OpenHypotheses,
    Prefix,
    ProgressConstraint,
    RepetitionPenalty,
)
from keras_transformer.search.decode_loop import kv_cache_capacities
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.phrase_constraints import BannedPhrases, RequiredPhrases
from keras_transformer.search.random_numbers import sentence_seeds
from keras_transformer.search.sampling import sample

__all__ = [
    "BalancedBrackets",
    "BannedPhrases",
    "Constraint",
    "CopiedWords",
    "ForbidUnknown",
    "Hypotheses",
    "MinLength",
    "NoRepeatNgram",
    "OpenHypotheses",
    "Prefix",
    "ProgressConstraint",
    "RepetitionPenalty",
    "RequiredPhrases",
    "beam_search",
    "greedy_search",
    "kv_cache_capacities",
    "sample",
    "sentence_seeds",
]

check_backend()
