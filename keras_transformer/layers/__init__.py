"""The parts of the models as Keras layers, written with `keras.ops`.

Only `dropout.py` asks TensorFlow something: which replica it is on.
"""

from keras_transformer.layers.attention import KeysValues
from keras_transformer.layers.cross_attention import CrossAttention
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.lstm import LSTM, LSTMState
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.positions import PositionalEncoding, sinusoids
from keras_transformer.layers.recurrent_attention import (
    IntraDecoderAttention,
    RecurrentMemory,
    SingleHeadAttention,
)
from keras_transformer.layers.recurrent_decoder import (
    RecurrentDecoder,
    RecurrentState,
)
from keras_transformer.layers.recurrent_encoder import RecurrentEncoder
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.self_attention import SelfAttention
from keras_transformer.layers.separable_convolution import (
    SeparableConvolution,
    SeparableConvolutions,
)
from keras_transformer.layers.universal import UniversalDecoder, UniversalEncoder

__all__ = [
    "LSTM",
    "CrossAttention",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "IntraDecoderAttention",
    "KeysValues",
    "LSTMState",
    "LayerNormalization",
    "PositionalEncoding",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentMemory",
    "RecurrentState",
    "Residual",
    "SelfAttention",
    "SeparableConvolution",
    "SeparableConvolutions",
    "SingleHeadAttention",
    "TokenEmbedding",
    "UniversalDecoder",
    "UniversalEncoder",
    "sinusoids",
]
