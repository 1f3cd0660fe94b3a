"""XLA under TensorFlow: whether it compiles what is traced now."""

import keras


def in_xla() -> bool:
    """Whether XLA compiles the operations that are traced now; always under JAX."""
    if keras.backend.backend() != "tensorflow":
        return keras.backend.backend() == "jax"
    import tensorflow as tf

    return tf.__internal__.get_enclosing_xla_context() is not None
