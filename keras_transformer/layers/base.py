"""The base class of all layers, and dropout (5.4) for models that train on several devices."""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor


class Layer(keras.layers.Layer):
    """A Keras layer whose output has the shape and the Keras mask of its first input.

    Keras makes a layer's configuration from the arguments of its constructor if they are numbers,
    text or None; here a dtype policy may be an object too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # The configuration gets the policy's name; `__init__` gets the object.
        if isinstance(kwargs.get("dtype"), keras.DTypePolicy):
            kwargs["dtype"] = kwargs["dtype"].name
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def _dense(
        self, units: int | None, name: str, input_shape: Any, **options: Any
    ) -> keras.layers.Dense:
        """Returns a built Dense layer of this layer's dtype."""
        dense = Dense(units, name=name, dtype=self.dtype_policy, **options)
        dense.build(input_shape)
        return dense


class ReadsMemory:
    """Base of layers that are called with x and a memory, and return the shape of x.

    Keras finds the shapes by the names of these arguments.
    """

    def build(
        self, x_shape: tuple[int | None, ...], memory_shape: tuple[int | None, ...] | None = None
    ) -> None:
        parent: Any = super()
        parent.build(x_shape, memory_shape)

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], memory_shape: Any = None
    ) -> tuple[int | None, ...]:
        return tuple(x_shape)


def with_scores(result: Any) -> tuple[Any, ...]:
    """Returns a layer's output and its attention scores, or None if it was not asked for them."""
    return result if isinstance(result, tuple) else (result, None)


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, with different masks on each replica of a `tf.distribute` strategy.

    Example:
        >>> Dropout(0.1)(np.ones((2, 3, 8), "float32"), training=True).shape
        TensorShape([2, 3, 8])
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        """Returns the inputs, of any shape; in training a fraction `rate` of them is 0."""
        if not training or not self.rate:
            return inputs
        seeds = self.seed_generator
        if keras.backend.backend() == "tensorflow":
            seeds = ReplicaSeeds(seeds)
        return keras.random.dropout(inputs, self.rate, self.noise_shape, seed=seeds)


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _replica() -> Any:
        """Returns the number of this replica; None if there is only one."""
        context = tf.distribute.get_replica_context()
        is_one_of_several = context is not None and context.num_replicas_in_sync > 1
        return context.replica_id_in_sync_group if is_one_of_several else None

else:

    def _replica() -> Any:
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """Keras's Dense, whose files keep the weights of `enable_lora` beside the kernel.

    Keras's own files have the merged kernel, and weights of 0 that cannot be trained any more.
    """

    lora_enabled: bool

    def quantize(self, mode: Any = None, type_check: bool = True, **kwargs: Any) -> None:
        super().quantize(mode, type_check=False, **kwargs)  # this subclass computes the same

    def save_own_variables(self, store: Any) -> None:
        is_enabled = self.lora_enabled
        self.lora_enabled = False  # which would merge
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = is_enabled
        if is_enabled:
            store["lora_kernel_a"] = self.lora_kernel_a
            store["lora_kernel_b"] = self.lora_kernel_b

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        if self.lora_enabled and "lora_kernel_a" in store.keys():  # noqa: SIM118
            self.lora_kernel_a.assign(store["lora_kernel_a"])
            self.lora_kernel_b.assign(store["lora_kernel_b"])
