"""The layers of an LSTM encoder-decoder with attention (Bahdanau et al. 2015; See et al. 2017).

A bidirectional encoder reads the source. The decoder reads the target and attends to the
encoder's outputs, its memory: `call` for whole sequences, as in training, `step` for the newest
token of each hypothesis.

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, R rows (B, or B * W
while decoding), D model dimension, U units of an LSTM, M width of the memory (2 U), A attention
dimension.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import Layer, full_precision, run_loop, softmax
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import MASKED


class LSTMState(NamedTuple):
    """The state of an LSTM."""

    hidden: Tensor  # float32 [B, U], h
    cell: Tensor  # float32 [B, U], c


@keras.saving.register_keras_serializable(package="keras_transformer")
class LSTM(Layer):
    """One layer of long short-term memory (Hochreiter and Schmidhuber 1997).

    Kernel [D, 4 U], recurrent kernel [U, 4 U] and bias [4 U] have the gates in the order of Keras
    and PyTorch: input, forget, cell, output. It runs no cuDNN kernel, which neither XLA nor a CPU
    supports, and its state stays in float32 at least.

    Args:
        units: U.
        backwards: whether to read from the end of a sequence.
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

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        state: LSTMState | None = None,
        return_state: bool = False,
    ) -> Any:
        """Returns outputs [B, T, U] and, on request, the state after the last real token.

        Args:
            x: [B, T, D].
            mask: bool [B, T], True at real tokens; None if all are.
            state: before the first token; None means zeros.
            return_state: whether to return the state too.
        """
        if state is None:
            zeros = ops.zeros((ops.shape(x)[0], self.units), full_precision(self.compute_dtype))
            state = LSTMState(zeros, zeros)

        def step(projected: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
            state = self.step(projected, state)
            return state.hidden, state

        # One product projects all tokens at once: only the recurrent one remains in the loop.
        outputs, state = run_loop(step, self.projection(x), state, mask, self.backwards)
        outputs = ops.cast(outputs, self.compute_dtype)
        return (outputs, state) if return_state else outputs

    def step(self, projected: Tensor, state: LSTMState) -> LSTMState:
        """Reads one more token, `projection` of it [B, 4 U], and returns the next state."""
        hidden = ops.cast(state.hidden, self.compute_dtype)
        kernel = ops.cast(self.recurrent_kernel, self.compute_dtype)
        gates = projected + ops.matmul(hidden, kernel)  # [B, 4 U]
        gates = ops.cast(gates, full_precision(self.compute_dtype))
        input_gate, forget_gate, cell, output_gate = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(forget_gate) * state.cell + ops.sigmoid(input_gate) * ops.tanh(cell)
        return LSTMState(ops.sigmoid(output_gate) * ops.tanh(cell), cell)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentEncoder(Layer):
    """N layers, each of an LSTM that reads forwards and one that reads backwards.

    Args:
        num_layers: N.
        units: U, of each LSTM.
        dropout: rate on the output of each layer.
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        layers, options = range(num_layers), {"dtype": self.dtype_policy}
        self.units = units
        self.dropout = Dropout(dropout, name="dropout", **options)
        self.forwards = [LSTM(units, name=f"forwards_{i}", **options) for i in layers]
        self.backwards = [LSTM(units, True, name=f"backwards_{i}", **options) for i in layers]
        self.hidden_bridges, self.cell_bridges = (
            [
                keras.layers.Dense(units, "relu", name=f"{name}_bridge_{i}", **options)
                for i in layers
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

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        return_state: bool = False,
    ) -> Any:
        """Returns the memory [B, S, 2 U] and, on request, the first state of each decoder layer.

        Such a state is made of the last states here: h_0 = relu(W [h_S; h_1] + b), c_0 likewise
        (See et al. 2017, 2.1).

        Args:
            x: [B, S, D].
            mask: bool [B, S], True at real tokens; None if all are.
            training: whether dropout is on.
            return_state: whether to return the states too.
        """

        def bridge(layer: keras.layers.Dense, *last: Tensor) -> Tensor:
            both = ops.cast(ops.concatenate(last, axis=-1), self.compute_dtype)  # [B, 2 U]
            return ops.cast(layer(both), full_precision(self.compute_dtype))  # [B, U]

        states = []
        for i, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            left, left_state = forwards(x, mask, return_state=True)  # [B, S, U]
            right, right_state = backwards(x, mask, return_state=True)
            x = self.dropout(ops.concatenate([left, right], axis=-1), training=training)
            hidden = bridge(self.hidden_bridges[i], left_state.hidden, right_state.hidden)
            cell = bridge(self.cell_bridges[i], left_state.cell, right_state.cell)
            states.append(LSTMState(hidden, cell))
        return (x, tuple(states)) if return_state else x

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], 2 * self.units)


class RecurrentMemory(NamedTuple):
    """The encoder's output, as attention reads it."""

    values: Tensor  # [B, S, M], H
    keys: Tensor  # [B, S, A], W1 H
    mask: Tensor  # bool [B, S], True at real tokens


def weighted_mean(scores: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax of scores applied to values, and the weights; the mean of none is 0.

    Args:
        scores: [B, T, S].
        values: [B, S, any].
        mask: bool, broadcasts to [B, T, S]; True where a query sees a value.

    Returns:
        [B, T, any], and the weights, float32 [B, T, S].
    """
    scores = ops.cast(scores, full_precision(scores.dtype))
    weights = softmax(ops.where(mask, scores, MASKED))
    weights = ops.where(mask, weights, 0.0)
    return ops.matmul(ops.cast(weights, values.dtype), values), weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentDecoder(Layer):
    """N layers of LSTM, and additive attention to a memory H [B, S, 2 U].

    A state h scores it by v^T tanh(W1 H + W2 h + b) (Bahdanau et al. 2015, A.1.2).

    Args:
        num_layers: N.
        units: U, of each LSTM.
        attention_dim: A, the width of W1 H and W2 h; None for U.
        intra_decoder: whether the decoder attends to its own earlier states (Paulus et al. 2018,
            2.2).
        dropout: rate on the output of each layer, and on that of the decoder.

    Example:
        >>> encoder = RecurrentEncoder(num_layers=1, units=8)
        >>> decoder = RecurrentDecoder(num_layers=1, units=8)
        >>> for layer in (encoder, decoder):
        ...     layer.build((None, None, 16))
        >>> x, source = np.ones((2, 5, 16), "float32"), np.ones((2, 7, 16), "float32")
        >>> mask = np.arange(7) < [[7], [4]]
        >>> values, states = encoder(source, mask, return_state=True)
        >>> decoder(x, decoder.project_memory(values, mask), states).shape
        TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        *,
        num_layers: int,
        units: int,
        attention_dim: int | None = None,
        intra_decoder: bool = False,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.units = units
        self.layers = [LSTM(units, name=f"layer_{i}", **options) for i in range(num_layers)]
        self.attention_dim = attention_dim or units
        self.intra_decoder = intra_decoder
        self.dropout = Dropout(dropout, name="dropout", **options)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        *batch, model_dim = input_shape
        hidden, memory = (*batch, self.units), (*batch, 2 * self.units)
        for lstm in self.layers:
            lstm.build(input_shape)
            input_shape = hidden
        width = self.attention_dim
        self.memory_projection = self._dense(width, "memory", memory, use_bias=False)
        self.query_projection = self._dense(width, "query", hidden)
        self.vector = self._dense(1, "vector", (None, width), use_bias=False)
        if self.intra_decoder:
            self.intra_query = self._dense(self.units, "intra_query", hidden, use_bias=False)
        width = (3 + self.intra_decoder) * self.units
        self.output_projection = self._dense(model_dim, "output", (*batch, width))

    def project_memory(self, values: Tensor, mask: Tensor) -> RecurrentMemory:
        """Returns the memory of the encoder's output [B, S, 2 U] and its mask [B, S]."""
        return RecurrentMemory(values, self.memory_projection(values), mask)

    def call(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        states: tuple[LSTMState, ...],
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory: from `project_memory`.
            states: of each layer before the first token, from `RecurrentEncoder.call`.
            training: whether dropout is on.
            return_attention_scores: whether to return the weights too.

        Returns:
            [B, T, D]; or that, the attention to the memory, float32 [B, T, S], and to earlier
            states, float32 [B, T, T] or None.
        """
        # All times of a layer before the next layer, then all attention at once.
        for lstm, state in zip(self.layers, states, strict=True):
            # Not `__call__`, which would cast the state to half precision.
            x = self.dropout(lstm.call(x, state=state), training=training)
        times = ops.arange(ops.shape(x)[1])
        is_earlier = (times[None, :] < times[:, None])[None]  # [1, T, T]
        x, weights, past_weights = self._output(x, memory, x, is_earlier, training)
        return (x, weights, past_weights) if return_attention_scores else x

    def step(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        states: tuple[LSTMState, ...],
        history: Any,
        time: Any,
        past_mask: Any,
    ) -> tuple[Tensor, Tensor, tuple[LSTMState, ...], Any]:
        """Reads one more token of each of W hypotheses.

        Args:
            x: [B, W, D], the new tokens; W is static.
            memory: of the sentences.
            states: of the hypotheses, rows B * W.
            history: slots [B, 1, t * W, U] of earlier states; () without attention to them.
            time: int32 [], t.
            past_mask: bool [B, W, (t + 1) * W], the earlier states of each hypothesis.

        Returns:
            [B, W, D], the tokens' attention float32 [B, W, S], the next states, and the history
            with the new states added.
        """
        num_hypotheses, new_states = x.shape[1], []
        x = ops.reshape(x, (-1, x.shape[2]))  # [B * W, D]
        for lstm, state in zip(self.layers, states, strict=True):
            new_states.append(lstm.step(lstm.projection(x), state))
            x = ops.cast(new_states[-1].hidden, self.compute_dtype)  # [B * W, U]
        hidden = ops.reshape(x, (-1, num_hypotheses, self.units))
        past = None
        if self.intra_decoder:
            history = history.append(hidden[:, None], time)
            past = history.entries[:, 0]
        x, weights, _ = self._output(hidden, memory, past, past_mask)
        return x, weights, tuple(new_states), history

    def _output(
        self,
        hidden: Tensor,
        memory: RecurrentMemory,
        past: Tensor | None,
        past_mask: Tensor | None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns V [h; context] + b (See et al. 2017, eq. 4), with the past's mean beside them.

        The scores of earlier states are h_t^T W h_t' (Paulus et al. 2018, 2.2).

        Args:
            hidden: states of the last layer [B, T, U].
            memory: of the sentences.
            past: earlier states [B, any, U].
            past_mask: bool [B, T, any], those that a state attends to.
            training: whether dropout is on.

        Returns:
            [B, T, D], the weights of the memory, [B, T, S], and those of the past, or None.
        """
        query = self.query_projection(hidden)  # [B, T, A]
        pairs = ops.tanh(query[:, :, None] + memory.keys[:, None])  # [B, T, S, A]
        scores = ops.squeeze(self.vector(pairs), -1)
        context, weights = weighted_mean(scores, memory.values, memory.mask[:, None])
        parts, past_weights = [hidden, context], None
        if self.intra_decoder:
            scores = ops.matmul(self.intra_query(hidden), ops.swapaxes(past, 1, 2))
            mean, past_weights = weighted_mean(scores, past, past_mask)
            parts.append(mean)
        x = self.output_projection(ops.concatenate(parts, axis=-1))
        return self.dropout(x, training=training), weights, past_weights
