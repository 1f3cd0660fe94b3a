"""Operations for compilation by XLA that `keras.ops` lacks."""

import functools
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor

_BACKEND = keras.backend.backend()


def in_xla() -> bool:
    """Whether XLA compiles the operations that are traced now; always under JAX."""
    if _BACKEND != "tensorflow":
        return _BACKEND == "jax"
    import tensorflow as tf

    return tf.__internal__.get_enclosing_xla_context() is not None


def max_and_sum_of_exponentials(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns max(x) [N] and sum(exp(x - max(x))) [N] of float32 x [N, V], where XLA compiles.

    Under TensorFlow it is one pass over x (the online softmax of Milakov and Gimelshein 2018).
    """
    if _BACKEND != "tensorflow":
        best = ops.max(x, axis=-1)
        return best, ops.sum(ops.exp(x - best[:, None]), axis=-1)
    from tensorflow.compiler.tf2xla.python import xla

    starts = ops.convert_to_tensor(-float("inf")), ops.convert_to_tensor(0.0)
    best, total = xla.variadic_reduce((x, ops.ones_like(x)), starts, [1], _joined_sums())
    return best, total


@functools.cache
def _joined_sums() -> Any:
    """Returns the TensorFlow function that joins the maxima and sums of two parts."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def join(best: Any, total: Any, other_best: Any, other_total: Any) -> Any:
        top = tf.maximum(best, other_best)
        shift = tf.where(tf.math.is_finite(top), top, 0.0)  # -inf - -inf is not a number
        return top, total * tf.exp(best - shift) + other_total * tf.exp(other_best - shift)

    with tf.init_scope():
        return join.get_concrete_function(*[tf.TensorSpec([], tf.float32)] * 4)


def barrier(*tensors: Tensor) -> list[Tensor]:
    """Returns the tensors; XLA under TensorFlow computes them once, not again at each use."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    result: list[Tensor] = gen_xla_ops.xla_optimization_barrier(input=list(tensors))
    return result
