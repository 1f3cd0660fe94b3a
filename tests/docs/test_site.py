"""The built documentation: no warning, every public name and command, links inside, no network."""

import importlib
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer.commands.main import COMMANDS

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MODULES = ["keras_transformer"] + [
    f"keras_transformer.{module.name}"
    for module in pkgutil.iter_modules(keras_transformer.__path__)
    if module.ispkg
]


@pytest.fixture(scope="module")
def site():
    """The folder of the built pages; scripts/docs.sh then need not read them anew."""
    shutil.rmtree(_ROOT / "build" / "docs", ignore_errors=True)  # pages that are gone
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-E"]
    done = subprocess.run(
        [*command, "-d", "build/doctrees", "docs", "build/docs"], cwd=_ROOT, timeout=600,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return _ROOT / "build" / "docs"


@pytest.mark.slow
def test_every_public_name_has_an_entry(site, monkeypatch):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind, names in inventory.items() if kind[:3] == "py:" for name in names}
    monkeypatch.syspath_prepend(str(_ROOT / "docs" / "extensions"))
    names = importlib.import_module("public_names")
    homes = {f"{home}.{name}" for name, home in names.public_names().items()}
    public = {
        f"{name}.{each}"
        for name in _MODULES[1:]
        for each in names.exported_names(importlib.import_module(name))
    }
    assert len(public) > 80
    assert (homes | public) - documented == set()
    assert {f"{command}.--user_module" for command in COMMANDS} <= inventory["std:cmdoption"].keys()


@pytest.mark.slow
def test_nothing_comes_from_the_network(site):
    loads = re.compile(r"""<(?:img|script|link)\b[^>]*\s(?:href|src)="(?:https?:)?//""")
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > 40 and not any(map(loads.search, pages))
    for path in site.rglob("*.css"):
        assert not re.findall(r"@import|url\(['\"]?https?:", path.read_text(encoding="utf-8")), path
