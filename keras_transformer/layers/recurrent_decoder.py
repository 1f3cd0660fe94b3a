"""The decoder of a recurrent model: N layers of LSTM, and attention to the source.

`call` reads whole sequences, as in training; `step` reads one token of each hypothesis.

Shapes: B batch, T target length, S source length, D model dimension, U units, W hypotheses a
sentence.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.attention import append_slots
from keras_transformer.layers.base import Layer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.lstm import LSTM, LSTMState, scan
from keras_transformer.layers.recurrent_attention import (
    IntraDecoderAttention,
    RecurrentMemory,
    SingleHeadAttention,
    discount_each_past,
    discount_past,
    no_past,
)


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
