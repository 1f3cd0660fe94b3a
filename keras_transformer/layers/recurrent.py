"""The decoder of a recurrent model: N layers of LSTM, and attention to the source.

`call` reads whole sequences, as in training; `step` reads one token of each hypothesis.

Shapes: B batch, T target length, S source length, D model dimension, U units, W hypotheses a
sentence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.attention import append_slots
from keras_transformer.layers.base import Dropout, Layer
from keras_transformer.layers.masks import attention_bias

# Long short-term memory (Hochreiter and Schmidhuber 1997).
#
# Shapes: B batch, T length, D input width, U units.


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


# The attentions of recurrent models: to the source, and to the decoder's own past.
#
# Shapes: B batch, T queries (while decoding the W hypotheses of a sentence), S source length, U
# width
# of a query, A of a key, M of the memory.

_NEVER = -1e30  # the logarithm of no attention; finite, so that no difference is NaN


class RecurrentMemory(NamedTuple):
    """What the encoder has read."""

    values: Tensor  # [B, S, M], H
    keys: Tensor  # [B, S, A], W1 H
    mask: Tensor  # bool [B, S], True at real tokens


@keras.saving.register_keras_serializable(package="keras_transformer")
class SingleHeadAttention(Layer):
    """Attention of one head to a memory: softmax of scores, and their mean of the memory.

    Args:
        attention_type: what the scores are: "additive": v^T tanh(W1 H + W2 h + b) (Bahdanau et al.
            2015, A.1.2), or "dot": h^T W1 H (Luong et al. 2015, eq. 8, "general").
        attention_dim: A; of dot products it is U.
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
        if self.attention_type == "dot":
            self.memory_projection = self._dense(
                query_shape[-1], "memory", memory_shape, use_bias=False
            )
            return
        units = self.attention_dim
        self.memory_projection = self._dense(units, "memory", memory_shape, use_bias=False)
        self.query_projection = self._dense(units, "query", query_shape)
        self.vector = self._dense(1, "vector", (None, units), use_bias=False)

    def call(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Returns [B, T, M] for queries [B, T, U], a memory [B, S, M] and its mask [B, S]."""
        remembered = self.remember(memory, mask)
        return self.read(self.scores(query, remembered), remembered)[0]

    def remember(self, values: Tensor, mask: Tensor) -> RecurrentMemory:
        """Returns the memory of the encoder's output, as the methods below take it."""
        return RecurrentMemory(values, self.memory_projection(values), mask)

    def scores(self, query: Tensor, memory: RecurrentMemory) -> Tensor:
        """Returns how well each source token fits each query, float32 [B, T, S]."""
        if self.attention_type == "dot":
            products = ops.matmul(query, ops.swapaxes(memory.keys, 1, 2))
            return ops.cast(products, "float32")
        query = _by_rows(self.query_projection, query)
        hidden = ops.tanh(query[:, :, None] + memory.keys[:, None])  # [B, T, S, A]
        return ops.cast(ops.squeeze(_by_rows(self.vector, hidden), -1), "float32")

    def read(self, scores: Tensor, memory: RecurrentMemory) -> tuple[Tensor, Tensor]:
        """Returns contexts [B, T, M], and the weights, float32 [B, T, S]."""
        # A loop makes a bias of its own in each step, see `Transformer.encode`.
        weights = ops.softmax(scores + attention_bias(memory.mask)[:, None], axis=-1)
        return ops.matmul(ops.cast(weights, memory.values.dtype), memory.values), weights

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


def no_past(scores_shape: Any) -> Tensor:
    """Returns what `discount_past` takes at the first step, for scores of this shape."""
    return ops.full(scores_shape, _NEVER, "float32")


def discount_past(scores: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Divides exp(scores) by the sum of exp(scores) of earlier steps (Paulus et al. 2018, eq. 3).

    In logarithms nothing overflows: e_t - L_t-1, where L_t = log(exp(L_t-1) + exp(e_t)).

    Args:
        scores: float32 [..., S], e_t.
        past: float32 [..., S], L_t-1; `no_past` at the first step, whose scores stay as they are.

    Returns:
        The new scores, and L_t.
    """
    discounted = scores - ops.where(past > _NEVER / 2, past, 0.0)
    return discounted, ops.logaddexp(past, scores)


def discount_each_past(scores: Tensor) -> Tensor:
    """Does what `discount_past` does for all steps, scores [B, T, S]."""
    return scan(discount_past, scores, no_past((ops.shape(scores)[0], ops.shape(scores)[2])))[0]


@keras.saving.register_keras_serializable(package="keras_transformer")
class IntraDecoderAttention(Layer):
    """A decoder's attention to its earlier states, h_t^T W h_t' (Paulus et al. 2018, 2.2)."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.query_projection = self._dense(input_shape[-1], "query", input_shape, use_bias=False)

    def call(self, x: Tensor) -> Tensor:
        """Returns [B, T, U]: for each state of x [B, T, U] the mean of those before it."""
        return self.attend(x)[0]

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `call` returns, and the weights, float32 [B, T, T]."""
        positions = ops.arange(ops.shape(x)[1])
        return self.attend_to(x, x, (positions[None, :] < positions[:, None])[None])

    def attend_to(self, query: Tensor, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attends to some states; the mean of none is 0.

        Args:
            query: [B, T, U].
            states: [B, any, U].
            mask: bool, broadcasts to [B, T, any]; True where a query sees a state.

        Returns:
            [B, T, U], and the weights, float32 [B, T, any].
        """
        products = ops.matmul(self.query_projection(query), ops.swapaxes(states, 1, 2))
        scores = ops.where(mask, ops.cast(products, "float32"), _NEVER)
        weights = ops.where(mask, ops.softmax(scores, axis=-1), 0.0)
        return ops.matmul(ops.cast(weights, states.dtype), states), weights


class RecurrentState(NamedTuple):
    """What the decoder remembers of R sequences; rows R are B, or B * W while decoding."""

    layers: tuple[LSTMState, ...]  # float32 [R, U] each
    context: Any = ()  # float32 [R, 2 U], that of the last step, where the input is fed with it
    past: Any = ()  # float32 [R, S], see `discount_past`, where attention is intra-temporal


class HiddenAndContext(NamedTuple):
    """What the decoder has seen at each of T times."""

    hidden: Tensor  # [B, T, U], the last layer's
    context: Tensor  # [B, T, 2 U]
    weights: Tensor  # float32 [B, T, S]


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentDecoder(Layer):
    """N layers of LSTM, and attention to a memory [B, S, 2 U].

    Args:
        num_layers: N.
        units: U, of each LSTM.
        attention_type: "additive" or "dot", see `SingleHeadAttention`.
        attention_dim: A.
        intra_temporal: whether attention is divided by that of earlier steps.
        intra_decoder: whether the decoder attends to its own earlier states.
        input_feeding: whether it reads the last context beside each token.
        dropout: rate on the output of each layer, and on that of the decoder.
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
        self.intra_attention = (
            IntraDecoderAttention(name="intra_attention", **options) if intra_decoder else None
        )
        self.feeding = None
        if input_feeding:
            # The context's rows of the first layer's kernel: [x; context] is never joined.
            self.feeding = keras.layers.Dense(4 * units, use_bias=False, name="feeding", **options)
        self.dropout = Dropout(dropout, name="dropout", **options)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        *batch, model_dim = input_shape
        hidden, memory = (*batch, self.units), (*batch, 2 * self.units)
        for lstm in self.layers:
            lstm.build(input_shape)
            input_shape = hidden
        self.attention.build(hidden, memory)
        width = 3 * self.units
        if self.intra_attention is not None:
            self.intra_attention.build(hidden)
            width += self.units
        if self.feeding is not None:
            self.feeding.build(memory)
        self.output_projection = self._dense(model_dim, "output", (*batch, width))

    def first_state(self, layers: tuple[LSTMState, ...], memory: RecurrentMemory) -> RecurrentState:
        """Returns the state before the first token, of the LSTMs' states that the encoder made."""
        batch, length, width = ops.shape(memory.values)
        return RecurrentState(
            layers,
            () if self.feeding is None else ops.zeros((batch, width), "float32"),
            no_past((batch, length)) if self.intra_temporal else (),
        )

    def call(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        training: bool | None = None,
    ) -> Tensor:
        """Reads whole sequences.

        Args:
            x: [B, T, D].
            memory: see `SingleHeadAttention.remember`.
            state: see `first_state`.
            training: whether dropout is on.

        Returns:
            [B, T, D].
        """
        return self.attend(x, memory, state, training)[0]

    def attend(
        self,
        x: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns what `call` returns, and the attention to the memory, float32 [B, T, S], and to
        earlier states, [B, T, T] or None.
        """
        read = self._read if self.feeding is None else self._read_in_turn
        attended = read(x, memory, state, training)
        past, past_weights = None, None
        if self.intra_attention is not None:
            past, past_weights = self.intra_attention.attend(attended.hidden)
        return self._output(attended, past, training), attended.weights, past_weights

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
            history: [B, 1, t * W, U], earlier states; () without attention to them.
            time: int32 [], t.
            past_mask: bool [B, W, (t + 1) * W], the earlier states of each hypothesis.

        Returns:
            [B, W, D], the tokens' attention float32 [B, W, S], the state, and the history with the
            new states added.
        """
        projected = self.layers[0].projection(ops.reshape(x, (-1, x.shape[2])))
        attended, state = self._advance(projected, memory, state, x.shape[1])
        past = None
        if self.intra_attention is not None:
            has_capacity = history.shape[2] is not None and history.shape[2] == past_mask.shape[2]
            history = append_slots(history, attended.hidden[:, None], time, has_capacity)
            past, _ = self.intra_attention.attend_to(attended.hidden, history[:, 0], past_mask)
        return self._output(attended, past), attended.weights, state, history

    def _read(
        self, x: Tensor, memory: RecurrentMemory, state: RecurrentState, training: bool | None
    ) -> HiddenAndContext:
        """Reads x [B, T, D], all times of a layer before the next layer."""
        for lstm, its_state in zip(self.layers, state.layers, strict=True):
            x, _ = lstm.read(x, state=its_state)
            x = self.dropout(x, training=training)
        scores = self.attention.scores(x, memory)
        if self.intra_temporal:
            scores = discount_each_past(scores)
        return HiddenAndContext(x, *self.attention.read(scores, memory))

    def _read_in_turn(
        self, x: Tensor, memory: RecurrentMemory, state: RecurrentState, training: bool | None
    ) -> HiddenAndContext:
        """Reads x [B, T, D] step by step: each step needs the context of the one before."""
        ones = ops.ones((ops.shape(x)[0], self.units), self.compute_dtype)
        # One mask for all times (Gal and Ghahramani 2016): no random numbers within the loop.
        masks = [self.dropout(ones, training=training) for _ in self.layers]

        def step(projected: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
            attended, state = self._advance(projected, memory, state, 1, masks)
            parts = [ops.cast(part[:, 0], "float32") for part in attended]
            return ops.concatenate(parts, axis=-1), state

        joined, _ = scan(step, self.layers[0].projection(x), state)
        ends = self.units, 3 * self.units
        seen = ops.cast(joined[..., : ends[1]], self.compute_dtype)
        return HiddenAndContext(seen[..., : ends[0]], seen[..., ends[0] :], joined[..., ends[1] :])

    def _advance(
        self,
        projected: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        num_queries: int,
        masks: list[Tensor] | None = None,
    ) -> tuple[HiddenAndContext, RecurrentState]:
        """Reads one more token of rows R = B * `num_queries`, projected by the first layer."""
        if self.feeding is not None:
            projected = projected + self.feeding(ops.cast(state.context, self.compute_dtype))
        x: Tensor = None
        layers: list[LSTMState] = []
        for index, lstm in enumerate(self.layers):
            if layers:
                projected = lstm.projection(x)
            layers.append(lstm.step(projected, state.layers[index]))
            x = ops.cast(layers[-1].hidden, self.compute_dtype)
            x = x if masks is None else x * masks[index]
        x = ops.reshape(x, (-1, num_queries, self.units))
        scores, past = self.attention.scores(x, memory), state.past
        if self.intra_temporal:
            scores, past = discount_past(scores, ops.reshape(past, ops.shape(scores)))
            past = ops.reshape(past, ops.shape(state.past))
        attended = HiddenAndContext(x, *self.attention.read(scores, memory))
        context: Any = ()
        if self.feeding is not None:
            context = ops.cast(ops.reshape(attended.context, (-1, 2 * self.units)), "float32")
        return attended, RecurrentState(tuple(layers), context, past)

    def _output(self, seen: HiddenAndContext, past: Any, training: bool | None = None) -> Tensor:
        """Returns V [h; context] + b (See et al. 2017, eq. 4), with the past's mean beside them."""
        parts = [seen.hidden, seen.context, *([] if past is None else [past])]
        x = self.output_projection(ops.concatenate(parts, axis=-1))
        return self.dropout(x, training=training)


# The encoder of a recurrent model: N layers of LSTM that read both ways.
#
# Shapes: B batch, S source length, D model dimension, U units.


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
