"""The attentions of recurrent models: to the source, and to the decoder's own past.

Shapes: B batch, T queries (while decoding the W hypotheses of a sentence), S source length, U width
of a query, A of a key, M of the memory.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.base import Layer
from keras_transformer.layers.lstm import scan
from keras_transformer.layers.masks import attention_bias

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
