"""Teacher forcing: probabilities of given translations, and their attention to the source.

Rows go through the model in chunks, one chunk at a time, so that memory does not grow with the
size of a request.

Shapes: B sentences, S source length, T target length, both with EOS; R rows of a chunk,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.decoding import Tensor, TranslationModel

_MAX_VALUES = 1 << 27  # logits and attention weights of a chunk: half a gigabyte in float32
_NUM_HEADS = 16  # as many as the paper's largest model has


def score(model: TranslationModel, source: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Returns the log-probabilities of translations.

    Args:
        model: a `TranslationModel`.
        source: ids [B, S].
        labels: ids [B, T], the translations with EOS, then PAD.

    Returns:
        "token_scores", float32 [B, T], natural logarithms of the probabilities of the labels,
        0 for padding; "scores", float32 [B], their sums; "lengths", int32 [B], tokens with EOS.
    """

    def log_probs(source: Tensor, labels: Tensor) -> Tensor:  # [R, T]
        logits = model.call(_inputs(source, labels), training=False)
        # Never writes the log-probabilities of the whole vocabulary.
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))

    most_rows = _most_rows(model, source, labels, model.config.target_size)
    none = tf.zeros([0, tf.shape(labels)[1]])
    token_scores = _map_rows(log_probs, most_rows, none, source, labels)
    is_real = labels != PAD_ID
    token_scores = tf.where(is_real, token_scores, 0.0)
    return {
        "scores": tf.reduce_sum(token_scores, axis=1),
        "token_scores": token_scores,
        "lengths": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
    }


def attention(model: Any, source: Tensor, labels: Tensor) -> Tensor:
    """Returns the attention of translations to their sources, float32 [B, T, S].

    Row t has the weights with which the decoder reads the source to predict label t: the mean of
    the last layer's heads. They sum to 1, or to 0 for padding. Arguments as in `score`; the model
    has `attention`.
    """

    def weights(source: Tensor, labels: Tensor) -> Tensor:  # [R, T, S]
        weights = tf.cast(model.attention(_inputs(source, labels)), tf.float32)
        return tf.where((labels != PAD_ID)[:, :, None], weights, 0.0)

    most_rows = _most_rows(model, source, labels)
    none = tf.zeros([0, tf.shape(labels)[1], tf.shape(source)[1]])
    return _map_rows(weights, most_rows, none, source, labels)


def _inputs(source: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Returns the inputs of a model that predicts the labels."""
    target = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
    return {"source": source, "target": target}


def _most_rows(
    model: TranslationModel, source: Tensor, labels: Tensor, vocabulary_size: int = 0
) -> Tensor:
    """Returns how many rows may have their logits and attention in memory, at least 1."""
    source_length, length = (tf.shape(ids, tf.int64)[1] for ids in (source, labels))
    models = getattr(model, "models", [model])  # of an ensemble
    values_per_pair = max(getattr(model.config, "values_per_pair", 1) for model in models)
    widest = values_per_pair * source_length * length
    weights = tf.maximum(_NUM_HEADS * (source_length + length) ** 2, widest)
    values = length * vocabulary_size + weights
    return tf.cast(tf.maximum(_MAX_VALUES // tf.maximum(values, 1), 1), tf.int32)


def _map_rows(
    function: Callable[..., Tensor], most_rows: Tensor, none: Tensor, *columns: Tensor
) -> Tensor:
    """Returns `function` of at most so many rows of all columns [B, ...] at a time, joined.

    `none` is its result for no rows.
    """

    def advance(first: Tensor, results: Tensor) -> tuple[Tensor, Tensor]:
        new = function(*(column[first : first + most_rows] for column in columns))
        return first + most_rows, tf.concat([results, new], axis=0)

    num_rows = tf.shape(columns[0])[0]
    _, results = tf.while_loop(
        lambda first, _: first < num_rows,
        advance,
        (tf.constant(0), none),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None] * none.shape.rank)),
        parallel_iterations=1,  # by default ten chunks are in memory at once
    )
    return results
