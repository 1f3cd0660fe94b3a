"""The encoder: N layers of self-attention and feed-forward (3.1).

Shapes: B batch, S source length, D model dimension.
"""

from typing import Any

import keras

from keras_transformer.decoding import Tensor
from keras_transformer.layers.base import with_scores
from keras_transformer.layers.transformer_layer import TransformerLayer
from keras_transformer.layers.transformer_stack import TransformerStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each within a residual connection.

    Args: see `TransformerLayer`.
    """

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        is_real: Tensor | None = None,
    ) -> Any:
        """Returns [B, S, D] for x [B, S, D]; the bias hides padding.

        With `return_attention_scores` the weights [B, H, S, S] are returned too. The mask `is_real`
        [B, S] hides padding from a transition by convolutions.
        """
        y = self.self_attention_residual.enter(x)
        options = dict(training=training, return_attention_scores=return_attention_scores)
        y, weights = with_scores(self.self_attention(y, bias, **options))
        x = self.self_attention_residual(x, y, training=training)
        y = self.feed_forward_residual.enter(x)
        mask = {} if is_real is None else {"is_real": is_real}
        y = self.feed_forward(y, training=training, **mask)
        x = self.feed_forward_residual(x, y, training=training)
        return (x, weights) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TransformerStack):
    """A stack of `EncoderLayer`s.

    Args: see `TransformerStack`.
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Returns the memory [B, S, D] that a decoder attends to.

        With `return_attention_scores` each layer's weights [B, H, S, S] are returned too.
        """
        scores = []
        options = dict(training=training, return_attention_scores=return_attention_scores)
        for layer in self.layers:
            x, weights = with_scores(layer(x, bias, **options))
            scores.append(weights)
        x = x if self.final_norm is None else self.final_norm(x)
        return (x, scores) if return_attention_scores else x
