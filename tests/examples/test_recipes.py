"""The recipes: their settings are valid, and scripts/reproduce.sh runs them."""

import gzip
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from helpers import user_modules

from keras_transformer.commands import common
from keras_transformer.errors import InputError

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RECIPES = sorted(path.stem for path in (_ROOT / "examples" / "recipes").glob("*.flags"))


@pytest.fixture(autouse=True)
def in_a_folder_with_examples(monkeypatch, tmp_path):
    """The tasks that a recipe loads are gone after a test."""
    (tmp_path / "examples").symlink_to(_ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    with user_modules():
        yield


def recipe(name: str) -> tuple[str, list[str]]:
    """Returns the flag of train for a recipe, and the flags of evaluate."""
    text = (_ROOT / "examples" / "recipes" / f"{name}.flags").read_text()
    flags = text.partition("# evaluate: ")[2].partition("\n")[0].split()
    return f"--flagfile=examples/recipes/{name}.flags", flags


@pytest.mark.parametrize("name", _RECIPES)
def test_settings_of_a_recipe_are_valid(call, name, monkeypatch):
    train, evaluate = recipe(name)
    # Wrong settings are reported before TensorFlow is loaded.
    with monkeypatch.context() as patch:
        patch.setattr(common, "load_tensorflow", mock.Mock(side_effect=InputError("all right")))
        assert "all right" in call("train.py", train, "--run_dir=new").err
    assert call("evaluate.py", *evaluate, "--run_dir=new").err.startswith(
        "evaluate.py: no training run in new"
    )


def bash(*command, **environment):
    """Runs a shell script in the present folder."""
    return subprocess.run(
        ["bash", *command], capture_output=True, text=True, env=os.environ | environment
    )


def test_recipes_are_listed_and_their_results_are_stored(tmp_path):
    listed = bash(_ROOT / "scripts/reproduce.sh")
    assert listed.returncode == 2
    assert sorted(line.strip() for line in listed.stderr.splitlines()[1:]) == _RECIPES
    shutil.copytree(_ROOT / "scripts", tmp_path / "scripts")  # which works beside its folder
    python, run = tmp_path / ".venv/bin/python", tmp_path / "runs/multi30k-raw-2"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> commands\n'
        'case "$*" in *evaluate.py*) echo \'{"bleu": 41}\';; esac\n'
    )
    python.chmod(0o755)
    run.mkdir(parents=True)
    for name in ("metrics.jsonl", "outputs.txt"):
        (run / name).write_text(name)
    done = bash(tmp_path / "scripts" / "reproduce.sh", "multi30k-raw", "2")
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "commands").read_text().splitlines()
    train, evaluate = [line for line in commands if "scripts/" in line]
    recipe = "--flagfile=examples/recipes/multi30k-raw.flags --seed=2"
    assert train == f"scripts/train.py {recipe} --run_dir=runs/multi30k-raw-2"
    assert evaluate.startswith("scripts/evaluate.py --run_dir=runs/multi30k-raw-2 --beam_size=5")
    log = tmp_path / "docs" / "results" / "logs" / "multi30k-raw-2"
    assert json.loads((log / "score.json").read_text()) == {"commit": "", "bleu": 41}  # no git here
    for name in ("metrics.jsonl", "outputs.txt"):
        assert gzip.decompress((log / f"{name}.gz").read_bytes()) == name.encode()


@pytest.mark.slow
def test_student_is_trained_on_what_its_teacher_translates(tmp_path):
    corpus, program = tmp_path / "data" / "tatoeba_ende", tmp_path / "bin" / "keras-transformer"
    corpus.mkdir(parents=True)
    names, things = ["Tom", "Mary", "He", "She", "Nobody"], ["a dog", "the house", "an apple"]
    sources = [f"{name} sees {thing}.\n" for name, thing in itertools.product(names, things)]
    for split, side in itertools.product(("train", "dev", "test"), ("en", "de")):
        repeated = 2 if split == "train" else 1
        text = "".join(repeated * sources)
        (corpus / f"{split}.{side}.gz").write_bytes(gzip.compress(text.encode()))
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(_ROOT)!r})\n"
        "from keras_transformer.commands.main import main\nmain()\n"
    )
    python = program.with_name("python")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={_ROOT} exec {sys.executable} "$@"\n')
    for each in (program, python):
        each.chmod(0o755)
    flags = ["--batch_tokens=400", "--train_steps=20", "--warmup_steps=10",
             "--checkpoint_steps=20", "--average_last=1", "--precision=float32"]  # fmt: skip
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = bash("examples/recipes/distill.sh", *flags, PATH=path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/distilled/train.en").read_text() == "".join(sources)
    assert "Tom sieht einen Hund.\n" in (tmp_path / "data/distilled/train.de").read_text()
    config = json.loads((tmp_path / "runs/student/config.json").read_text())
    assert config["model"]["decoder_mixer"] == "ssru"
    assert config["origin"]["start_from"].endswith("runs/student-3000")
    assert "BLEU" in done.stdout
