"""What is installed: requirements, extras, the built distributions, the client alone."""

import email.message
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import zipfile

import pytest

import keras_transformer

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _run(*command, cwd, **environment):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": ""} | environment,  # what is installed, not this tree
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _new_python(folder):
    _run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "requirements.txt", "setup.py", "LICENSE", "README.md"):
        shutil.copy(_ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_ROOT / "keras_transformer", folder / "keras_transformer", ignore=ignored)
    program = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    name = _run(sys.executable, "-c", program, cwd=folder).splitlines()[-1]
    return folder / "dist" / name


def test_every_extra_that_a_message_names_exists():
    extras = importlib.metadata.metadata("keras-seq2seq").get_all("Provides-Extra")
    sources = [path.read_text(encoding="utf-8") for path in _ROOT.glob("keras_transformer/**/*.py")]
    named = {
        name
        for text in sources
        for name in re.findall(r"(?:needs_extra\(\"|keras-seq2seq\[)(\w+)[\"\]]", text)
    }
    assert {"client", "serving", "datasets", "ctranslate2", "plot"} <= named
    assert named <= set(extras)


@pytest.mark.slow
def test_wheel_from_the_sdist_works_in_a_new_environment(sdist, tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet"]
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, sdist, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"keras_seq2seq-{keras_transformer.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = (name for name in names if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    installed = {
        str(path.relative_to(_ROOT))
        for path in (_ROOT / "keras_transformer").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == installed
    assert metadata["License-Expression"] == "Apache-2.0"
    requirements = metadata.get_all("Requires-Dist")
    assert {"numpy", "keras>=3.10", "tensorflow>=2.20"} <= set(requirements)

    python = _new_python(tmp_path / "new")
    _run(python, "-m", "pip", "--quiet", "install", "--no-deps", wheel, cwd=tmp_path)
    # The requirements come from the environment of the tests; this package does not.
    (packages,) = (tmp_path / "new").glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text("\n".join(site.getsitepackages()))
    program = "import keras_transformer as k; print(k.__file__, k.SearchConfig())"
    output = _run(python, "-c", program, cwd=tmp_path)
    assert output.startswith(str(packages)) and "beam_size=4" in output
    version = _run(python.parent / "keras-transformer", "--version", cwd=tmp_path)
    assert version == f"keras-transformer {keras_transformer.__version__}\n"
    assert "--run_dir" in _run(python.parent / "keras-transformer", "train", "--help", cwd=tmp_path)


@pytest.mark.slow
def test_client_alone_installs_and_translates_without_tensorflow(sdist, tmp_path):
    from fake_server import serve_rest, upper_case_model

    python = _new_python(tmp_path / "new")
    pip = [python, "-m", "pip"]
    variable = dict(KERAS_TRANSFORMER_CLIENT="1")
    _run(*pip, "--quiet", "install", sdist, cwd=tmp_path, **variable)
    packages = json.loads(_run(*pip, "list", "--format=json", cwd=tmp_path))
    names = {package["name"].replace("-", "_") for package in packages}
    required = {
        "absl_py", "filelock", "grpcio", "keras_seq2seq", "lazy_loader", "packaging", "protobuf",
        "typing_extensions", "urllib3",
    }  # fmt: skip
    assert names - {"pip", "setuptools"} == required
    with serve_rest(upper_case_model()) as address:
        program = f"""
from keras_transformer import Client
with Client("{address}", protocol="rest") as client:
    print(client.translate("a horse").text)
"""
        assert _run(python, "-c", program, cwd=tmp_path) == "A HORSE\n"
        (tmp_path / "input.en").write_text("a man\n")
        command = [python.parent / "keras-transformer", "serve_client", f"--server={address}"]
        output = _run(*command, "--protocol=rest", "input.en", cwd=tmp_path)
        assert output == "A MAN\n"


@pytest.mark.slow
def test_translation_needs_no_extra(run_python):
    """The first program of the README runs after `pip install .` alone."""
    optional = (
        "apache_beam", "ctranslate2", "huggingface_hub", "jax", "matplotlib", "num2words", "pysbd",
        "tensorflow_datasets", "tensorflow_serving", "torch", "transformers",
    )  # fmt: skip
    program = f"""
import sys
sys.modules |= dict.fromkeys({optional})
from keras_transformer import Translator, export
from keras_transformer.errors import InputError
translator = Translator.load("en-de")
print(translator.translate("Where is the station?"))
try:
    export(translator, "absent")
except InputError as error:
    print(error)
"""
    translation, error = run_python("-c", program).splitlines()
    assert translation == "Wo ist der Bahnhof?"
    assert error.startswith("this needs the package tensorflow_serving")
