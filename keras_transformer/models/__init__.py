"""Trainable models, and ensembles of them."""

from keras_transformer.models.ensemble import Ensemble as Ensemble
from keras_transformer.models.recurrent import RecurrentModel as RecurrentModel
from keras_transformer.models.seq2seq import Seq2SeqModel as Seq2SeqModel
from keras_transformer.models.seq2seq import build_model as build_model
from keras_transformer.models.seq2seq import register_architecture as register_architecture
from keras_transformer.models.transformer import Transformer as Transformer
from keras_transformer.models.universal import UniversalTransformer as UniversalTransformer
