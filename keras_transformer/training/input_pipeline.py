"""The batches of a run, as data sets that the devices and machines of a strategy share."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_transformer.data import (
    Batch,
    ParallelText,
    TokenizedCorpus,
    bucket_corpus,
    evaluation_batches,
    to_dataset,
    training_batches,
)
from keras_transformer.text import SubwordSampler
from keras_transformer.training.corpora import tokenize
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.strategies import worker_of


class TrainingInput:
    """Gives `fit` what it trains and validates on.

    Args:
        run: says how batches are made, and holds the vocabularies.
        strategy: says how many devices and workers share a batch.
    """

    def __init__(self, run: RunDirectory, strategy: tf.distribute.Strategy) -> None:
        configs = run.configs()
        self._data, self._training, self._task = configs.corpora, configs.training, configs.task
        self._vocabularies = run.vocabularies()
        self._strategy = strategy
        self._worker = worker_of(strategy)
        self._sharing = {
            "batch_tokens": self._training.batch_tokens,
            "replicas": strategy.num_replicas_in_sync,
            "shard": (self._worker.index, self._worker.count),
        }

    def training_batches(self, corpus: TokenizedCorpus, first_step: int) -> Any:
        """Returns the run's endless stream of batches, starting at `first_step`."""
        resample = None
        if self._data.subword_sampling:
            source, target = (
                SubwordSampler(vocabulary, alpha=self._data.subword_sampling) if varies else None
                for vocabulary, varies in zip(
                    self._vocabularies, self._data.has_subwords, strict=True
                )
            )
            resample = source, target
        return self._distributed(
            functools.partial(
                training_batches,
                corpus,
                seed=self._training.seed,
                first_step=first_step,
                mix_weights=self._data.weights,
                resample=resample,
                **self._sharing,
            )
        )

    def validation_batches(self, text: ParallelText) -> Any:
        """Returns the batches of one pass over a dev set.

        They are as large as one accumulated part of a training batch, which is known to fit in
        memory, but have room for the longest sentence. Pairs too long for training are left out
        here too.
        """
        learned = text._replace(target=list(map(self._task.learned_text, text.target)))
        corpus = tokenize(learned, self._vocabularies, self._data.max_length)
        longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
        part = self._training.batch_tokens // self._training.accumulation_steps
        sharing = self._sharing | {"batch_tokens": max(part, longest)}
        count = sum(bucket_corpus(corpus, batch_tokens=sharing["batch_tokens"]).batches)
        return self._distributed(functools.partial(evaluation_batches, corpus, **sharing), count)

    def _distributed(self, batches: Callable[[], Iterator[Batch]], count: int | None = None) -> Any:
        """Returns this worker's rows of the batches, which its replicas cut up."""
        dataset = to_dataset(batches)
        if count is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        if self._worker.count > 1:
            return self._strategy.distribute_datasets_from_function(lambda context: dataset)
        options = tf.data.Options()
        # A strategy is to cut up the batches and not the files that they come from.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options)


def num_shapes(run: RunDirectory, corpus: TokenizedCorpus) -> int:
    """Returns how many shapes the batches have, for each of which XLA compiles a program."""
    configs = run.configs()
    data, training = configs.corpora, configs.training
    bucketing = bucket_corpus(corpus, batch_tokens=training.batch_tokens, mix_weights=data.weights)
    # All pairs of a bucket may have moved on to larger ones.
    return sum(batches > 0 for batches in bucketing.batches)
