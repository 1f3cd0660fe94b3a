"""Batches of token ids for training and evaluation.

A batch is what Keras calls (x, y), all int32, with R rows of source length S and target length T:

    ({"source": [R, S], "target": [R, T]}, labels [R, T])

`source` ends in END_ID; `target` is START_ID and the translation; `labels` is the translation and
END_ID, so that labels[:, t] follows target[:, t]. The rest is PAD_ID, now and then whole rows.
(R, S, T) is one of a bounded number of shapes, see `choose_buckets`.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.data.buckets import Bucketing, choose_buckets
from keras_transformer.data.plan import PlannedBatch, plan_epoch
from keras_transformer.data.tokenized import TokenizedCorpus, gather_rows
from keras_transformer.errors import InputError

Ids: TypeAlias = npt.NDArray[np.int32]
Batch: TypeAlias = tuple[dict[str, Ids], Ids]


def training_batches(
    corpus: TokenizedCorpus,
    *,
    batch_tokens: int,
    seed: int = 0,
    first_step: int = 0,
    epochs: int | None = None,
    rows_multiple: int = 1,
) -> Iterator[Batch]:
    """Yields batches in an order that is shuffled over the whole corpus, anew in each epoch.

    Args:
        corpus: the pairs to train on, each of which occurs exactly once an epoch.
        batch_tokens: bound on source tokens and on target tokens of a batch, padding included.
        seed: at least 0; the order follows from it, the epoch and the corpus alone.
        first_step: batches to skip from the start of epoch 0; skipping makes none of them.
        epochs: epochs to go through, counted from epoch 0; None never stops.
        rows_multiple: divides every batch's rows; the number of replicas that share a batch.

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
    bucketing = bucket_corpus(corpus, batch_tokens=batch_tokens, rows_multiple=rows_multiple)
    first_epoch, skipped = divmod(first_step, sum(bucketing.batches))

    def generate() -> Iterator[Batch]:
        for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
            planned = plan_epoch(bucketing, epoch=epoch, seed=seed)
            for batch in planned[skipped if epoch == first_epoch else 0 :]:
                yield make_batch(corpus, batch)

    return generate()  # a generator of its own, so that wrong arguments are found out at once


def evaluation_batches(
    corpus: TokenizedCorpus, *, batch_tokens: int, rows_multiple: int = 1
) -> Iterator[Batch]:
    """Yields every pair once, in a fixed order; arguments and errors as in `training_batches`."""
    bucketing = bucket_corpus(corpus, batch_tokens=batch_tokens, rows_multiple=rows_multiple)
    return (make_batch(corpus, batch) for batch in plan_epoch(bucketing))


def bucket_corpus(
    corpus: TokenizedCorpus, *, batch_tokens: int, rows_multiple: int = 1
) -> Bucketing:
    """Returns the shapes of the corpus's batches; `sum(result.batches)` is steps per epoch."""
    return choose_buckets(
        corpus.source_lengths,
        corpus.target_lengths,
        batch_tokens=batch_tokens,
        rows_multiple=rows_multiple,
    )


def make_batch(corpus: TokenizedCorpus, batch: PlannedBatch) -> Batch:
    """Gathers the ids of a planned batch; rows beyond its pairs are PAD_ID throughout."""
    (rows, source_length, target_length), pairs = batch
    source = gather_rows(corpus.source_ids, corpus.source_offsets, pairs, (rows, source_length))
    labels = gather_rows(corpus.target_ids, corpus.target_offsets, pairs, (rows, target_length))
    target = np.full_like(labels, PAD_ID)
    target[: len(pairs), 0] = START_ID
    target[:, 1:] = labels[:, :-1]
    ends = corpus.target_offsets[pairs + 1] - corpus.target_offsets[pairs]
    labels[np.arange(len(pairs)), ends] = END_ID
    return {"source": source, "target": target}, labels


def to_dataset(batches: Callable[[], Iterator[Batch]]) -> Any:
    """Wraps batches in a `tf.data.Dataset` that makes them in the background.

    Args:
        batches: called for each pass over the data.

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
