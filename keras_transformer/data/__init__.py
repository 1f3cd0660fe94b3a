"""Sentence pairs from files or TensorFlow Datasets, and batches of their ids."""

from keras_transformer.data.augmentation import AugmentedPairs
from keras_transformer.data.batches import (
    MAX_COMPILED_SHAPES,
    MAX_SHAPES,
    Batch,
    BatchPlan,
    BatchShape,
    PlannedBatch,
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
    pad_ids,
)
from keras_transformer.data.datasets import DatasetSplit
from keras_transformer.data.token_cache import cached_corpus

__all__ = [
    "MAX_COMPILED_SHAPES",
    "MAX_SHAPES",
    "AugmentedPairs",
    "Batch",
    "BatchPlan",
    "BatchShape",
    "DatasetSplit",
    "FilePair",
    "PairSource",
    "ParallelText",
    "PlannedBatch",
    "TokenizedCorpus",
    "TsvFile",
    "cached_corpus",
    "evaluation_batches",
    "pad_ids",
    "to_dataset",
    "training_batches",
]
