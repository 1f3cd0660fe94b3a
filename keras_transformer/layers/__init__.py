"""The parts of the models as Keras layers, written with `keras.ops`.

Only dropout uses TensorFlow directly, for its random masks.
"""

from keras_transformer.layers.attention import CrossAttention as CrossAttention
from keras_transformer.layers.attention import SelfAttention as SelfAttention
from keras_transformer.layers.dropout import Dropout as Dropout
from keras_transformer.layers.embedding import PositionalEncoding as PositionalEncoding
from keras_transformer.layers.embedding import TokenEmbedding as TokenEmbedding
from keras_transformer.layers.embedding import sinusoids as sinusoids
from keras_transformer.layers.kv_cache import FixedSlots as FixedSlots
from keras_transformer.layers.kv_cache import GrowingSlots as GrowingSlots
from keras_transformer.layers.kv_cache import KeysValues as KeysValues
from keras_transformer.layers.kv_cache import KVCache as KVCache
from keras_transformer.layers.kv_cache import slot_bias as slot_bias
from keras_transformer.layers.recurrent import LSTM as LSTM
from keras_transformer.layers.recurrent import LSTMState as LSTMState
from keras_transformer.layers.recurrent import RecurrentDecoder as RecurrentDecoder
from keras_transformer.layers.recurrent import RecurrentEncoder as RecurrentEncoder
from keras_transformer.layers.recurrent import RecurrentMemory as RecurrentMemory
from keras_transformer.layers.ssru import SSRU as SSRU
from keras_transformer.layers.transformer import Decoder as Decoder
from keras_transformer.layers.transformer import DecoderLayer as DecoderLayer
from keras_transformer.layers.transformer import Encoder as Encoder
from keras_transformer.layers.transformer import EncoderLayer as EncoderLayer
from keras_transformer.layers.transformer import FeedForward as FeedForward
from keras_transformer.layers.transformer import LayerNormalization as LayerNormalization
from keras_transformer.layers.universal import UniversalDecoder as UniversalDecoder
from keras_transformer.layers.universal import UniversalEncoder as UniversalEncoder
from keras_transformer.layers.windowed_attention import (
    WindowedSelfAttention as WindowedSelfAttention,
)
