"""The parts of the models as Keras layers, written with `keras.ops`.

Only dropout uses TensorFlow directly, for its random masks.
"""

from keras_transformer.layers.attention import CrossAttention, SelfAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import PositionalEncoding, TokenEmbedding, sinusoids
from keras_transformer.layers.kv_cache import (
    FixedSlots,
    GrowingSlots,
    KeysValues,
    KVCache,
    slot_bias,
)
from keras_transformer.layers.recurrent import (
    LSTM,
    LSTMState,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentMemory,
)
from keras_transformer.layers.ssru import SSRU
from keras_transformer.layers.transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNormalization,
)
from keras_transformer.layers.universal import UniversalDecoder, UniversalEncoder
from keras_transformer.layers.windowed_attention import WindowedSelfAttention

__all__ = [
    "LSTM",
    "SSRU",
    "CrossAttention",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "FixedSlots",
    "GrowingSlots",
    "KVCache",
    "KeysValues",
    "LSTMState",
    "LayerNormalization",
    "PositionalEncoding",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentMemory",
    "SelfAttention",
    "TokenEmbedding",
    "UniversalDecoder",
    "UniversalEncoder",
    "WindowedSelfAttention",
    "sinusoids",
    "slot_bias",
]
