"""Sentences from files or TensorFlow Datasets, and token-bucketed batches of their ids."""

from keras_transformer.data.apache_beam import ApacheBeamShards
from keras_transformer.data.batching import (
    Batch,
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.data.buckets import Bucketing, choose_buckets
from keras_transformer.data.datasets import DatasetSplit
from keras_transformer.data.epoch_layout import Bucket
from keras_transformer.data.epoch_plan import PlannedBatch, plan_epoch
from keras_transformer.data.resampling import Resample
from keras_transformer.data.shortlist import Shortlist
from keras_transformer.data.sources import (
    FilePair,
    PairSource,
    ParallelText,
    TsvFile,
    read_parallel,
)
from keras_transformer.data.token_cache import (
    TokenizedCorpus,
    cached_corpus,
    pad_ids,
    tokenize_share,
)
from keras_transformer.data.vocabularies import learn_from_corpus
from keras_transformer.files import iterate_lines, read_lines

__all__ = [
    "ApacheBeamShards",
    "Batch",
    "Bucket",
    "Bucketing",
    "DatasetSplit",
    "FilePair",
    "PairSource",
    "ParallelText",
    "PlannedBatch",
    "Resample",
    "Shortlist",
    "TokenizedCorpus",
    "TsvFile",
    "bucket_corpus",
    "cached_corpus",
    "choose_buckets",
    "evaluation_batches",
    "iterate_lines",
    "learn_from_corpus",
    "pad_ids",
    "plan_epoch",
    "read_lines",
    "read_parallel",
    "to_dataset",
    "tokenize_share",
    "training_batches",
]
