"""Encoder and decoder of the Universal Transformer (Dehghani et al. 2019).

Shapes: B batch, T length, S source length, D model dimension, H heads, W hypotheses a sentence.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.base import Layer
from keras_transformer.layers.positions import PositionalEncoding
from keras_transformer.layers.transformer import DecoderLayer, EncoderLayer, final_norm

# Adaptive computation time (Graves 2016), for each token by itself.
#
# Shapes: B batch, T length.


class Halting(NamedTuple):
    """How far each token has come.

    Attributes:
        is_running: bool, whether it has not halted; padding never runs.
        total: float32, its halting probabilities so far.
        steps: float32, the steps that it has taken, N.
        remainders: float32, 1 less its halting probabilities before its last step, R; 0 before
            that.
    """

    is_running: Tensor  # [B, T], or of any shape, as all of these
    total: Tensor
    steps: Tensor
    remainders: Tensor


def start(is_real: Tensor) -> Halting:
    """Returns the state before the first step, for a mask that is True at real tokens."""
    zeros = ops.zeros_like(is_real, dtype="float32")
    return Halting(is_real, zeros, zeros, zeros)


def advance(
    halting: Halting, probabilities: Tensor, epsilon: float, is_last: bool
) -> tuple[Tensor, Halting]:
    """Takes one step (Graves 2016, eq. 5 to 9).

    Args:
        halting: of the steps before.
        probabilities: float32, those that the tokens halt now.
        epsilon: a token halts where its probabilities sum to more than 1 - epsilon.
        is_last: whether all tokens halt at this step. They get their remainder then too, so that
            their weights sum to 1 and the ponder cost has a gradient; tensor2tensor gives them
            none.

    Returns:
        The float32 weight of each token's state after this step, 0 where it had halted before, and
        how far it has come then.
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


# What encoder and decoder of the Universal Transformer share: one layer that is applied again and
# again, with signals of position and step added before each time (Dehghani et al. 2019, 2.1).
#
# A fixed number of steps, or as many as each token needs (`advance`). The steps are unrolled: the
# graph has no loop, and XLA takes it as it is.
#
# Shapes: B batch, T length, D model dimension.


class Steps(NamedTuple):
    """What a stack did at its steps.

    Attributes:
        outputs: for each step, what the layer gave beside its output.
        weights: for each adaptive step, float32 [B, T], the weight of the state after it in the
            output.
        halting: how far each token has come.
    """

    outputs: list[Any]
    weights: list[Tensor]
    halting: Halting


