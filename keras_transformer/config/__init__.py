"""Hyperparameters of model, data, training and search: frozen dataclasses that check themselves.

One place lists every hyperparameter; layers take plain numbers and never see these classes.
`ModelConfig.preset("base")` gives the paper's settings, `to_dict` and `from_dict` a round trip.
"""

from keras_transformer.config.data import (
    DEFAULT_VOCABULARY_SIZE,
    DataConfig,
    split_list,
)
from keras_transformer.config.model import (
    BOS_ID,
    EOS_ID,
    LANGUAGE_CODE,
    NUM_RESERVED,
    PAD_ID,
    UNK_ID,
    WORD_START,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
    TransformerLayersConfig,
    UniversalConfig,
    architectures,
)
from keras_transformer.config.options import JsonConfig, option
from keras_transformer.config.search import SearchConfig, check_options
from keras_transformer.config.training import TRAINING_PRESETS, TrainingConfig

__all__ = [
    "BOS_ID",
    "DEFAULT_VOCABULARY_SIZE",
    "EOS_ID",
    "LANGUAGE_CODE",
    "NUM_RESERVED",
    "PAD_ID",
    "TRAINING_PRESETS",
    "UNK_ID",
    "WORD_START",
    "DataConfig",
    "JsonConfig",
    "ModelConfig",
    "RecurrentConfig",
    "SearchConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TransformerLayersConfig",
    "UniversalConfig",
    "architectures",
    "check_options",
    "option",
    "split_list",
]
