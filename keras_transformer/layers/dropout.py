"""Dropout (5.4): exact rates in every precision, masks that differ between replicas.

Under TensorFlow the layer draws its mask itself. Keras compares uniform numbers of the input's
precision with the rate; bfloat16 has 128 of them, so that a rate of 0.1 drops 10.2 %.

Without XLA, 16 random bits decide on an entry, two entries from each 32-bit number. With XLA, a
hash of the entry's number and the seed decides: the kernels that use the mask compute it, forward
and backward, and no random numbers are written to memory.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.xla import in_xla

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


class ReplicaSeeds(keras.random.SeedGenerator):
    """The seeds of another generator, different on each replica of a `tf.distribute` strategy.

    Keras's random state is the same on all replicas, so they would all drop the same entries. On
    one device nothing changes.

    Args:
        generator: has the state.
    """

    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        self._generator = generator  # the only state: `super().__init__` would add another

    def next(self, ordered: bool = True) -> Tensor:
        seed, replica = self._generator.next(ordered), _replica()
        return seed if replica is None else seed + ops.cast(ops.stack([replica, 0]), seed.dtype)


def _replica() -> Any:
    """Returns the number of this replica; None if there is only one."""
    if not ON_TENSORFLOW:
        return None
    context = tf.distribute.get_replica_context()
    is_one_of_several = context is not None and context.num_replicas_in_sync > 1
    return context.replica_id_in_sync_group if is_one_of_several else None


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, with exact rates in bfloat16 and different masks on each replica.

    Both hold under TensorFlow; on other backends this is `keras.layers.Dropout`.

    Example:
        >>> Dropout(0.1)(np.ones((2, 3, 8), "float32"), training=True).shape
        TensorShape([2, 3, 8])
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
        seed = ReplicaSeeds(self.seed_generator).next()
        keeps = (_hashed_mask if in_xla() else _random_mask)(shape, self.rate, seed)
        return ops.where(keeps, inputs * (1 / (1 - self.rate)), 0.0)


def _random_mask(shape: list[Any], rate: float, seed: Tensor) -> Tensor:
    """Returns a mask of this shape, True for entries to keep, from Philox's random bits."""
    size = math.prod(shape)
    words = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32)
    bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
    return tf.reshape(bits >= _share_of(tf.uint16, rate), shape)


def _hashed_mask(shape: list[Any], rate: float, seed: Tensor) -> Tensor:
    """Returns a mask of this shape, True for entries to keep, from a hash of their numbers."""
    first, second = tf.unstack(tf.cast(seed, tf.uint32))
    for _ in range(2):  # seeds that differ by one, in either word, become keys without relation
        first += _mixed(second)
        second += _mixed(first)
    numbers = tf.reshape(tf.cast(tf.range(math.prod(shape)), tf.uint32), shape)
    # 2 ** 32 / golden ratio, odd: neighbours are far apart before their bits are mixed.
    bits = _mixed((numbers ^ first) * tf.constant(0x9E3779B1, tf.uint32) + second)
    return bits >= _share_of(tf.uint32, rate)


def _mixed(bits: Tensor) -> Tensor:
    """Mixes the bits of uint32 numbers: each depends on all others (MurmurHash3)."""

    def folded(bits: Tensor, shift: int) -> Tensor:
        return bits ^ tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint32))

    bits = folded(bits, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    bits = folded(bits, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    return folded(bits, 16)


def _share_of(dtype: Any, rate: float) -> Tensor:
    """Returns the number below which lies the share `rate` of an unsigned type's numbers."""
    return tf.constant(min(round(rate * (dtype.max + 1)), dtype.max), dtype)
