"""Encoder and decoder of the Universal Transformer (Dehghani et al. 2019).

Shapes: B batch, T length, S source length, D model dimension, H heads, W hypotheses a sentence.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Tensor
from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.decoder import DecoderLayer
from keras_transformer.layers.encoder import EncoderLayer
from keras_transformer.layers.universal_stack import UniversalStack


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
