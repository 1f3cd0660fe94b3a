"""Training: preparing a run, its optimizer, checkpoints and validation, and the loop over batches.

Names are imported when they are first used: checking the settings of a run needs no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.training.checkpoints import Checkpoints as Checkpoints
    from keras_transformer.training.distribution import make_strategy as make_strategy
    from keras_transformer.training.optimizer import compile_for_training as compile_for_training
    from keras_transformer.training.run import RunDirectory as RunDirectory
    from keras_transformer.training.settings import RunConfigs as RunConfigs
    from keras_transformer.training.trainer import Stopped as Stopped
    from keras_transformer.training.trainer import train as train

_HOMES = {
    "Checkpoints": "checkpoints",
    "RunConfigs": "settings",
    "RunDirectory": "run",
    "Stopped": "trainer",
    "compile_for_training": "optimizer",
    "make_strategy": "distribution",
    "train": "trainer",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
