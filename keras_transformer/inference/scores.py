"""What a model makes of given translations: their probabilities, and the attention to the source.

Rows go through the model in chunks, one chunk at a time, so that memory has a bound whatever the
size of the request.

Shapes: B sentences, S source length, T target length, both with EOS; R rows of a chunk,
V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding import Tensor, TranslationModel

# Logits and attention weights of a chunk: half a gigabyte in float32.
_MAX_VALUES = 1 << 27
_NUM_HEADS = 16  # as many as the largest of the paper's models has


def score(
    model: TranslationModel, source: Tensor, target: Tensor, labels: Tensor, max_length: int
) -> dict[str, Tensor]:
    """Returns the log-probabilities of translations.

    Args:
        model: the model.
        source: ids [B, S].
        target: ids [B, T], shifted right.
        labels: ids [B, T], the translations with EOS.
        max_length: the most that T can be.

    Returns:
        "token_scores", float32 [B, T], natural logarithms of the probabilities of the labels,
        0 for padding; "scores", float32 [B], their sums; "lengths", int32 [B], tokens with EOS.
    """
    vocabulary_size = model.config.target_size
    length = tf.shape(labels)[1]

    def log_probs(source: Tensor, target: Tensor, labels: Tensor) -> Tensor:  # [R, T]
        logits = model.call({"source": source, "target": target}, training=False)
        # At the labels only: the log-probabilities of the whole vocabulary are never written.
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))

    def choose(*rows: Tensor) -> Tensor:
        return tf.cond(
            tf.cast(length, tf.int64) * vocabulary_size > _MAX_VALUES,
            lambda: _log_probs_by_step(model, rows, max_length),
            lambda: log_probs(*rows),
        )

    token_scores = _map_rows(
        choose if max_length * vocabulary_size > _MAX_VALUES else log_probs,
        (source, target, labels),
        _rows_at_once(model, source, target, vocabulary_size),
        tf.zeros([0, length]),
    )
    is_real = labels != PAD_ID
    token_scores = tf.where(is_real, token_scores, 0.0)
    return {
        "scores": tf.reduce_sum(token_scores, axis=1),
        "token_scores": token_scores,
        "lengths": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
    }


def attention(model: Any, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Returns the attention of translations to their sources, float32 [B, T, S].

    Row t has the weights, averaged over heads, with which the decoder's last layer reads the source
    to predict label t. They sum to 1, or to 0 for padding. Arguments as in `score`; the model has
    `attention`.
    """

    def weights(source: Tensor, target: Tensor, labels: Tensor) -> Tensor:  # [R, T, S]
        weights = tf.cast(model.attention({"source": source, "target": target}), tf.float32)
        return tf.where((labels != PAD_ID)[:, :, None], weights, 0.0)

    return _map_rows(
        weights,
        (source, target, labels),
        _rows_at_once(model, source, target),
        tf.zeros([0, tf.shape(target)[1], tf.shape(source)[1]]),
    )


def token_values(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Returns what the model has to say of each token, see `Seq2SeqModel.token_values`.

    Empty where the model lacks that method. Arguments as in `score`.
    """
    if not hasattr(model, "token_values"):
        return {}

    def values(source: Tensor, target: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = model.token_values({"source": source, "target": target})
        return found

    at_once = _rows_at_once(model, source, target)
    none = values(source[:0], target[:0])
    found: dict[str, Tensor] = _map_rows(values, (source, target), at_once, none)
    return found


def _rows_at_once(
    model: TranslationModel, source: Tensor, target: Tensor, vocabulary_size: int = 0
) -> Tensor:
    """Returns how many rows may have their logits and attention in memory, at least 1."""
    source_length, length = (tf.shape(ids, tf.int64)[1] for ids in (source, target))
    models = getattr(model, "models", [model])  # of an ensemble
    values_per_pair = max(getattr(each.config, "values_per_pair", 1) for each in models)
    widest = values_per_pair * source_length * length
    weights = tf.maximum(_NUM_HEADS * (source_length + length) ** 2, widest)
    values = length * vocabulary_size + weights
    return tf.cast(tf.maximum(_MAX_VALUES // tf.maximum(values, 1), 1), tf.int32)


def _map_rows(
    function: Callable[..., Any], columns: Sequence[Tensor], at_once: Tensor, none: Any
) -> Any:
    """Returns `function` of `at_once` rows of all columns [B, ...] at a time, joined.

    `none` is its result for no rows: a tensor, or a nest of tensors.
    """
    num_rows = tf.shape(columns[0])[0]

    def advance(first: Tensor, results: Any) -> tuple[Tensor, Any]:
        new = function(*(column[first : first + at_once] for column in columns))
        join = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), results, new)
        return first + at_once, join

    _, results = tf.while_loop(
        lambda first, _: first < num_rows,
        advance,
        (tf.constant(0), none),
        shape_invariants=(
            tf.TensorShape([]),
            tf.nest.map_structure(lambda each: tf.TensorShape([None] * each.shape.rank), none),
        ),
        parallel_iterations=1,  # by default ten chunks are in memory at once
    )
    return results


def _log_probs_by_step(model: TranslationModel, rows: Sequence[Tensor], max_length: int) -> Tensor:
    """Returns the log-probabilities [R, T] of labels, with logits of one position at a time.

    `rows` are source, target and labels, see `score`.
    """
    source, target, labels = rows
    num_rows, length = tf.unstack(tf.shape(labels))
    state = model.encode(source, capacity=max_length)

    def advance(time: Tensor, parts: Any, results: Tensor) -> tuple[Tensor, Any, Tensor]:
        ancestors = tf.where(tf.range(max_length) <= time, 0, -1)
        ids = tf.ensure_shape(target[:, time : time + 1], [None, 1])
        logits, after = model.step(
            ids,
            state._replace(
                recurrent_state=parts[0],
                kv_cache=parts[1],
                time=time,
                ancestors=tf.tile(ancestors[None, None], [num_rows, 1, 1]),
            ),
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels[:, time : time + 1], tf.cast(logits, tf.float32)
        )
        parts = (after.recurrent_state, after.kv_cache)
        return time + 1, parts, tf.concat([results, -losses], axis=1)

    parts = (state.recurrent_state, state.kv_cache)
    shapes = tf.nest.map_structure(lambda leaf: leaf.shape, parts)
    *_, results = tf.while_loop(
        lambda time, *_: time < length,
        advance,
        (tf.constant(0), parts, tf.zeros([num_rows, 0])),
        shape_invariants=(tf.TensorShape([]), shapes, tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return results
