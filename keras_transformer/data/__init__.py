"""Sentences from files or TensorFlow Datasets, and token-bucketed batches of their ids."""

from keras_transformer.data.batching import (
    Batch,
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.data.buckets import Bucket, Bucketing, choose_buckets
from keras_transformer.data.corpus import ParallelText, read_lines, read_parallel
from keras_transformer.data.datasets import load_parallel
from keras_transformer.data.plan import PlannedBatch, plan_epoch
from keras_transformer.data.tokenized import TokenizedCorpus, pad_ids

__all__ = [
    "Batch",
    "Bucket",
    "Bucketing",
    "ParallelText",
    "PlannedBatch",
    "TokenizedCorpus",
    "bucket_corpus",
    "choose_buckets",
    "evaluation_batches",
    "load_parallel",
    "pad_ids",
    "plan_epoch",
    "read_lines",
    "read_parallel",
    "to_dataset",
    "training_batches",
]
