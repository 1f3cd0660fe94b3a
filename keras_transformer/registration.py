"""Lets `keras.models.load_model` find the classes of this package after `import keras_transformer`.

Keras finds only classes whose modules have been imported. These modules import Keras, for which
commands and the client need not wait, so they are imported right after Keras.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
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
        for name in ("layers", "models", "objectives"):
            importlib.import_module(f"keras_transformer.{name}")


class _KerasFinder(importlib.abc.MetaPathFinder):
    """Finds Keras as usual, and registers the classes once it is imported."""

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
