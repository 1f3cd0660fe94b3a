"""Layer normalization (Ba et al. 2016), over the last axis.

Shapes: D model dimension.
"""

from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(Layer):
    """Normalizes each vector to mean 0 and variance 1, then applies a learned gain and bias.

    Args:
        epsilon: keeps the quotient finite if all entries are equal.
        form: "variance" is gain * (x - mean) / sqrt(variance + epsilon) + bias, "sigma" is
            gain * (x - mean) / (sigma + epsilon) + bias. The variance is that of the
            population: it divides by D.

    Example:
        >>> LayerNormalization()(np.ones((2, 5, 16), "float32")).shape
        TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        epsilon: float = 1e-6,
        form: Literal["variance", "sigma"] = "variance",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("form", form, ("variance", "sigma"))
        self.epsilon = epsilon
        self.form = form

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        dim = input_shape[-1]
        # Half precision would round the gain and the bias to 8 or 11 bits.
        options = dict(shape=(dim,), autocast=False)
        self.gain = self.add_weight(name="gain", initializer="ones", **options)
        self.bias = self.add_weight(name="bias", initializer="zeros", **options)

    def call(self, x: Tensor) -> Tensor:
        """Returns x [..., D] normalized, of the same shape and dtype."""
        # Half precision cannot hold the sum of squares: statistics are always float32.
        full = ops.cast(x, "float32")
        centered = full - ops.mean(full, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        if self.form == "variance":
            normal = centered * ops.rsqrt(variance + self.epsilon)
        else:
            # The square root has no finite slope at 0; a tiny floor keeps gradients finite.
            normal = centered / (ops.sqrt(ops.maximum(variance, 1e-24)) + self.epsilon)
        gain, bias = ops.cast(self.gain, "float32"), ops.cast(self.bias, "float32")
        return ops.cast(normal * gain + bias, self.compute_dtype)
