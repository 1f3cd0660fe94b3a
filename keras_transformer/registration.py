"""Lets `keras.models.load_model` find the classes of this package after `import keras_transformer`.

Keras finds only classes whose modules have been imported. These modules import Keras, for which
configurations and the client need not wait, so they are imported right after Keras.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


def register_with_keras() -> None:
    """Registers the layers, models, losses and metrics, now or right after Keras is imported."""
    if "keras" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _KerasFinder())


def _register() -> None:
    # Keras must work even if a package that models need is missing, as for the client alone; the
    # import of a model then shows the error.
    with contextlib.suppress(Exception):
        for home in ("layers", "models", "objectives"):
            importlib.import_module(f"keras_transformer.{home}")


class _KerasFinder(importlib.abc.MetaPathFinder):
    """Finds Keras as the other finders do, with a loader that registers the classes."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                if spec.loader is not None:
                    spec.loader = _RegisteringLoader(self, spec.loader)
                return spec
        return None


class _RegisteringLoader(importlib.abc.Loader):
    def __init__(self, finder: _KerasFinder, loader: Any) -> None:
        self._finder = finder
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(ValueError):  # removed already
            sys.meta_path.remove(self._finder)
        _register()
