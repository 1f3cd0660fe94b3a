"""Batches of token ids for training and evaluation.

A batch is what Keras calls (x, y), all int32, with R rows of source length S and target length T:

    ({"source": [R, S], "target": [R, T]}, labels [R, T])

`source` ends in EOS_ID; `target` is BOS_ID and the translation; `labels` is the translation and
EOS_ID, so that labels[:, t] follows target[:, t]. The rest is PAD_ID, sometimes in whole rows.
(R, S, T) is one of a bounded number of shapes, see `choose_buckets`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data.buckets import Bucketing, choose_buckets
from keras_transformer.data.epoch_plan import PlannedBatch, plan_epoch
from keras_transformer.data.resampling import GROUP_ROWS, Resample, resample_rows
from keras_transformer.data.token_cache import TokenizedCorpus, gather_rows
from keras_transformer.data.windows import SentenceLengths
from keras_transformer.errors import InputError

Ids: TypeAlias = npt.NDArray[np.int32]
Batch: TypeAlias = tuple[dict[str, Ids], Ids]


def training_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    mix_weights: Sequence[float] | None = None,
    resample: tuple[Resample | None, Resample | None] | None = None,
    seed: int = 0,
    first_step: int = 0,
    epochs: int | None = None,
    replicas: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yields batches of pairs that are shuffled over the whole corpus, differently in each epoch.

    Which pairs make a batch does not depend on the number of replicas and shards.

    Args:
        corpus: the pairs to train on.
        batch_tokens: bound on source tokens and on target tokens of a batch, padding included.
        mix_weights: share of the pairs that each of the corpora in `corpus` gives; None means
            that every pair occurs exactly once an epoch.
        resample: subword regularization: samples segmentations of source and of target sentences
            from ids and a seed, as `SubwordSampler` does; None for a side that has one only.
            Samples that do not fit are discarded.
        seed: at least 0; the order depends on it, the epoch and the corpus alone.
        first_step: batches to skip from the start of epoch 0, without making them.
        epochs: number of epochs, counted from epoch 0; None is endless.
        replicas: devices that share a batch, over all workers. Batches are padded with empty rows
            to a multiple of it; for 2, 4 or 8 only batches of fewer than 8 rows need that.
        shard: index of a worker and number of workers: which equal slice of each batch to make.

    Raises:
        InputError: an argument is out of range, or a sentence longer than `batch_tokens`.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6]], [[7]])
        >>> inputs, labels = next(training_batches(corpus, batch_tokens=3))
        >>> inputs["source"].tolist(), inputs["target"].tolist(), labels.tolist()
        ([[5, 6, 3]], [[2, 7]], [[7, 3]])
    """
    if seed < 0 or first_step < 0:
        raise InputError(f"seed and first_step must be at least 0, got {seed} and {first_step}")
    _check_shard(replicas, shard)
    bucketing = bucket_corpus(corpus, batch_tokens=batch_tokens, mix_weights=mix_weights)
    first_epoch, first_batch = divmod(first_step, sum(bucketing.batches))

    def generate() -> Iterator[Batch]:
        skipped = first_batch
        for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
            planned = plan_epoch(bucketing, epoch=epoch, seed=seed, first_batch=skipped)
            for number, batch in enumerate(planned, skipped):
                yield make_batch(
                    corpus,
                    batch,
                    replicas=replicas,
                    shard=shard,
                    resample=resample,
                    key=(seed, epoch, number),
                )
            skipped = 0

    return generate()  # a separate generator, so that wrong arguments raise at the call


def evaluation_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    replicas: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yields every pair once, in a fixed order; arguments and errors as in `training_batches`."""
    _check_shard(replicas, shard)
    planned = plan_epoch(bucket_corpus(corpus, batch_tokens=batch_tokens))
    return (make_batch(corpus, batch, replicas=replicas, shard=shard) for batch in planned)


def bucket_corpus(
    corpus: TokenizedCorpus, *, batch_tokens: int, mix_weights: Sequence[float] | None = None
) -> Bucketing:
    """Returns the shapes of the corpus's batches; `sum(result.batches)` is steps per epoch."""
    return choose_buckets(
        SentenceLengths(corpus.source_offsets),
        SentenceLengths(corpus.target_offsets, extra=1),  # EOS
        batch_tokens=batch_tokens,
        part_offsets=corpus.part_offsets,
        histogram=corpus.histogram,
        mix_weights=mix_weights,
    )


def make_batch(
    corpus: TokenizedCorpus,
    batch: PlannedBatch,
    *,
    replicas: int = 1,
    shard: tuple[int, int] = (0, 1),
    resample: tuple[Resample | None, Resample | None] | None = None,
    key: tuple[int, ...] = (),
) -> Batch:
    """Makes one worker's rows of a planned batch; rows without a pair are all PAD_ID.

    Arguments as in `training_batches`; `key` is the seed and the indices that identify the batch.
    """
    (rows, source_length, target_length), pairs = batch
    index, count = shard
    own = math.ceil(rows / replicas) * replicas // count
    # Rows that share a seed are sampled together, whichever worker keeps them.
    first = index * own // GROUP_ROWS * GROUP_ROWS
    last = math.ceil((index + 1) * own / GROUP_ROWS) * GROUP_ROWS
    pairs = pairs[first:last]
    source, labels = (
        gather_rows(ids, offsets, pairs, (last - first, length))
        for ids, offsets, length in (
            (corpus.source_ids, corpus.source_offsets, source_length),
            (corpus.target_ids, corpus.target_offsets, target_length),
        )
    )
    ends = corpus.target_offsets[pairs + 1] - corpus.target_offsets[pairs]
    labels[np.arange(len(pairs)), ends] = EOS_ID
    if resample:
        for side, (matrix, sample) in enumerate(zip((source, labels), resample, strict=True)):
            if sample is not None:
                sentences = matrix[: len(pairs)]
                resample_rows(sentences, sample, first_row=first, key=(*key, side))
    target = np.full_like(labels, PAD_ID)
    target[: len(pairs), 0] = BOS_ID
    target[:, 1:] = np.where(labels[:, :-1] == EOS_ID, PAD_ID, labels[:, :-1])
    kept = slice(index * own - first, (index + 1) * own - first)
    return {"source": source[kept], "target": target[kept]}, labels[kept]


def _check_shard(replicas: int, shard: tuple[int, int]) -> None:
    index, count = shard
    if not 0 <= index < count or replicas < 1 or replicas % count:
        raise InputError(
            "shard must be the number of a worker, from 0, and the count of workers, of which each "
            f"has as many of the replicas; got {shard} and {replicas} replicas"
        )


def to_dataset(batches: Callable[[], Iterator[Batch]]) -> Any:
    """Wraps batches in a `tf.data.Dataset` that prefetches them.

    Args:
        batches: called at the start of each iteration over the dataset.

    Returns:
        A dataset of ({"source": [None, None], "target": [None, None]}, [None, None]), int32.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6]], [[7]])
        >>> data = to_dataset(lambda: evaluation_batches(corpus, batch_tokens=64))
    """
    import tensorflow as tf  # slow to import, and needed here only

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = ({"source": ids, "target": ids}, ids)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)
