"""Training: the optimizer, checkpoints, validation and the run that ties them together."""

from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.compilation import compile_for_training
from keras_transformer.training.corpora import (
    check_symbols,
    make_vocabularies,
    read_test_text,
    read_validation_texts,
    tokenize,
    training_corpus,
)
from keras_transformer.training.fit import is_finished, train
from keras_transformer.training.input_pipeline import num_shapes
from keras_transformer.training.run_config import RunConfigs
from keras_transformer.training.run_directory import RunDirectory
from keras_transformer.training.run_shortlist import load_shortlist
from keras_transformer.training.stopping import Stopped
from keras_transformer.training.strategies import (
    computes_in_bfloat16,
    make_strategy,
    worker_of,
)
from keras_transformer.training.validation import check_validation

__all__ = [
    "Checkpoints",
    "RunConfigs",
    "RunDirectory",
    "Stopped",
    "check_symbols",
    "check_validation",
    "compile_for_training",
    "computes_in_bfloat16",
    "is_finished",
    "load_shortlist",
    "make_strategy",
    "make_vocabularies",
    "num_shapes",
    "read_test_text",
    "read_validation_texts",
    "tokenize",
    "train",
    "training_corpus",
    "worker_of",
]
