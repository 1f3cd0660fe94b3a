"""From text to text: the translator in Python, its export for a model server, and the client.

Names are imported when they are first used: the client needs no TensorFlow.
"""

import importlib
from typing import Any

_HOMES = {
    "Client": "client",
    "LocalTranslator": "local",
    "Score": "translation",
    "ServingError": "complaints",
    "Translation": "translation",
    "Translator": "translator",
    "VersionStatus": "transport",
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
