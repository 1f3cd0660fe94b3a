"""From text to text: the translator in Python, and its export for a model server.

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from keras_transformer.serving.exported import load_exported as load_exported
    from keras_transformer.serving.exporter import export as export
    from keras_transformer.serving.local import LocalTranslator as LocalTranslator
    from keras_transformer.serving.translator import Translator as Translator
    from keras_transformer.serving.xla import XlaShapes as XlaShapes

_HOMES = {
    "LocalTranslator": "local",
    "Translator": "translator",
    "export": "exporter",
    "load_exported": "exported",
    "XlaShapes": "xla",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
