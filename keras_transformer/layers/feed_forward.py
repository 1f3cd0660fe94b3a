"""Position-wise feed-forward networks (3.3).

Shapes: D model dimension, F inner dimension.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Dropout, Layer

ACTIVATIONS = {
    "relu": ops.relu,
    "swish": ops.silu,  # x sigmoid(x) (Ramachandran et al. 2017)
    "gelu": lambda x: ops.gelu(x, approximate=False),  # x Phi(x) (Hendrycks and Gimpel 2016)
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),  # both approximations are from there
    "gelu_sigmoid": lambda x: x * ops.sigmoid(1.702 * x),
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(Layer):
    """FFN(x) = f(x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2, where f(x) = max(0, x)).

    Args:
        inner_dim: F = d_ff.
        dropout: rate after the activation.
        activation: f, a name of `ACTIVATIONS`.

    Example:
        >>> FeedForward(32)(np.ones((2, 5, 16), "float32")).shape
        TensorShape([2, 5, 16])
    """

    def __init__(
        self, inner_dim: int, dropout: float = 0.0, activation: str = "relu", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.inner_dim = inner_dim
        self.activation = activation
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        activation = ACTIVATIONS[self.activation]
        self.inner = self._dense(self.inner_dim, "inner", input_shape, activation=activation)
        self.outer = self._dense(input_shape[-1], "outer", (*input_shape[:-1], self.inner_dim))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Returns [..., D] for x [..., D]."""
        return self.outer(self.dropout(self.inner(x), training=training))