class UniversalStack(Layer):
    """The base of both stacks.

    Args:
        num_steps: how many times the layer is applied; with adaptive steps, the maximum.
        adaptive_steps: whether each token halts by itself.
        halting_output: "sum" or "blend", see `UniversalConfig`.
        halted_tokens: "copy" or "run_on", see `UniversalConfig`.
        halting_epsilon: see `advance`.
        halting_bias: first value of the halting unit's bias.
        step_signals: "sinusoidal" or "learned".
        **layer_options: see `TransformerLayer`.
    """

    layer_class: type[EncoderLayer | DecoderLayer]

    def __init__(
        self,
        *,
        num_steps: int,
        adaptive_steps: bool = True,
        halting_output: Literal["sum", "blend"] = "sum",
        halted_tokens: Literal["copy", "run_on"] = "copy",
        halting_epsilon: float = 0.01,
        halting_bias: float = 1.0,
        step_signals: Literal["sinusoidal", "learned"] = "sinusoidal",
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **layer_options: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        check_choice("halting_output", halting_output, ("sum", "blend"))
        check_choice("halted_tokens", halted_tokens, ("copy", "run_on"))
        self.num_steps = num_steps
        self.halting_output = halting_output
        self.halted_tokens = halted_tokens
        self.halting_epsilon = halting_epsilon
        self.step_signals = step_signals
        self.layer: Any = self.layer_class(**layer_options, name="layer", dtype=self.dtype_policy)
        self.has_windows = layer_options.get("transition") == "separable_convolution"
        self.final_norm = final_norm(layer_options, self.dtype_policy)
        self.halting_unit = None
        if adaptive_steps:
            self.halting_unit = keras.layers.Dense(
                1,
                activation="sigmoid",
                bias_initializer=keras.initializers.Constant(halting_bias),
                name="halting_unit",
                dtype="float32",  # whatever the model computes in: sums are compared with 1
            )

    def build(self, input_shape: Any, *other_shapes: Any) -> None:
        self.signals = PositionalEncoding(
            input_shape[-1],
            "learned" if self.step_signals == "learned" else "sinusoidal",
            first_position=0 if self.step_signals == "learned" else 1,
            max_positions=self.num_steps,
            name="signals",
            dtype=self.dtype_policy,
        )
        self.signals.build()
        for layer in (self.layer, self.final_norm, self.halting_unit):
            if layer is not None and not layer.built:  # by `project_memory`
                layer.build(input_shape)

    def repeat_layer(
        self,
        x: Tensor,
        positions: Tensor,
        is_real: Tensor,
        apply: Callable[[Tensor, int], tuple[Tensor, Any]],
    ) -> tuple[Tensor, Steps]:
        """Applies the layer step by step.

        Args:
            x: [B, T, D], or of any shape that ends with D.
            positions: signals that broadcast to x.
            is_real: bool [B, T], False at padding.
            apply: gets the layer's input and the number of the step, from 0.

        Returns:
            What leaves the stack, of x's shape, and what happened.
        """
        state, output = start(is_real), ops.zeros_like(x)
        outputs, weights = [], []
        for step in range(self.num_steps):
            signal = self.signals(ops.convert_to_tensor(step, "int32"))
            if self.step_signals == "learned":  # as large as embeddings, like tensor2tensor's
                signal = signal * self.signals.model_dim**0.5
            entering = x + positions + signal
            new, other = apply(entering, step)
            outputs.append(other)
            if self.halting_unit is None:
                x = output = new
                continue
            running = state.is_running[..., None]
            weight, state = advance(
                state,
                ops.squeeze(self.halting_unit(ops.cast(entering, "float32")), -1),
                self.halting_epsilon,
                is_last=step == self.num_steps - 1,
            )
            weights.append(weight)
            weight = ops.cast(weight, new.dtype)[..., None]
            keep = 1.0 - weight if self.halting_output == "blend" else 1.0
            output = keep * output + weight * new
            x = ops.where(running, new, x) if self.halted_tokens == "copy" else new
        if self.final_norm is not None:
            output = self.final_norm(output)
        if self.halting_unit is None:
            steps = self.num_steps * ops.cast(is_real, "float32")
            state = state._replace(steps=steps)
        return output, Steps(outputs, weights, state)


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalEncoder(UniversalStack):
    """One `EncoderLayer`, applied again and again.

    Args: see `UniversalStack`.
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        positions: Tensor,
        is_real: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_steps: bool = False,
    ) -> Any:
        """Returns the memory [B, S, D] and, if asked for, the `Steps` with weights [B, H, S, S].

        Args:
            x: embeddings [B, S, D].
            positions: their signals, [S, D] or [B, S, D].
            is_real: bool [B, S], False at padding.
            bias: hides padding from attention.
            training: whether dropout is on.
            return_steps: whether to return the steps too.
        """
        mask = {"is_real": is_real} if self.has_windows else {}

        def apply(entering: Tensor, step: int) -> tuple[Tensor, Tensor]:
            return self.layer(
                entering, bias, training=training, return_attention_scores=True, **mask
            )

        output, steps = self.repeat_layer(x, positions, is_real, apply)
        return (output, steps) if return_steps else output


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalDecoder(UniversalStack):
    """One `DecoderLayer`, applied again and again.

    Args: see `UniversalStack`.
    """

    layer_class = DecoderLayer

    def project_memory(self, memory: Tensor) -> KeysValues:
        """Returns keys and values of the encoder's output [B, S, D], the same for all steps."""
        return self.layer.cross_attention.project_memory(memory)

    def call(
        self,
        x: Tensor,
        positions: Tensor,
        is_real: Tensor,
        memory: KeysValues,
        self_bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        training: bool | None = None,
        return_steps: bool = False,
    ) -> Any:
        """Returns [B, T, D] and, if asked for, the `Steps` with the weights of self-attention
        [B, H, T, T] and of cross-attention [B, H, T, S].

        Args:
            x: embeddings [B, T, D].
            positions: their signals, [T, D] or [B, T, D].
            is_real: bool [B, T], False at padding.
            memory: of `project_memory`.
            self_bias, memory_bias: see `DecoderLayer.call`.
            training: whether dropout is on.
            return_steps: whether to return the steps too.
        """

        def apply(entering: Tensor, step: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            new, *attention = self.layer(
                entering,
                memory,
                self_bias,
                memory_bias,
                training=training,
                return_attention_scores=True,
            )
            return new, tuple(attention)

        output, steps = self.repeat_layer(x, positions, is_real, apply)
        return (output, steps) if return_steps else output

    def step(
        self,
        x: Tensor,
        positions: Tensor,
        is_real: Tensor,
        memory: KeysValues,
        memory_bias: Tensor | None,
        kv_cache: list[KeysValues],
        windows: list[Any],
        time: Tensor,
        self_bias: Tensor,
    ) -> tuple[Tensor, list[KeysValues], list[Any], Tensor]:
        """Reads the new tokens x [B * W, D] of W hypotheses.

        A token that has halted still adds keys and values at the steps that it does not take:
        later tokens, which continue, attend to them as in `call`.

        Args:
            x: embeddings of the new tokens.
            positions: the signal of their position, [D].
            is_real: bool [B * W].
            kv_cache: that of each step.
            windows: those of each step, see `DecoderLayer.step`.
            memory, memory_bias, time, self_bias: see `DecoderLayer.step`.

        Returns:
            [B * W, D], the KV caches with the new tokens added, the next windows, and the tokens'
            attention to the memory, [B, H, W, S].
        """

        def apply(entering: Tensor, step: int) -> tuple[Tensor, Any]:
            window = windows[step] if windows else None
            new, *others = self.layer.step(
                entering, memory, memory_bias, kv_cache[step], time, self_bias, window
            )
            return new, others

        output, steps = self.repeat_layer(x, positions, is_real, apply)
        caches, attentions, windows_after = zip(*steps.outputs, strict=True)
        attention = self.mix_attention(
            list(attentions),
            [ops.reshape(weight, (-1, self_bias.shape[2])) for weight in steps.weights],
        )
        return output, list(caches), list(windows_after) if windows else [], attention

    def mix_attention(self, attentions: list[Tensor], weights: list[Tensor]) -> Tensor:
        """Returns the attention [B, H, T, S] of all steps: the sum by their weights [B, T].

        That of the last step, where their number is fixed.
        """
        if not weights:
            return attentions[-1]
        pairs = zip(attentions, weights, strict=True)
        return sum(
            ops.cast(attention, "float32") * weight[:, None, :, None] for attention, weight in pairs
        )

    def empty_kv_cache(self, batch: int | Tensor, num_slots: int = 0) -> list[KeysValues]:
        """Returns each step's KV cache before the first token, see `SelfAttention`."""
        attention = self.layer.self_attention
        return [attention.empty_kv_cache(batch, num_slots) for _ in range(self.num_steps)]

    def empty_windows(self, batch: int | Tensor, num_hypotheses: int) -> list[Any]:
        """Returns each step's windows before the first token; none of a feed-forward transition."""
        if not self.has_windows:
            return []
        transition = self.layer.feed_forward
        return [transition.empty_windows(batch, num_hypotheses) for _ in range(self.num_steps)]
