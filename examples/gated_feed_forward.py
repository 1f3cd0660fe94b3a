"""A Transformer with one other sub-layer: gated feed-forward layers (Shazeer 2020).

    python scripts/train.py --user_module=examples/gated_feed_forward.py --architecture=gated \
        --activation=swish --run_dir=runs/gated --train_source=train.en --train_target=train.de ...
"""

import dataclasses

from keras_transformer import Transformer, TransformerConfig, register_architecture
from keras_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward


class GatedFeedForward(FeedForward):  # outer(activation(W x) * V x)
    def build(self, input_shape):
        super().build(input_shape)
        self.gate = self._dense(self.inner_dim, "gate", input_shape)

    def call(self, x, training=None):
        return self.outer(self.dropout(self.inner(x) * self.gate(x), training=training))


class GatedEncoderLayer(EncoderLayer):
    feed_forward_class = GatedFeedForward


class GatedDecoderLayer(DecoderLayer):
    feed_forward_class = GatedFeedForward


class GatedEncoder(Encoder):
    layer_class = GatedEncoderLayer


class GatedDecoder(Decoder):
    layer_class = GatedDecoderLayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedConfig(TransformerConfig):
    architecture = "gated"  # for --architecture; new fields become flags


@register_architecture(GatedConfig)
class GatedTransformer(Transformer):
    encoder_class, decoder_class = GatedEncoder, GatedDecoder
