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


# Depthwise separable convolutions over time, in place of a feed-forward layer.
#
# Shapes: B batch, T length, D model dimension, F inner dimension; while decoding, W hypotheses.


@keras.saving.register_keras_serializable(package="keras_transformer")
class SeparableConvolution(Layer):
    """A convolution of each feature by itself, then a product that mixes the features.

    Args:
        units: features of the output.
        width: tokens that a token's output depends on.
        is_causal: whether these are the token and those before it; else it is in their middle.
    """

    def __init__(self, units: int, width: int, is_causal: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.width = width
        self.is_causal = is_causal

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        limit = (3 / self.width) ** 0.5  # keeps the variance
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.width, input_shape[-1]),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )
        self.mixing = self._dense(self.units, "mixing", input_shape)

    def call(self, x: Tensor) -> Tensor:
        """Returns [B, T, units] for x [B, T, D], as if zeros stood around it."""
        before = self.width - 1 if self.is_causal else self.width // 2
        after = self.width - 1 - before
        padded = ops.pad(x, ((0, 0), (before, after), (0, 0)))
        length = ops.shape(x)[1]
        shifted = [padded[:, index : index + length] for index in range(self.width)]
        return self._mix(shifted)

    def step(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Reads one more token of each hypothesis.

        Args:
            x: [B, W, D], the new tokens.
            window: [B, W, width - 1, D], the tokens before them.

        Returns:
            [B, W, units], and the window for the next token.
        """
        window = ops.concatenate([window, x[:, :, None]], axis=2)
        return self._mix([window[:, :, index] for index in range(self.width)]), window[:, :, 1:]

    def empty_window(self, batch: int | Tensor, num_hypotheses: int) -> Tensor:
        """Returns the window before the first token, zeros."""
        shape = (batch, num_hypotheses, self.width - 1, self.kernel.shape[1])
        return ops.zeros(shape, self.compute_dtype)

    def _mix(self, tokens: list[Tensor]) -> Tensor:
        kernel = ops.cast(self.kernel, self.compute_dtype)
        return self.mixing(sum(x * kernel[index] for index, x in enumerate(tokens)))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SeparableConvolutions(Layer):
    """Two separable convolutions, of widths 3 and 5, with an activation between them.

    The transition "sepconv" of tensor2tensor's Universal Transformer.

    Args:
        inner_dim: F = d_ff.
        dropout: rate after the activation.
        activation: see `FeedForward`.
        is_causal: see `SeparableConvolution`.
    """

    def __init__(
        self,
        inner_dim: int,
        dropout: float = 0.0,
        activation: str = "relu",
        is_causal: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.inner_dim = inner_dim
        self.activation = activation
        self.is_causal = is_causal
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: Any, *other_shapes: Any) -> None:
        options = dict(is_causal=self.is_causal, dtype=self.dtype_policy)
        self.inner = SeparableConvolution(self.inner_dim, 3, name="inner", **options)
        self.inner.build(input_shape)
        self.outer = SeparableConvolution(input_shape[-1], 5, name="outer", **options)
        self.outer.build((*input_shape[:-1], self.inner_dim))

    def call(
        self, x: Tensor, is_real: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Returns [B, T, D] for x [B, T, D]; padding, where `is_real` [B, T] is False, is 0."""

        def without_padding(x: Tensor) -> Tensor:
            return x if is_real is None else ops.where(is_real[..., None], x, 0)

        y = self._activate(self.inner(without_padding(x)))
        return self.outer(without_padding(self.dropout(y, training=training)))

    def step(self, x: Tensor, windows: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        """Reads the new tokens x [B * W, D]; returns as many rows and the next windows."""
        num_hypotheses = windows[0].shape[1]
        y, inner = self.inner.step(ops.reshape(x, (-1, num_hypotheses, x.shape[-1])), windows[0])
        y, outer = self.outer.step(self._activate(y), windows[1])
        return ops.reshape(y, (-1, y.shape[-1])), (inner, outer)

    def empty_windows(self, batch: int | Tensor, num_hypotheses: int) -> tuple[Tensor, Tensor]:
        """Returns the windows of both convolutions before the first token."""
        layers = (self.inner, self.outer)
        first, second = (layer.empty_window(batch, num_hypotheses) for layer in layers)
        return first, second

    def _activate(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](x)
