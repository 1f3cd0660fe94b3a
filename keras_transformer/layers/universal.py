"""Encoder and decoder of the Universal Transformer (Dehghani et al. 2019).

Each is one layer, applied again and again, with signals of position and step added before each time
(2.1): a fixed number of steps, or until each token halts (adaptive computation time, Graves 2016).
The steps are unrolled: the graph has no loop, and XLA takes it as it is.

Shapes: B batch, T length, S source length, D model dimension, H heads, W hypotheses a sentence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import ReadsMemory, full_precision
from keras_transformer.layers.embedding import sinusoids
from keras_transformer.layers.kv_cache import KeysValues, KVCache
from keras_transformer.layers.masks import Bias, as_bool, combine_masks, get_keras_mask
from keras_transformer.layers.transformer import (
    DecoderLayer,
    EncoderLayer,
    TransformerStack,
)


class Halting(NamedTuple):
    """The halting state of each token; padding never runs."""

    is_running: Tensor  # bool [B, T], or of any shape, as all of these: it has not halted
    total: Tensor  # float32, the sum of its halting probabilities so far
    steps: Tensor  # float32, the steps it has taken, N
    remainders: Tensor  # float32, 1 - its probabilities before its last step, R; 0 before that


def start(is_active: Tensor) -> Halting:
    """Returns the state before the first step; tokens where the mask is False take no step."""
    zeros = ops.zeros_like(is_active, dtype="float32")
    return Halting(is_active, zeros, zeros, zeros)


def advance(
    halting: Halting, probabilities: Tensor, epsilon: float, is_last: bool
) -> tuple[Tensor, Halting]:
    """Takes one step (Graves 2016, eq. 5 to 9).

    Args:
        halting: the state after the steps before.
        probabilities: float32, the halting probabilities of this step.
        epsilon: a token halts once its probabilities sum to more than 1 - epsilon.
        is_last: whether all tokens halt at this step. They then get their remainder too, so their
            weights sum to 1 and the ponder cost has a gradient; tensor2tensor gives them none.

    Returns:
        The float32 weight of each token's state after this step, 0 if it had halted before; and the
        next halting state.
    """
    running = halting.is_running
    rest = 1.0 - halting.total
    halts = running if is_last else running & (probabilities > rest - epsilon)
    goes_on = running & ~halts
    weights = ops.where(halts, rest, ops.where(goes_on, probabilities, 0.0))
    return weights, Halting(
        is_running=goes_on,
        total=halting.total + ops.where(goes_on, probabilities, 0.0),
        steps=halting.steps + ops.cast(running, "float32"),
        remainders=ops.where(halts, rest, halting.remainders),
    )


class Steps(NamedTuple):
    """The steps of a stack."""

    # What the layer returns beside its output at each step: a list of its attention scores, or of
    # its KV cache and its attention to the memory while decoding.
    outputs: list[list[Any]]
    weights: list[Tensor]  # float32 [B, T] for each adaptive step: of its state in the output
    halting: Halting  # after the last step


class UniversalStack(TransformerStack):
    """The base of both stacks.

    Args:
        num_steps: how often the layer is applied; with adaptive steps, the maximum.
        adaptive_steps: whether each token halts by itself.
        halting_epsilon: see `advance`.
        halting_bias: initial bias of the halting unit.
        **kwargs: see `TransformerLayer`.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        adaptive_steps: bool = True,
        halting_epsilon: float = 0.01,
        halting_bias: float = 1.0,
        **kwargs: Any,  # Keras saves a name only if they are called so
    ) -> None:
        super().__init__(num_layers=1, **kwargs)
        self.num_steps = num_steps
        self.halting_epsilon = halting_epsilon
        self.halting_unit = None
        if adaptive_steps:
            self.halting_unit = keras.layers.Dense(
                1,
                activation="sigmoid",
                bias_initializer=keras.initializers.Constant(halting_bias),
                name="halting_unit",
                dtype="float32",  # whatever the model computes in: sums are compared with 1
            )

    @property
    def layer(self) -> Any:
        """The layer of all steps."""
        return self.layers[0]

    def build(self, input_shape: tuple[int | None, ...], *memory_shape: Any) -> None:
        super().build(input_shape, *memory_shape)
        if self.halting_unit is not None:
            self.halting_unit.build(input_shape)

    def _repeat(
        self,
        x: Tensor,
        positions: Tensor | None,
        is_active: Tensor,
        apply: Callable[[Tensor, int], tuple[Any, ...]],
    ) -> tuple[Tensor, Steps]:
        """Applies the layer step by step.

        Args:
            x: [B, T, D], or of any shape that ends with D.
            positions: signals that broadcast to x; None for the sinusoids of 0 to T - 1.
            is_active: bool [B, T], True at tokens that take steps.
            apply: the layer, a function of its input and the number of the step, from 0; returns
                the layer's output and what `Steps.outputs` keeps.

        Returns:
            The stack's output, of x's shape, and the steps.
        """
        if positions is None:
            positions = ops.cast(sinusoids(ops.arange(ops.shape(x)[1]), x.shape[-1]), x.dtype)
        state, output = start(is_active), ops.zeros_like(x)
        outputs, weights = [], []
        for step in range(self.num_steps):
            number = ops.convert_to_tensor(step + 1, "int32")
            signal = sinusoids(number, x.shape[-1], dtype=full_precision(x.dtype))  # [D]
            entering = x + positions + ops.cast(signal, x.dtype)
            new, *others = apply(entering, step)
            outputs.append(others)
            if self.halting_unit is None:
                x = output = new
                continue
            running = ops.expand_dims(state.is_running, -1)
            probabilities = ops.squeeze(self.halting_unit(ops.cast(entering, "float32")), -1)
            is_last = step == self.num_steps - 1
            weight, state = advance(state, probabilities, self.halting_epsilon, is_last)
            weights.append(weight)
            # Graves 2016, eq. 13
            output = output + ops.expand_dims(ops.cast(weight, new.dtype), -1) * new
            x = ops.where(running, new, x)  # tokens that have halted keep their state
        if self.final_norm is not None:
            output = self.final_norm(output)
        if self.halting_unit is None:
            state = state._replace(steps=self.num_steps * ops.cast(is_active, "float32"))
        return output, Steps(outputs, weights, state)


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalEncoder(UniversalStack):
    """One `EncoderLayer`, applied until each token halts.

    Args: see `UniversalStack`.
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_steps: bool = False,
    ) -> Any:
        """Returns the memory [B, S, D] and, on request, the `Steps` with scores [B, H, S, S].

        Args:
            x: embeddings [B, S, D].
            mask, use_causal_mask, training: see `SelfAttention.call`; padding takes no step.
            positions: position signals [S, D] or [B, S, D]; None for sinusoids.
            return_steps: whether to return the steps too.
        """
        options = dict(
            attention_mask=Bias(combine_masks(x, mask)),
            use_causal_mask=use_causal_mask,
            training=training,
            return_attention_scores=True,
        )
        output, steps = self._repeat(
            x, positions, _real(x, mask), lambda entering, _: self.layer(entering, **options)
        )
        return (output, steps) if return_steps else output


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalDecoder(ReadsMemory, UniversalStack):
    """One `DecoderLayer`, applied until each token halts.

    Args: see `UniversalStack`.
    """

    layer_class = DecoderLayer

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions: Tensor | None = None,
        is_active: Tensor | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,
        return_steps: bool = False,
    ) -> Any:
        """Returns [B, T, D] and, on request, the `Steps` with the scores of self-attention
        [B, H, T, T] and of cross-attention [B, H, T, S].

        Args:
            x: embeddings [B, T, D].
            memory: the encoder's output [B, S, D].
            mask, memory_mask, use_causal_mask, training: see `DecoderLayer.call`.
            positions, return_steps: see `UniversalEncoder.call`.
            is_active: bool [B, T], True at tokens that take steps; None for all but padding.
        """
        options = dict(
            memory=self.project_memory(memory),
            memory_mask=Bias(combine_masks(memory, memory_mask)),
            attention_mask=Bias(combine_masks(x, mask)),
            use_causal_mask=use_causal_mask,
            training=training,
            return_attention_scores=True,
        )
        is_active = _real(x, mask) if is_active is None else is_active
        output, steps = self._repeat(
            x, positions, is_active, lambda entering, _: self.layer(entering, **options)
        )
        return (output, steps) if return_steps else output

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys and values of the memory [B, S, D], which all steps share."""
        return self.layer.cross_attention.project_memory(memory)

    def step(
        self,
        x: Tensor,
        memory: KeysValues,
        kv_cache: list[KVCache],
        time: Tensor | int,
        score_bias: Tensor | None = None,
        memory_score_bias: Tensor | None = None,
        positions: Tensor | None = None,
        is_active: Tensor | None = None,
    ) -> tuple[Tensor, list[KVCache], Tensor]:
        """Reads the new tokens x [B * W, D] of W hypotheses of a sentence, or of B sequences.

        A token that has halted still adds keys and values at the steps that it does not take:
        later tokens that are still running attend to them as in `call`.

        Args:
            x: embeddings of the new tokens.
            kv_cache: of each step.
            memory, memory_score_bias, time, score_bias: see `DecoderLayer.step`.
            positions: the signal of their position, [D]; None for sinusoids.
            is_active: bool [B * W], True at tokens that take steps; None for all.

        Returns:
            [B * W, D], the KV caches with the new tokens added, and the tokens' attention to the
            memory, [B, H, W, S].
        """
        if positions is None:
            position = ops.convert_to_tensor(time, "int32")
            positions = ops.cast(sinusoids(position, x.shape[-1]), x.dtype)

        def apply(entering: Tensor, step: int) -> tuple[Any, ...]:
            cache = kv_cache[step]
            return self.layer.step(entering, memory, cache, time, score_bias, memory_score_bias)

        is_active = _real(x) if is_active is None else is_active
        output, steps = self._repeat(x, positions, is_active, apply)
        caches, attentions = zip(*steps.outputs, strict=True)
        num_hypotheses = attentions[0].shape[2]
        weights = [ops.reshape(weight, (-1, num_hypotheses)) for weight in steps.weights]
        return output, list(caches), mix_attention(list(attentions), weights)

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> list[KVCache]:
        """Returns each step's KV cache before the first token."""
        attention = self.layer.self_attention
        return [attention.empty_kv_cache(batch, num_slots) for _ in range(self.num_steps)]


def mix_attention(attentions: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Returns the attention [B, H, T, S] of all steps, summed with the weights [B, T] of the steps.

    With a fixed number of steps it is that of the last step.
    """
    if not weights:
        return attentions[-1]
    pairs = zip(attentions, weights, strict=True)
    return sum(
        ops.cast(attention, "float32") * weight[:, None, :, None] for attention, weight in pairs
    )


def _real(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the mask [...] of x [..., D], or the Keras mask of x; all True without any."""
    mask = get_keras_mask(x) if mask is None else mask
    return ops.ones_like(x[..., 0], dtype="bool") if mask is None else as_bool(mask, "mask")
