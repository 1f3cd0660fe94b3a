"""Hyperparameters of model, data, training and search: frozen dataclasses that check themselves.

One place lists every hyperparameter; layers take plain numbers and never see these classes.
`TransformerConfig.preset("base")` has the paper's settings, `to_dict` and `from_dict` a round trip.
"""

from keras_transformer.config.data import DEFAULT_VOCABULARY_SIZE as DEFAULT_VOCABULARY_SIZE
from keras_transformer.config.data import DataConfig as DataConfig
from keras_transformer.config.data import split_list as split_list
from keras_transformer.config.model import BOS_ID as BOS_ID
from keras_transformer.config.model import EOS_ID as EOS_ID
from keras_transformer.config.model import LANGUAGE_CODE as LANGUAGE_CODE
from keras_transformer.config.model import NUM_RESERVED as NUM_RESERVED
from keras_transformer.config.model import PAD_ID as PAD_ID
from keras_transformer.config.model import UNK_ID as UNK_ID
from keras_transformer.config.model import WORD_START as WORD_START
from keras_transformer.config.model import ModelConfig as ModelConfig
from keras_transformer.config.model import RecurrentConfig as RecurrentConfig
from keras_transformer.config.model import TransformerConfig as TransformerConfig
from keras_transformer.config.model import TransformerLayersConfig as TransformerLayersConfig
from keras_transformer.config.model import UniversalConfig as UniversalConfig
from keras_transformer.config.model import architectures as architectures
from keras_transformer.config.options import JsonConfig as JsonConfig
from keras_transformer.config.options import option as option
from keras_transformer.config.search import SearchConfig as SearchConfig
from keras_transformer.config.search import check_options as check_options
from keras_transformer.config.training import TRAINING_PRESETS as TRAINING_PRESETS
from keras_transformer.config.training import TrainingConfig as TrainingConfig
