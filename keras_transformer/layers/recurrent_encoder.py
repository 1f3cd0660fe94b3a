"""The encoder of a recurrent model: N layers of LSTM that read both ways.

Shapes: B batch, S source length, D model dimension, U units.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.lstm import LSTM, LSTMState


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentEncoder(Layer):
    """N layers, each of an LSTM that reads forwards and one that reads backwards.

    Args:
        num_layers: N.
        units: U, of each LSTM.
        bridge_activation: of what makes the decoder's first state.
        dropout: rate on the output of each layer.
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        bridge_activation: str = "relu",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.units = units
        self.dropout = Dropout(dropout, name="dropout", **options)
        self.forwards, self.backwards = (
            [
                LSTM(units, name == "backwards", name=f"{name}_{i}", **options)
                for i in range(num_layers)
            ]
            for name in ("forwards", "backwards")
        )
        self.hidden_bridges, self.cell_bridges = (
            [
                keras.layers.Dense(units, bridge_activation, name=f"{name}_bridge_{i}", **options)
                for i in range(num_layers)
            ]
            for name in LSTMState._fields
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            forwards.build(input_shape)
            backwards.build(input_shape)
            input_shape = self.compute_output_shape(input_shape)
        for bridge in (*self.hidden_bridges, *self.cell_bridges):
            bridge.build((None, 2 * self.units))

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        """Returns [B, S, 2 U]; arguments as in `read`."""
        return self.read(x, mask, training)[0]

    def read(
        self, x: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> tuple[Tensor, tuple[LSTMState, ...]]:
        """Reads whole sequences.

        Args:
            x: [B, S, D].
            mask: bool [B, S], True at real tokens; None where all are.
            training: whether dropout is on.

        Returns:
            The memory [B, S, 2 U], and for each layer of a decoder its first state [B, U], made of
            the last ones here, h_0 = relu(W [h_S; h_1] + b) and c_0 likewise (See et al. 2017,
            section 2.1).
        """
        states: list[LSTMState] = []
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            first, first_state = forwards.read(x, mask)
            last, last_state = backwards.read(x, mask)
            x = self.dropout(ops.concatenate([first, last], axis=-1), training=training)
            states.append(self._bridge(len(states), first_state, last_state))
        return x, tuple(states)

    def _bridge(self, index: int, forwards: LSTMState, backwards: LSTMState) -> LSTMState:
        """Returns the first state of a decoder's layer."""
        bridges = self.hidden_bridges[index], self.cell_bridges[index]
        parts = zip(bridges, forwards, backwards, strict=True)
        return LSTMState(
            *(
                ops.cast(bridge(ops.cast(ops.concatenate(both, -1), self.compute_dtype)), "float32")
                for bridge, *both in parts
            )
        )

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], 2 * self.units)
