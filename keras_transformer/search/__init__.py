"""Search for the best translations over a step function; knows nothing else of the model."""

from keras_transformer.search.beam import beam_search
from keras_transformer.search.draws import sentence_seeds
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.sampling import sample
from keras_transformer.search.task import stages
from keras_transformer.search.wishes import Wishes

__all__ = [
    "Hypotheses",
    "Wishes",
    "beam_search",
    "greedy_search",
    "sample",
    "sentence_seeds",
    "stages",
]
