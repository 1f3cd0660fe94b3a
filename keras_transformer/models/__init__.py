"""Trainable models, and ensembles of them."""

from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.recurrent import RecurrentModel
from keras_transformer.models.seq2seq import Seq2SeqModel, build_model, register_architecture
from keras_transformer.models.transformer import Transformer
from keras_transformer.models.universal import UniversalTransformer

__all__ = [
    "Ensemble",
    "RecurrentModel",
    "Seq2SeqModel",
    "Transformer",
    "UniversalTransformer",
    "build_model",
    "register_architecture",
]
