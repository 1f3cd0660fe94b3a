"""What both searches are asked: the arguments, checked and in the form that a step needs.

Shapes: B sentences.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError


class Task(NamedTuple):
    """Arguments of a search that are the same at every step.

    Attributes:
        context: nest of tensors [B, ...], the model's memory of the source sentences.
        start_ids: int32 [B], read before the first symbol.
        barred_ids: int32 [B], never generated: the start symbol, or PAD again where that is END.
        max_lengths: int32 [B], symbols a translation may have before END; 0 or more.
        result_length: int or int32 [], L: the largest of `max_lengths`, and one for END.
        alpha: float32 [B, 1] or [1, 1], exponent of the length penalty.
        end_id, pad_id: the symbols that complete a translation and that fill up after it.
    """

    context: Any
    start_ids: Tensor
    barred_ids: Tensor
    max_lengths: Tensor
    result_length: Tensor
    alpha: Tensor
    end_id: int
    pad_id: int


def make_task(
    context: Any,
    *,
    start_ids: Tensor,
    max_lengths: Tensor,
    length_penalty: Tensor,
    longest: int | None,
    end_id: int,
    pad_id: int,
) -> Task:
    """Returns the arguments of `beam_search` as a task.

    Raises:
        InputError: END and PAD are the same symbol.
    """
    if end_id == pad_id:
        raise InputError(f"end_id and pad_id must differ, both are {end_id}; give PAD its own id")
    start_ids = tf.cast(start_ids, tf.int32)
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if longest is None:
        result_length = tf.maximum(tf.reduce_max(max_lengths), 0) + 1  # 1 where B = 0
    else:
        max_lengths = tf.minimum(max_lengths, longest)
        result_length = longest + 1
    return Task(
        context=context,
        start_ids=start_ids,
        # Some models start with END, and END must remain allowed.
        barred_ids=tf.where(start_ids == end_id, pad_id, start_ids),
        max_lengths=max_lengths,
        result_length=result_length,
        alpha=tf.reshape(tf.cast(length_penalty, tf.float32), [-1, 1]),
        end_id=end_id,
        pad_id=pad_id,
    )
