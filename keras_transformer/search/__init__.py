"""Search for the best translations over a step function; knows nothing else of the model."""

# ruff: noqa: E402 (TensorFlow only: the backend is checked first)
from keras_transformer.errors import check_backend

check_backend()

from keras_transformer.search.beam import beam_search as beam_search
from keras_transformer.search.constraints import Constraint as Constraint
from keras_transformer.search.constraints import ForbidUnknown as ForbidUnknown
from keras_transformer.search.constraints import MinLength as MinLength
from keras_transformer.search.constraints import NoRepeatNgram as NoRepeatNgram
from keras_transformer.search.constraints import OpenHypotheses as OpenHypotheses
from keras_transformer.search.constraints import Prefix as Prefix
from keras_transformer.search.constraints import RepetitionPenalty as RepetitionPenalty
from keras_transformer.search.constraints import forbid_ids as forbid_ids
from keras_transformer.search.loop import Hypotheses as Hypotheses
from keras_transformer.search.loop import kv_cache_capacities as kv_cache_capacities
from keras_transformer.search.sampling import sample as sample
from keras_transformer.search.sampling import sentence_seeds as sentence_seeds
