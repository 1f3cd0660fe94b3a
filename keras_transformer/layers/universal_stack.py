"""What encoder and decoder of the Universal Transformer share: one layer that is applied again and
again, with signals of position and step added before each time (Dehghani et al. 2019, 2.1).

A fixed number of steps, or as many as each token needs (`halting.py`). The steps are unrolled: the
graph has no loop, and XLA takes it as it is.

Shapes: B batch, T length, D model dimension.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.errors import check_choice
from keras_transformer.layers import halting
from keras_transformer.layers.base import Layer
from keras_transformer.layers.decoder import DecoderLayer
from keras_transformer.layers.encoder import EncoderLayer
from keras_transformer.layers.halting import Halting
from keras_transformer.layers.positions import PositionalEncoding
from keras_transformer.layers.transformer_stack import final_norm


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
        halting_epsilon: see `halting.advance`.
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
        state, output = halting.start(is_real), ops.zeros_like(x)
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
            weight, state = halting.advance(
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
