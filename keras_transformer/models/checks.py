"""What a batch of ids must be, checked once where it enters a model."""

from typing import Any

import keras

from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.decoding import Tensor
from keras_transformer.errors import InputError

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def check_shape(name: str, ids: Any) -> None:
    """Raises `InputError` for ragged ids, or those of one sequence [T]."""
    if hasattr(ids, "to_tensor"):
        raise InputError(f"{name} must be ids padded with 0, got {type(ids).__name__}")
    if getattr(ids, "ndim", None) == 1:
        raise InputError(f"{name} must be ids [B, T], got the shape {tuple(ids.shape)}")


def checked_ids(name: str, ids: Tensor, vocabulary_size: int, longest: int | None = None) -> Tensor:
    """Returns the ids [B, T] of a batch under TensorFlow, or raises an error.

    It is an `InputError` for eager ids and `tf.errors.InvalidArgumentError` when a graph runs; XLA
    drops the check.

    Args:
        name: "source", "target" or "labels".
        ids: rows of tokens, then padding; a target begins with BOS.
        vocabulary_size: ids are below it.
        longest: the most tokens of a row; None for any number.
    """
    check_shape(name, ids)
    ids = tf.convert_to_tensor(ids)
    if ids.dtype.is_floating:
        ids = require(ids, tf.reduce_all(ids == tf.floor(ids)), f"{name} must be whole numbers")
    is_token = tf.not_equal(ids, PAD_ID)
    largest = tf.reduce_max(tf.bitcast(tf.cast(ids, tf.int32), tf.uint32))  # negative ones too
    message = f"{name} must be ids of a vocabulary of {vocabulary_size}, padded with 0 (not -100)"
    ids = require(ids, largest < tf.constant(vocabulary_size, tf.uint32), message)
    is_padded_at_end = ~tf.reduce_any(is_token[:, 1:] & ~is_token[:, :-1])
    ids = require(ids, is_padded_at_end, f"{name} has padding, 0, before a token; pad at the end")
    if name == "target":
        is_shifted = tf.reduce_all((ids[:, :1] == BOS_ID) | ~is_token[:, :1])
        message = f"rows of target must begin with BOS, {BOS_ID}: the labels, shifted right"
        ids = require(ids, is_shifted, message)
    if name == "labels":
        message = f"labels have BOS, {BOS_ID}: they are the target without it, and EOS at the end"
        ids = require(ids, ~tf.reduce_any(ids == BOS_ID), message)
    if longest is not None:
        message = f"{name} has a row of more tokens than the model's {longest} learned positions"
        ids = require(ids, ~tf.reduce_any(is_token[:, longest:]), message)
    return ids


def require(ids: Tensor, is_met: Tensor, message: str) -> Tensor:
    """Returns the ids; raises an error with the message, also in a graph, if a condition fails."""
    if tf.executing_eagerly():
        if not is_met:
            raise InputError(message)
        return ids
    with tf.control_dependencies([tf.debugging.Assert(is_met, [message])]):
        return tf.identity(ids)
