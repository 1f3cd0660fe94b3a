"""The recipes: their settings are valid, scripts/reproduce.sh runs them, and one is trained."""

import gzip
import itertools
import json
import pathlib
import random
import shutil
import subprocess
from unittest import mock

import pytest
from helpers import user_modules

from keras_transformer.commands import common
from keras_transformer.errors import InputError

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCAN = _ROOT / "tests" / "data" / "scan"
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


def scan() -> dict[str, str]:
    """Returns the actions of every command of SCAN (Lake and Baroni 2018, figures 6 and 7)."""
    verbs = {verb: [f"I_{verb.upper()}"] for verb in ("walk", "look", "run", "jump")}
    phrases = dict(verbs)
    for verb, side in itertools.product(("turn", *verbs), ("left", "right")):
        turn, act = [f"I_TURN_{side.upper()}"], verbs.get(verb, [])
        phrases[f"{verb} {side}"] = turn + act
        phrases[f"{verb} opposite {side}"] = 2 * turn + act
        phrases[f"{verb} around {side}"] = 4 * (turn + act)
    repeated = {
        phrase + often: times * actions
        for phrase, actions in phrases.items()
        for often, times in (("", 1), (" twice", 2), (" thrice", 3))
    }
    found = dict(repeated)
    for first, second in itertools.product(repeated, repeat=2):
        found[f"{first} and {second}"] = repeated[first] + repeated[second]
        found[f"{first} after {second}"] = repeated[second] + repeated[first]
    return {command: " ".join(actions) for command, actions in found.items()}


def lines(pairs) -> list[str]:
    """Returns pairs of command and actions in the format of SCAN's files."""
    return [f"IN: {command} OUT: {actions}\n" for command, actions in pairs]


def test_grammar_gives_the_commands_of_scan():
    generated = set(lines(scan().items()))
    assert len(generated) == 20_910
    for path in _SCAN.glob("*.txt"):
        assert set(path.read_text().splitlines(keepends=True)) <= generated


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


def test_recipes_are_listed_and_run_with_each_seed(tmp_path):
    listed = subprocess.run(
        ["bash", _ROOT / "scripts/reproduce.sh"], capture_output=True, text=True
    )
    assert listed.returncode == 2
    assert sorted(line.strip() for line in listed.stderr.splitlines()[1:]) == _RECIPES
    (tmp_path / "scripts").mkdir()
    for name in ("reproduce.sh", "environment.sh"):
        shutil.copy(_ROOT / "scripts" / name, tmp_path / "scripts")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> commands\n'
        'case "$*" in *evaluate.py*) echo \'{"bleu": 41}\';; esac\n'
    )
    python.chmod(0o755)
    for seed in "12":
        run = tmp_path / "runs" / f"multi30k-raw-{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("{}\n")
        (run / "outputs.txt").write_text("a b\n")
    script = tmp_path / "scripts" / "reproduce.sh"
    done = subprocess.run(
        ["bash", script, "multi30k-raw", "1", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "commands").read_text().splitlines()
    train, evaluate = [line for line in commands if "scripts/" in line][2:]
    assert train == (
        "scripts/train.py --flagfile=examples/recipes/multi30k-raw.flags --seed=2 "
        "--run_dir=runs/multi30k-raw-2"
    )
    assert evaluate.startswith(
        "scripts/evaluate.py --run_dir=runs/multi30k-raw-2 --beam_size=5 --j"
    )
    log = tmp_path / "docs" / "results" / "logs" / "multi30k-raw-2"
    assert json.loads((log / "score.json").read_text()) == {"commit": "", "bleu": 41}  # no git here
    assert gzip.decompress((log / "outputs.txt.gz").read_bytes()) == b"a b\n"
    assert gzip.decompress((log / "metrics.jsonl.gz").read_bytes()) == b"{}\n"


@pytest.mark.slow
def test_recipe_learns_short_commands_of_scan(call, tmp_path):
    pairs = [pair for pair in scan().items() if len(pair[1].split()) <= 8]
    random.Random(1).shuffle(pairs)
    (tmp_path / "data" / "scan").mkdir(parents=True)
    for split, part in (("train", pairs[300:]), ("test", pairs[:300])):
        (tmp_path / f"data/scan/tasks_{split}_simple.txt").write_text("".join(lines(part)))
    train, evaluate = recipe("scan-lstm")
    steps = ("--train_steps=300", "--warmup_steps=60", "--batch_tokens=1024")
    result = call("train.py", train, "--run_dir=run", *steps)
    assert result.code == 0, result.err
    result = call("evaluate.py", "--run_dir=run", *evaluate, "--json")
    assert json.loads(result.out)["exact_match"] >= 0.9
