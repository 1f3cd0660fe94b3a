"""Long short-term memory (Hochreiter and Schmidhuber 1997).

Shapes: B batch, T length, D input width, U units.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer


def scan(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    inputs: Tensor,
    state: Any,
    mask: Tensor | None = None,
    backwards: bool = False,
) -> tuple[Tensor, Any]:
    """Runs `step(input [B, ...], state) -> (output [B, ...], state)` at each time step.

    The loop is Keras's RNN: `ops.scan` has no gradient under TensorFlow's XLA.

    Args:
        step: what to run.
        inputs: [B, T, ...].
        state: nest of tensors [B, ...] before the first step.
        mask: bool [B, T], False at times to skip, which change no state; None skips none.
        backwards: whether to begin at the last time.

    Returns:
        The outputs, float32 [B, T, ...], and the state after the last step, in float32.
    """
    loop = keras.layers.RNN(
        _Cell(step),
        return_sequences=True,
        return_state=True,
        go_backwards=backwards,
        dtype="float32",
        autocast=False,
    )
    outputs, state = loop(inputs, initial_state=[state], mask=mask)
    return (ops.flip(outputs, axis=1) if backwards else outputs), state


class _Cell:
    """A step in the form that Keras's RNN takes; states have the sizes that they come with."""

    state_size = 0
    compute_dtype = "float32"

    def __init__(self, step: Callable[[Tensor, Any], tuple[Tensor, Any]]) -> None:
        self._step = step

    def __call__(self, inputs: Tensor, states: Any) -> tuple[Tensor, list[Any]]:
        output, state = self._step(inputs, states[0])
        return output, [state]

    call = __call__


class LSTMState(NamedTuple):
    """What an LSTM remembers."""

    hidden: Tensor  # float32 [B, U], h
    cell: Tensor  # float32 [B, U], c


@keras.saving.register_keras_serializable(package="keras_transformer")
class LSTM(Layer):
    """One layer of LSTM; no cuDNN kernel, which neither XLA nor a CPU could run.

    Kernel [D, 4 U], recurrent kernel [U, 4 U] and bias [4 U] have the gates in the order of
    Keras and PyTorch: input, forget, candidate, output.

    Args:
        units: U.
        backwards: whether the end of a sequence is read first.
    """

    def __init__(self, units: int, backwards: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.backwards = backwards

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.projection = self._dense(
            4 * self.units,
            "projection",
            input_shape,
            # An open forget gate at first (Gers et al. 2000).
            bias_initializer=lambda shape, dtype: ops.repeat(
                ops.convert_to_tensor([0.0, 1.0, 0.0, 0.0], dtype), self.units
            ),
        )
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel",
            shape=(self.units, 4 * self.units),
            # TensorFlow has its decomposition in float32 and float64 only.
            initializer=lambda shape, dtype: ops.cast(
                keras.initializers.Orthogonal()(shape, "float32"), dtype
            ),
        )

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the outputs [B, T, U] for x [B, T, D]; arguments as in `read`."""
        return self.read(x, mask)[0]

    def read(
        self, x: Tensor, mask: Tensor | None = None, state: LSTMState | None = None
    ) -> tuple[Tensor, LSTMState]:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            mask: bool [B, T], True at real tokens; None where all are.
            state: before the first token; None means zeros.

        Returns:
            Outputs [B, T, U], and the state after the last real token.
        """
        if state is None:
            zeros = ops.zeros((ops.shape(x)[0], self.units), "float32")
            state = LSTMState(zeros, zeros)

        def step(projected: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
            state = self.step(projected, state)
            return state.hidden, state

        # One product projects all tokens at once: only the recurrent one remains in the loop.
        outputs, state = scan(step, self.projection(x), state, mask, self.backwards)
        return ops.cast(outputs, self.compute_dtype), state

    def step(self, projected: Tensor, state: LSTMState) -> LSTMState:
        """Reads one more token, `projection` of it [B, 4 U], and returns the next state."""
        hidden = ops.cast(state.hidden, self.compute_dtype)
        kernel = ops.cast(self.recurrent_kernel, self.compute_dtype)
        gates = ops.cast(projected + ops.matmul(hidden, kernel), "float32")
        write, keep, candidate, show = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(keep) * state.cell + ops.sigmoid(write) * ops.tanh(candidate)
        return LSTMState(ops.sigmoid(show) * ops.tanh(cell), cell)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)
