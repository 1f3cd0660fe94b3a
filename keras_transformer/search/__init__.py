"""Search for the best translations over a step function; knows nothing else of the model."""

from keras_transformer.errors import check_backend

check_backend()

from keras_transformer.search.beam import beam_search  # noqa: E402 (TensorFlow only)
from keras_transformer.search.constraints import (  # noqa: E402
    Constraint,
    ForbidUnknown,
    MinLength,
    NoRepeatNgram,
    OpenHypotheses,
    Prefix,
    RepetitionPenalty,
    forbid_ids,
)
from keras_transformer.search.loop import Hypotheses, kv_cache_capacities  # noqa: E402
from keras_transformer.search.sampling import sample, sentence_seeds  # noqa: E402

__all__ = [
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
