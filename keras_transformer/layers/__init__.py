"""The Transformer's parts as Keras layers, written with `keras.ops`.

Only `dropout.py` asks TensorFlow something: which replica it is on.
"""

from keras_transformer.layers.attention import CrossAttention, KeysValues, SelfAttention
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.positions import PositionalEncoding, sinusoids
from keras_transformer.layers.residual import Residual

__all__ = [
    "CrossAttention",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeysValues",
    "LayerNormalization",
    "PositionalEncoding",
    "Residual",
    "SelfAttention",
    "TokenEmbedding",
    "sinusoids",
]
