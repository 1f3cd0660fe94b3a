"""Sentence pairs from files or TensorFlow Datasets, and batches of their ids."""

from keras_transformer.data.batches import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    Batch,
    BatchPlan,
    BatchShape,
    PlannedBatch,
    Resample,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.data.corpus import (
    FilePair,
    PairSource,
    ParallelText,
    TokenizedCorpus,
    TsvFile,
    learn_from_corpus,
    pad_ids,
    read_parallel,
)
from keras_transformer.data.datasets import DatasetSplit
from keras_transformer.data.token_cache import ApacheBeamShards, cached_corpus
from keras_transformer.files import iterate_lines, read_lines

__all__ = [
    "MAX_COMPILED_SHAPES",
    "MAX_SHAPES",
    "ApacheBeamShards",
    "Batch",
    "BatchPlan",
    "BatchShape",
    "DatasetSplit",
    "FilePair",
    "PairSource",
    "ParallelText",
    "PlannedBatch",
    "Resample",
    "TokenizedCorpus",
    "TsvFile",
    "cached_corpus",
    "evaluation_batches",
    "iterate_lines",
    "learn_from_corpus",
    "pad_ids",
    "read_lines",
    "read_parallel",
    "to_dataset",
    "training_batches",
]
