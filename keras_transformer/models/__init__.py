"""Trainable models, and ensembles of them."""

from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.registry import build_model, register_architecture
from keras_transformer.models.seq2seq import Seq2SeqModel
from keras_transformer.models.transformer import Transformer

__all__ = ["Ensemble", "Seq2SeqModel", "Transformer", "build_model", "register_architecture"]
