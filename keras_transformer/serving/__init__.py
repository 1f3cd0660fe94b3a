"""Exports for a model server: SavedModels with their checks, warm-up and settings.

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from keras_transformer.serving.client import Client as Client
    from keras_transformer.serving.complaints import ServingError as ServingError
    from keras_transformer.serving.export_saved_model import export as export
    from keras_transformer.serving.load_saved_model import load_exported as load_exported
    from keras_transformer.serving.translation import Score as Score
    from keras_transformer.serving.translation import Translation as Translation
    from keras_transformer.serving.transport import VersionStatus as VersionStatus

_HOMES = {
    "Client": "client",
    "Score": "translation",
    "ServingError": "complaints",
    "Translation": "translation",
    "VersionStatus": "transport",
    "export": "export_saved_model",
    "load_exported": "load_saved_model",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
