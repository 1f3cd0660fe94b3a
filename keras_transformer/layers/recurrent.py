"""The layers of an LSTM encoder-decoder with attention (Bahdanau et al. 2015; See et al. 2017).

A bidirectional encoder reads the source. The decoder reads the target and attends to the
encoder's outputs, its memory: `call` for whole sequences, as in training, `step` for the newest
token of each hypothesis.

Shapes: B batch, S source length, T target length, W hypotheses of a sentence, R rows (B, or B * W
while decoding), D model dimension, U units of an LSTM, M width of the memory (2 U), A attention
dimension.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer, full_precision, softmax
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.file_state import Dense
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

    Example:
        >>> LSTM(8)(np.ones((2, 5, 16), "float32")).shape
        TensorShape([2, 5, 8])
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
            mask: bool [B, T], True at real tokens; None if all are.
            state: before the first token; None means zeros.

        Returns:
            Outputs [B, T, U], and the state after the last real token.
        """
        if state is None:
            zeros = ops.zeros((ops.shape(x)[0], self.units), full_precision(self.compute_dtype))
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
        gates = projected + ops.matmul(hidden, kernel)  # [B, 4 U]
        gates = ops.cast(gates, full_precision(self.compute_dtype))
        input_gate, forget_gate, cell, output_gate = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(forget_gate) * state.cell + ops.sigmoid(input_gate) * ops.tanh(cell)
        return LSTMState(ops.sigmoid(output_gate) * ops.tanh(cell), cell)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)


def scan(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    inputs: Tensor,
    state: Any,
    mask: Tensor | None = None,
    backwards: bool = False,
) -> tuple[Tensor, Any]:
    """Runs `step(input [B, ...], state) -> (output [B, ...], state)` at each time step.

    Args:
        step: the function to run.
        inputs: [B, T, ...].
        state: nest of tensors [B, ...] before the first step.
        mask: bool [B, T], False at times to skip, which leave the state; None skips none.
        backwards: whether to begin at the last time.

    Returns:
        The outputs [B, T, ...] and the state after the last step, in float32 at least.
    """

    dtype = full_precision(keras.tree.flatten(state)[0].dtype)

    # Keras's RNN, because `ops.scan` has no gradient under TensorFlow's XLA.
    class Cell:
        state_size = 0  # unused: the state is given
        compute_dtype = dtype

        def __call__(self, inputs: Tensor, states: Any) -> tuple[Tensor, list[Any]]:
            output, state = step(inputs, states[0])
            return output, [state]

        call = __call__

    loop = keras.layers.RNN(
        Cell(),
        return_sequences=True,
        return_state=True,
        go_backwards=backwards,
        dtype=dtype,
        autocast=False,
    )
    outputs, state = loop(inputs, initial_state=[state], mask=mask)
    return (ops.flip(outputs, axis=1) if backwards else outputs), state


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentEncoder(Layer):
    """N layers, each of an LSTM that reads forwards and one that reads backwards.

    Args:
        num_layers: N.
        units: U, of each LSTM.
        bridge_activation: of the layers that make the decoder's first state.
        dropout: rate on the output of each layer.

    Example:
        >>> encoder = RecurrentEncoder(num_layers=1, units=8)
        >>> encoder(np.ones((2, 5, 16), "float32"), mask=np.arange(5) < [[5], [3]]).shape
        TensorShape([2, 5, 16])
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
        layers, options = range(num_layers), {"dtype": self.dtype_policy}
        self.units = units
        self.dropout = Dropout(dropout, name="dropout", **options)
        self.forwards = [LSTM(units, name=f"forwards_{i}", **options) for i in layers]
        self.backwards = [LSTM(units, True, name=f"backwards_{i}", **options) for i in layers]
        self.hidden_bridges, self.cell_bridges = (
            [Dense(units, bridge_activation, name=f"{name}_bridge_{i}", **options) for i in layers]
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
        """Returns the memory [B, S, 2 U]; arguments as in `read`."""
        return self.read(x, mask, training)[0]

    def read(
        self, x: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> tuple[Tensor, tuple[LSTMState, ...]]:
        """Reads whole sequences.

        Args:
            x: [B, S, D].
            mask: bool [B, S], True at real tokens; None if all are.
            training: whether dropout is on.

        Returns:
            The memory [B, S, 2 U], and the first state of each layer of a decoder, made of the last
            states here: h_0 = relu(W [h_S; h_1] + b), c_0 likewise (See et al. 2017, 2.1).
        """

        def bridge(layer: keras.layers.Dense, *last: Tensor) -> Tensor:
            both = ops.cast(ops.concatenate(last, axis=-1), self.compute_dtype)  # [B, 2 U]
            return ops.cast(layer(both), full_precision(self.compute_dtype))  # [B, U]

        states = []
        for i, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            left, left_state = forwards.read(x, mask)  # [B, S, U]
            right, right_state = backwards.read(x, mask)
            x = self.dropout(ops.concatenate([left, right], axis=-1), training=training)
            hidden = bridge(self.hidden_bridges[i], left_state.hidden, right_state.hidden)
            cell = bridge(self.cell_bridges[i], left_state.cell, right_state.cell)
            states.append(LSTMState(hidden, cell))
        return x, tuple(states)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], 2 * self.units)


class RecurrentMemory(NamedTuple):
    """The encoder's output, as attention reads it."""

    values: Tensor  # [B, S, M], H
    keys: Tensor  # [B, S, A], W1 H
    mask: Tensor  # bool [B, S], True at real tokens


