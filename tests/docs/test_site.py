"""The built documentation: no warning, every public name and command, links inside, no network."""

import html.parser
import importlib
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import urllib.parse

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
def site(tmp_path_factory):
    """The folder of the built pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", "docs", folder / "html"],
        cwd=_ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


class _Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id"))
        if tag == "a":
            self.links.append(values.get("href") or "")
        elif tag in ("img", "script"):
            self.loaded.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(values.get("href") or "")


@pytest.mark.slow
def test_every_public_name_has_an_entry(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind, names in inventory.items() if kind[:3] == "py:" for name in names}
    homes = {f"keras_transformer.{home}.{name}" for name, home in keras_transformer._HOMES.items()}
    public = {
        f"{name}.{each}"
        for name in _MODULES[1:]
        for each in getattr(importlib.import_module(name), "__all__", ())
    }
    assert len(public) > 100
    assert (homes | public) - documented == set()
    assert {f"{command}.--user_module" for command in COMMANDS} <= inventory["std:cmdoption"].keys()


@pytest.mark.slow
def test_links_between_pages_lead_somewhere(site):
    pages = {path.resolve(): _Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            anchor = urllib.parse.unquote(url.fragment)
            known = pages[target].anchors if target in pages else {""}
            if not target.exists() or anchor not in known:
                broken.append(f"{path.name}: {link}")
    assert not broken


@pytest.mark.slow
def test_pages_load_nothing_from_the_network(site):
    for path in site.rglob("*.html"):
        assert not [url for url in _Page(path).loaded if urllib.parse.urlsplit(url).netloc], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"@import|url\(['\"]?https?:", path.read_text(encoding="utf-8")), path


def test_each_package_and_command_is_in_the_reference():
    folder = _ROOT / "docs" / "reference"
    commands = (folder / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\.\. command:: (\w+)$", commands, re.M) == list(COMMANDS)
    pages = [page.read_text(encoding="utf-8") for page in (folder / "python").glob("*.md")]
    for name in _MODULES[1:]:
        if hasattr(importlib.import_module(name), "__all__"):
            assert any(f".. public:: {name}\n" in page for page in pages), name


@pytest.mark.parametrize("name", ["README.md", "BUILD_NOTES.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_pages_in_the_root_exist(name):
    text = (_ROOT / name).read_text(encoding="utf-8")
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (_ROOT / target).exists()] == []
