"""The built documentation: no warning, every public name and command."""

import importlib
import os
import pathlib
import pkgutil
import shutil
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.commands.main import COMMANDS

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_public_name_has_an_entry(monkeypatch):
    from sphinx.util.inventory import InventoryFile

    site = _ROOT / "build" / "docs"  # scripts/docs.sh then need not read the pages anew
    shutil.rmtree(site, ignore_errors=True)  # pages that are gone
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-E"]
    done = subprocess.run(
        [*command, "-d", "build/doctrees", "docs", "build/docs"], cwd=_ROOT, timeout=600,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind, names in inventory.items() if kind[:3] == "py:" for name in names}
    monkeypatch.syspath_prepend(str(_ROOT / "docs" / "extensions"))
    names = importlib.import_module("public_names")
    public = {f"{home}.{name}" for name, home in names.public_names().items()}
    for module in pkgutil.iter_modules(keras_transformer.__path__, "keras_transformer."):
        if module.ispkg:
            exported = names.exported_names(importlib.import_module(module.name))
            public |= {f"{module.name}.{name}" for name in exported}
    assert len(public) > 80
    assert public - documented == set()
    assert {f"{command}.--user_module" for command in COMMANDS} <= inventory["std:cmdoption"].keys()
