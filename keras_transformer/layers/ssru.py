"""The Simpler Simple Recurrent Unit, which a small decoder has in place of self-attention.

Shapes: B batch, T length, D model dimension, W hypotheses of a sentence.
"""

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer, full_precision, run_loop
from keras_transformer.layers.masks import as_bool


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(Layer):
    """c_t = f_t c_(t-1) + (1 - f_t) W x_t, and relu(c_t), where f_t = sigmoid(W_f x_t + b_f).

    (Kim et al. 2019, "From Research to Production and Back".) No matrix product depends on c_(t-1):
    two of them read all tokens at once. All that a decoder remembers of a hypothesis is one vector,
    c, which stays in float32 at least.

    Example:
        >>> x = np.ones((2, 5, 16), "float32")
        >>> ssru = SSRU()
        >>> full, state = ssru(x), ssru.empty_state(batch=2)
        >>> for time in range(5):
        ...     y, state = ssru.step(x[:, time], state)
        >>> bool(np.allclose(y, full[:, 4], atol=1e-6))
        True
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.forget_gate = self._dense(input_shape[-1], "forget_gate", input_shape)
        self.candidate = self._dense(input_shape[-1], "candidate", input_shape, use_bias=False)

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns [B, T, D] for x [B, T, D].

        Args:
            x: [B, T, D].
            mask: bool [B, T], False at tokens that leave the state as it is; None for x's Keras
                mask.
        """
        forget, new = self._gate(x)
        if mask is not None:
            is_real = as_bool(mask, "mask")[..., None]
            forget, new = ops.where(is_real, forget, 1.0), ops.where(is_real, new, 0.0)

        def step(gated: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            forget, new = ops.split(gated, 2, axis=-1)
            state = forget * state + new
            return state, state

        # On CPUs `ops.associative_scan` takes five times as long as a loop, and does not compile
        # with XLA under TensorFlow.
        gated = ops.concatenate([forget, new], axis=-1)
        return self._output(run_loop(step, gated, ops.zeros_like(new[:, 0]))[0])

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Reads one more token of each of W hypotheses of a sentence, or of each sequence (W = 1).

        Args:
            x: [B * W, D], the new tokens.
            state: [B, W, D], c of the tokens before them, from `empty_state` at first.

        Returns:
            [B * W, D], and the next state.
        """
        forget, new = self._gate(x)
        rows = forget * ops.reshape(state, ops.shape(forget)) + new
        return self._output(rows), ops.reshape(rows, (-1, *state.shape[1:]))

    def empty_state(self, batch: int | Tensor, num_hypotheses: int = 1) -> Tensor:
        """Returns the state [B, W, D] before the first token, of a layer that is built."""
        shape = (batch, num_hypotheses, self.candidate.units)
        return ops.zeros(shape, full_precision(self.compute_dtype))

    def _gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns f and (1 - f) W x, the share of the state that stays and what is added to it."""
        full = full_precision(self.compute_dtype)
        forget = ops.sigmoid(ops.cast(self.forget_gate(x), full))
        return forget, (1.0 - forget) * ops.cast(self.candidate(x), full)

    def _output(self, state: Tensor) -> Tensor:
        return ops.cast(ops.relu(state), self.compute_dtype)
