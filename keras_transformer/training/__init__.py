"""Training: the optimizer, checkpoints, validation and the run that ties them together."""

from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import (
    computes_in_bfloat16,
    make_strategy,
    worker_of,
)
from keras_transformer.training.prepare import (
    check_symbols,
    load_shortlist,
    make_vocabularies,
    read_test_text,
    read_validation_texts,
    tokenize,
    training_corpus,
)
from keras_transformer.training.run import RunConfigs, RunDirectory
from keras_transformer.training.trainer import (
    Stopped,
    compile_for_training,
    is_finished,
    num_shapes,
    train,
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
