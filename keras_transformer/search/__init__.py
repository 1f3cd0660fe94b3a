"""Search for the best translations over a step function; knows nothing else of the model."""

from keras_transformer.search.beam import beam_search
from keras_transformer.search.constraints import Constraints
from keras_transformer.search.greedy import greedy_search
from keras_transformer.search.hypotheses import Hypotheses
from keras_transformer.search.loop_state import stages
from keras_transformer.search.random_numbers import sentence_seeds
from keras_transformer.search.sampling import sample

__all__ = [
    "Constraints",
    "Hypotheses",
    "beam_search",
    "greedy_search",
    "sample",
    "sentence_seeds",
    "stages",
]
