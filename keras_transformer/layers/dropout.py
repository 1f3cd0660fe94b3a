"""Dropout (5.4): exact rates in every precision, masks that differ between replicas.

Keras compares uniform numbers of the input's precision with the rate; bfloat16 has 128 of them, so
that a rate of 0.1 drops 10.2 %. Under TensorFlow a hash of an entry's number and of the seed
decides: with XLA the kernels that use the mask compute it, forward and backward, and no random
numbers are written to memory.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, with exact rates in bfloat16 and different masks on each replica.

    Both hold under TensorFlow; on other backends this is `keras.layers.Dropout`.
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        """Returns the inputs, of any shape; in training a fraction `rate` of them is 0."""
        if not training or not self.rate:
            return inputs
        if not ON_TENSORFLOW or self.rate == 1:
            return keras.random.dropout(inputs, self.rate, self.noise_shape, self.seed_generator)
        sizes = ops.shape(inputs)
        shape = [
            sizes[axis] if size is None else size
            for axis, size in enumerate(self.noise_shape or [None] * len(sizes))
        ]
        keeps = _random_mask(tf.stack(shape), self.rate, self.seed_generator.next(), _replica())
        keeps.set_shape([None if tf.is_tensor(size) else size for size in shape])
        return ops.where(keeps, inputs * (1 / (1 - self.rate)), 0.0)


def _replica() -> Any:
    """Returns the number of this replica of a strategy, for which Keras's seeds are the same."""
    context = tf.distribute.get_replica_context()
    is_one_of_several = context is not None and context.num_replicas_in_sync > 1
    return context.replica_id_in_sync_group if is_one_of_several else 0


def _traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that graphs call: they would trace its operations at each call."""
    return tf.function(function, autograph=False) if ON_TENSORFLOW else function


@_traced_once
def _random_mask(shape: Tensor, rate: float, seed: Tensor, replica: Tensor) -> Tensor:
    """Returns a mask of this shape, True for entries to keep, from a hash of their numbers."""
    first, second = tf.unstack(tf.cast(seed, tf.uint32))
    first += tf.cast(replica, tf.uint32)
    for _ in range(2):  # seeds that differ by one, in either word, become keys without relation
        first += _mixed(second)
        second += _mixed(first)
    numbers = tf.reshape(tf.cast(tf.range(tf.reduce_prod(shape)), tf.uint32), shape)
    # 2 ** 32 / golden ratio, odd: neighbours are far apart before their bits are mixed.
    bits = _mixed((numbers ^ first) * tf.constant(0x9E3779B1, tf.uint32) + second)
    largest = tf.uint32.max
    return bits >= tf.constant(min(round(rate * (largest + 1)), largest), tf.uint32)


def _mixed(bits: Tensor) -> Tensor:
    """Mixes the bits of uint32 numbers: each depends on all others (MurmurHash3)."""

    def folded(bits: Tensor, shift: int) -> Tensor:
        return bits ^ tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint32))

    bits = folded(bits, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    bits = folded(bits, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    return folded(bits, 16)
