"""Dropout (5.4) that models of several devices can train with."""

import keras

from keras_transformer.decoding import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, with masks of its own on each replica of a `tf.distribute` strategy.

    The state of Keras's random numbers is the same on all replicas: row by row they would drop
    the same units. On one device this is Keras's layer.
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        """Returns the inputs, of any shape; while training, a share `rate` of them is 0."""
        if training and 0 < self.rate < 1 and _is_one_of_several_replicas():
            return _drop_on_replica(self, inputs)
        return super().call(inputs, training=training)


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _is_one_of_several_replicas() -> bool:
        context = tf.distribute.get_replica_context()
        return context is not None and context.num_replicas_in_sync > 1

    def _drop_on_replica(layer: Dropout, inputs: Tensor) -> Tensor:
        own_seed, calls = tf.unstack(layer.seed_generator.next())
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.stack([own_seed + tf.cast(replica, own_seed.dtype), calls])
        seed = tf.cast(seed % (tf.int32.max - 1), tf.int32)  # as Keras does, for XLA
        shape = layer.noise_shape and [
            tf.shape(inputs)[axis] if size is None else size
            for axis, size in enumerate(layer.noise_shape)
        ]
        return tf.nn.experimental.stateless_dropout(inputs, layer.rate, seed, noise_shape=shape)

else:

    def _is_one_of_several_replicas() -> bool:
        return False