@keras.saving.register_keras_serializable(package="keras_transformer")
class SingleHeadAttention(Layer):
    """Attention of one head to a memory: a mean of the memory, weighted by a softmax of scores.

    Args:
        attention_type: the scores, "additive": v^T tanh(W1 H + W2 h + b) (Bahdanau et al. 2015,
            A.1.2), or "dot": h^T W1 H (Luong et al. 2015, eq. 8, "general").
        attention_dim: A; dot products use U.

    Example:
        >>> query, memory = np.ones((2, 5, 8), "float32"), np.ones((2, 7, 16), "float32")
        >>> attention = SingleHeadAttention("additive", attention_dim=8)
        >>> attention(query, memory, mask=np.arange(7) < [[7], [4]]).shape
        TensorShape([2, 5, 16])
    """

    def __init__(self, attention_type: str, attention_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("attention_type", attention_type, ("additive", "dot"))
        self.attention_type = attention_type
        self.attention_dim = attention_dim

    def build(
        self, query_shape: tuple[int | None, ...], memory_shape: tuple[int | None, ...]
    ) -> None:
        self.memory_dim = memory_shape[-1]
        is_additive = self.attention_type == "additive"
        width = self.attention_dim if is_additive else query_shape[-1]
        self.memory_projection = self._dense(width, "memory", memory_shape, use_bias=False)
        if is_additive:
            self.query_projection = self._dense(width, "query", query_shape)
            self.vector = self._dense(1, "vector", (None, width), use_bias=False)

    def call(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Returns [B, T, M] for queries [B, T, U], a memory [B, S, M] and its mask [B, S]."""
        scores = self.scores(query, self.project_memory(memory, mask))
        return weighted_mean(scores, memory, mask[:, None])[0]

    def project_memory(self, values: Tensor, mask: Tensor) -> RecurrentMemory:
        """Returns the memory of the encoder's output [B, S, M]."""
        return RecurrentMemory(values, self.memory_projection(values), mask)

    def scores(self, query: Tensor, memory: RecurrentMemory) -> Tensor:
        """Returns the scores [B, T, S] of each source token for queries [B, T, U]."""
        if self.attention_type == "dot":
            scores = ops.matmul(query, ops.swapaxes(memory.keys, 1, 2))
        else:
            query = _by_rows(self.query_projection, query)  # [B, T, A]
            hidden = ops.tanh(query[:, :, None] + memory.keys[:, None])  # [B, T, S, A]
            scores = ops.squeeze(_by_rows(self.vector, hidden), -1)
        return ops.cast(scores, full_precision(scores.dtype))

    def compute_output_shape(
        self, query_shape: tuple[int | None, ...], *other_shapes: Any
    ) -> tuple[int | None, ...]:
        return (*query_shape[:-1], self.memory_dim)


def _by_rows(dense: keras.layers.Dense, x: Tensor) -> Tensor:
    """Applies a layer to x [..., U] as a matrix.

    XLA cannot differentiate Keras's product of a larger tensor in a loop if sizes are unknown.
    """
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], dense.units))


