"""Sequence-to-sequence models for Keras: the Transformer (Vaswani et al. 2017) and others.

Names are imported when they are first used: reading a configuration does not load TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from keras_transformer.client import Client as Client
    from keras_transformer.client import ServingError as ServingError
    from keras_transformer.config import DataConfig as DataConfig
    from keras_transformer.config import ModelConfig as ModelConfig
    from keras_transformer.config import RecurrentConfig as RecurrentConfig
    from keras_transformer.config import SearchConfig as SearchConfig
    from keras_transformer.config import TrainingConfig as TrainingConfig
    from keras_transformer.config import TransformerConfig as TransformerConfig
    from keras_transformer.config import UniversalConfig as UniversalConfig
    from keras_transformer.data.preprocessor import Seq2SeqPreprocessor as Seq2SeqPreprocessor
    from keras_transformer.errors import InputError as InputError
    from keras_transformer.host import keep_freed_memory as keep_freed_memory
    from keras_transformer.inference import BatchTranslator as BatchTranslator
    from keras_transformer.inference import XlaShapes as XlaShapes
    from keras_transformer.loading import Translator as Translator
    from keras_transformer.models import Ensemble as Ensemble
    from keras_transformer.models import RecurrentModel as RecurrentModel
    from keras_transformer.models import Seq2SeqModel as Seq2SeqModel
    from keras_transformer.models import Transformer as Transformer
    from keras_transformer.models import UniversalTransformer as UniversalTransformer
    from keras_transformer.models import build_model as build_model
    from keras_transformer.models import register_architecture as register_architecture
    from keras_transformer.objectives import InverseSquareRoot as InverseSquareRoot
    from keras_transformer.objectives import Perplexity as Perplexity
    from keras_transformer.objectives import SmoothedCrossEntropy as SmoothedCrossEntropy
    from keras_transformer.objectives import TargetTokens as TargetTokens
    from keras_transformer.objectives import TokenAccuracy as TokenAccuracy
    from keras_transformer.objectives import WarmUp as WarmUp
    from keras_transformer.paragraphs import translate_paragraphs as translate_paragraphs
    from keras_transformer.search import Constraint as Constraint
    from keras_transformer.search import Hypotheses as Hypotheses
    from keras_transformer.search import beam_search as beam_search
    from keras_transformer.search import sample as sample
    from keras_transformer.search import sentence_seeds as sentence_seeds
    from keras_transformer.serving.export import export as export
    from keras_transformer.serving.export import load_exported as load_exported
    from keras_transformer.tasks import Metric as Metric
    from keras_transformer.tasks import Task as Task
    from keras_transformer.tasks import register_task as register_task
    from keras_transformer.text import Tokenizer as Tokenizer
    from keras_transformer.text import Vocabulary as Vocabulary
    from keras_transformer.text import learn_vocabulary as learn_vocabulary
    from keras_transformer.training import RunDirectory as RunDirectory
    from keras_transformer.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "InputError": "errors",
    "keep_freed_memory": "host",
    "DataConfig": "config",
    "ModelConfig": "config",
    "SearchConfig": "config",
    "TrainingConfig": "config",
    "TransformerConfig": "config",
    "RecurrentConfig": "config",
    "UniversalConfig": "config",
    "Seq2SeqPreprocessor": "data.preprocessor",
    "Tokenizer": "text",
    "Vocabulary": "text",
    "learn_vocabulary": "text",
    "Ensemble": "models",
    "Seq2SeqModel": "models",
    "Transformer": "models",
    "RecurrentModel": "models",
    "UniversalTransformer": "models",
    "InverseSquareRoot": "objectives",
    "Perplexity": "objectives",
    "build_model": "models",
    "register_architecture": "models",
    "Metric": "tasks",
    "Task": "tasks",
    "register_task": "tasks",
    "RunDirectory": "training",
    "train": "training",
    "SmoothedCrossEntropy": "objectives",
    "TargetTokens": "objectives",
    "TokenAccuracy": "objectives",
    "WarmUp": "objectives",
    "Hypotheses": "search",
    "Constraint": "search",
    "beam_search": "search",
    "sample": "search",
    "sentence_seeds": "search",
    "Client": "client",
    "BatchTranslator": "inference",
    "ServingError": "client",
    "Translator": "loading",
    "XlaShapes": "inference",
    "export": "serving.export",
    "load_exported": "serving.export",
    "translate_paragraphs": "paragraphs",
}

# Loaded on every Keras backend; the others need TensorFlow's.
_ON_EVERY_BACKEND = (
    "client", "config", "errors", "host", "models", "objectives", "paragraphs", "tasks",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__all__":  # what `import *` imports
        import keras

        is_whole = keras.backend.backend() == "tensorflow"
        names = [name for name, home in _HOMES.items() if is_whole or home in _ON_EVERY_BACKEND]
        return [*names, "__version__"]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
