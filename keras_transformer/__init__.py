"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) for Keras.

Names are imported when they are first used: reading a configuration does not load TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "InputError": "errors",
    "DataConfig": "config",
    "ModelConfig": "config",
    "SearchConfig": "config",
    "TrainingConfig": "config",
    "Tokenizer": "text",
    "Vocabulary": "text",
    "learn_vocabulary": "text",
    "Transformer": "models",
    "InverseSquareRoot": "training",
    "Perplexity": "training",
    "RunDirectory": "training",
    "SmoothedCrossEntropy": "training",
    "TargetTokens": "training",
    "TokenAccuracy": "training",
    "beam_search": "search",
    "sample": "search",
    "Client": "serving",
    "LocalTranslator": "serving",
    "Translator": "serving",
    "export": "serving",
    "load_exported": "serving",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