def weighted_mean(scores: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax of scores applied to values, and the weights; the mean of none is 0.

    Args:
        scores: float32 [B, T, S].
        values: [B, S, any].
        mask: bool, broadcasts to [B, T, S]; True where a query sees a value.

    Returns:
        [B, T, any], and the weights, float32 [B, T, S].
    """
    weights = softmax(ops.where(mask, scores, MASKED))
    weights = ops.where(mask, weights, 0.0)
    return ops.matmul(ops.cast(weights, values.dtype), values), weights


def discount_past(scores: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Divides exp(scores) by the sum of exp(scores) of earlier steps (Paulus et al. 2018, eq. 3).

    In logarithms nothing overflows: e_t - L_t-1, where L_t = log(exp(L_t-1) + exp(e_t)).

    Args:
        scores: float32 [..., S], e_t.
        past: float32 [..., S], L_t-1; `MASKED` at the first step, whose scores stay.

    Returns:
        The new scores, and L_t.
    """
    discounted = scores - ops.where(past > MASKED / 2, past, 0.0)
    return discounted, ops.logaddexp(past, scores)


class RecurrentState(NamedTuple):
    """The decoder's state of R sequences."""

    layers: tuple[LSTMState, ...]  # float32 [R, U] each
    context: Any = ()  # float32 [R, 2 U], of the last step, if it is an input of the next one
    past: Any = ()  # float32 [R, S], see `discount_past`, if attention is intra-temporal


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentDecoder(Layer):
    """N layers of LSTM, and attention to a memory [B, S, 2 U].

    Args:
        num_layers: N.
        units: U, of each LSTM.
        attention_type: "additive" or "dot", see `SingleHeadAttention`.
        attention_dim: A.
        intra_temporal: whether attention is divided by that of earlier steps (Paulus et al. 2018).
        intra_decoder: whether the decoder attends to its own earlier states (ibid.).
        input_feeding: whether the last context vector c_t is an input beside each token. (Luong et
            al. 2015, 3.3, feed the attentional vector, which is made of c_t and the state.)
        dropout: rate on the output of each layer, and on that of the decoder.

    Example:
        >>> encoder = RecurrentEncoder(num_layers=1, units=8)
        >>> decoder = RecurrentDecoder(num_layers=1, units=8)
        >>> for layer in (encoder, decoder):
        ...     layer.build((None, None, 16))
        >>> x, source = np.ones((2, 5, 16), "float32"), np.ones((2, 7, 16), "float32")
        >>> mask = np.arange(7) < [[7], [4]]
        >>> memory, state = decoder.start(*encoder.read(source, mask), mask)
        >>> decoder(x, memory, state).shape
        TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        *,
        num_layers: int,
        units: int,
        attention_type: str = "additive",
        attention_dim: int | None = None,
        intra_temporal: bool = False,
        intra_decoder: bool = False,
        input_feeding: bool = False,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.units = units
        self.intra_temporal = intra_temporal
        self.layers = [LSTM(units, name=f"layer_{i}", **options) for i in range(num_layers)]
        self.attention = SingleHeadAttention(
            attention_type, attention_dim or units, name="attention", **options
        )
        self.intra_decoder = intra_decoder
        self.input_feeding = input_feeding
        self.dropout = Dropout(dropout, name="dropout", **options)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        *batch, model_dim = input_shape
        hidden, memory = (*batch, self.units), (*batch, 2 * self.units)
        for lstm in self.layers:
            lstm.build(input_shape)
            input_shape = hidden
        self.attention.build(hidden, memory)
        if self.intra_decoder:
            self.intra_query = self._dense(self.units, "intra_query", hidden, use_bias=False)
        if self.input_feeding:
            # The context's rows of the first layer's kernel: [x; context] is never joined.
            self.feeding = self._dense(4 * self.units, "feeding", memory, use_bias=False)
        width = (3 + self.intra_decoder) * self.units
        self.output_projection = self._dense(model_dim, "output", (*batch, width))

    def start(
        self, values: Tensor, states: tuple[LSTMState, ...], mask: Tensor
    ) -> tuple[RecurrentMemory, RecurrentState]:
        """Returns the memory, and the state before the first token.

        Args:
            values, states: from `RecurrentEncoder.read`.
            mask: bool [B, S], True at real tokens of the source.
        """
        batch, length, width = ops.shape(values)
        dtype = full_precision(self.compute_dtype)
        state = RecurrentState(
            states,
            ops.zeros((batch, width), dtype) if self.input_feeding else (),
            ops.full((batch, length), MASKED, dtype) if self.intra_temporal else (),
        )
        return self.attention.project_memory(values, mask), state

    def call(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory, state: from `start`.
            training: whether dropout is on.
            return_attention_scores: whether to return the weights too.

        Returns:
            [B, T, D]; or that, the attention to the memory, float32 [B, T, S], and to earlier
            states, float32 [B, T, T] or None.
        """
        if self.input_feeding:
            hidden, context, weights = self._read_with_feeding(x, memory, state, training)
        else:  # all times of a layer before the next layer, then all attention at once
            for lstm, lstm_state in zip(self.layers, state.layers, strict=True):
                x = self.dropout(lstm.read(x, state=lstm_state)[0], training=training)
            hidden, scores = x, self.attention.scores(x, memory)
            if self.intra_temporal:
                scores, _ = scan(discount_past, scores, ops.full_like(scores[:, 0], MASKED))
            context, weights = weighted_mean(scores, memory.values, memory.mask[:, None])
        parts, past_weights = [hidden, context], None
        if self.intra_decoder:
            times = ops.arange(ops.shape(hidden)[1])
            is_earlier = (times[None, :] < times[:, None])[None]  # [1, T, T]
            past, past_weights = self._attend_to_past(hidden, hidden, is_earlier)
            parts.append(past)
        x = self._output(parts, training)
        return (x, weights, past_weights) if return_attention_scores else x

    def step(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        history: Any,
        time: Any,
        past_mask: Any,
    ) -> tuple[Tensor, Tensor, RecurrentState, Any]:
        """Reads one more token of each of W hypotheses.

        Args:
            x: [B, W, D], the new tokens; W is static.
            memory: of the sentences.
            state: of the hypotheses, rows B * W.
            history: slots [B, 1, t * W, U] of earlier states; () without attention to them.
            time: int32 [], t.
            past_mask: bool [B, W, (t + 1) * W], the earlier states of each hypothesis.

        Returns:
            [B, W, D], the tokens' attention float32 [B, W, S], the state, and the history with the
            new states added.
        """
        projected = self.layers[0].projection(ops.reshape(x, (-1, x.shape[2])))  # [B * W, 4 U]
        hidden, context, weights, state = self._advance(projected, memory, state, x.shape[1])
        parts = [hidden, context]
        if self.intra_decoder:
            history = history.append(hidden[:, None], time)
            parts.append(self._attend_to_past(hidden, history.entries[:, 0], past_mask)[0])
        return self._output(parts), weights, state, history

    def _read_with_feeding(
        self, x: Tensor, memory: RecurrentMemory, state: RecurrentState, training: bool | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reads x [B, T, D] step by step: each step needs the context of the one before.

        Returns hidden states [B, T, U], contexts [B, T, 2 U] and weights, float32 [B, T, S].
        """
        ones = ops.ones((ops.shape(x)[0], self.units), self.compute_dtype)
        # One mask for all times (Gal and Ghahramani 2016): no random numbers within the loop.
        masks = [self.dropout(ones, training=training) for _ in self.layers]

        def step(projected: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
            *parts, state = self._advance(projected, memory, state, 1, masks)
            rows = [ops.cast(part[:, 0], full_precision(part.dtype)) for part in parts]
            return ops.concatenate(rows, axis=-1), state  # [B, U + 2 U + S]

        joined, _ = scan(step, self.layers[0].projection(x), state)
        units = self.units
        hidden = ops.cast(joined[..., :units], self.compute_dtype)
        context = ops.cast(joined[..., units : 3 * units], self.compute_dtype)
        return hidden, context, joined[..., 3 * units :]

    def _advance(
        self,
        projected: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        num_queries: int,
        masks: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, RecurrentState]:
        """Reads one more token of R = B * `num_queries` rows, by the first layer's [R, 4 U].

        Returns the last layer's states [B, W, U], contexts [B, W, 2 U], weights [B, W, S] and the
        next state, where W is `num_queries`.
        """
        if self.input_feeding:
            projected = projected + self.feeding(ops.cast(state.context, self.compute_dtype))
        layers: list[LSTMState] = []
        for index, lstm in enumerate(self.layers):
            layers.append(lstm.step(projected, state.layers[index]))
            hidden = ops.cast(layers[-1].hidden, self.compute_dtype)  # [R, U]
            hidden = hidden if masks is None else hidden * masks[index]
            if index + 1 < len(self.layers):
                projected = self.layers[index + 1].projection(hidden)
        hidden = ops.reshape(hidden, (-1, num_queries, self.units))
        scores, past = self.attention.scores(hidden, memory), state.past
        if self.intra_temporal:
            scores, past = discount_past(scores, ops.reshape(past, ops.shape(scores)))
            past = ops.reshape(past, ops.shape(state.past))
        context, weights = weighted_mean(scores, memory.values, memory.mask[:, None])
        fed: Any = ()
        if self.input_feeding:
            fed = ops.reshape(context, (-1, 2 * self.units))
            fed = ops.cast(fed, full_precision(fed.dtype))
        return hidden, context, weights, RecurrentState(tuple(layers), fed, past)

    def _attend_to_past(self, query: Tensor, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attends to earlier states [B, any, U] by h_t^T W h_t' (Paulus et al. 2018, 2.2).

        Returns their means [B, T, U] for queries [B, T, U], and the weights [B, T, any].
        """
        products = ops.matmul(self.intra_query(query), ops.swapaxes(states, 1, 2))
        return weighted_mean(ops.cast(products, full_precision(products.dtype)), states, mask)

    def _output(self, parts: list[Tensor], training: bool | None = None) -> Tensor:
        """Returns V [h; context] + b (See et al. 2017, eq. 4), with the past's mean beside them."""
        x = self.output_projection(ops.concatenate(parts, axis=-1))
        return self.dropout(x, training=training)
