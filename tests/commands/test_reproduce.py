"""scripts/reproduce.sh: the commands of its rows, its figures over seeds, and a row by command."""

import gzip
import itertools
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from keras_transformer.tasks import task

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCAN = _ROOT / "tests" / "data" / "scan"
# The files of all rows, for bash to expand.
_FILES = (
    "tasks_{train,test}_{simple,length}.txt {kat,got,ara}{_large.train,.dev,.test} "
    "{arm_e,dut,fre,geo,hbs_latn,hun,jpn_hira,vie_hanoi}_{train,dev,test}.tsv "
    "{train,dev,test,gen}.tsv {train,valid,val,test.2016,test_2016_flickr}.{en,de,fr}"
)


@pytest.fixture(autouse=True)
def tasks_of_examples(monkeypatch, tmp_path):
    """The tasks that a row loads are gone after a test, which runs beside a link to them."""
    monkeypatch.setattr(task, "_TASKS", dict(task._TASKS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "examples").symlink_to(_ROOT / "examples")
    yield
    for path in (_ROOT / "examples").glob("*.py"):
        sys.modules.pop(f"user_module_{path.stem}", None)


def bash(*arguments, cwd=_ROOT, **environment):
    command = ["bash", *map(str, arguments)]
    environment = os.environ | environment
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def commands(row: str, data: pathlib.Path, *seeds: str) -> list[list[str]]:
    """Returns script and arguments of each command of a row."""
    done = bash("scripts/reproduce.sh", row, data, *seeds, DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    return [shlex.split(line)[1:] for line in done.stdout.splitlines()]


def reproduce(call, row: str, data: pathlib.Path, *train_flags: str) -> float:
    """Runs the commands of a row in this process; returns the figure that the last one prints."""
    for script, *arguments in commands(row, data):
        name = pathlib.Path(script).name
        result = call(name, *arguments, *(train_flags if name == "train.py" else ()))
        assert result.code == 0, result.err
    return float(re.search(r"^exact match +([\d.]+) %$", result.out, re.M)[1])


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


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all data")
    assert bash("-c", f"touch {_FILES}", cwd=folder).returncode == 0
    return folder


def test_settings_of_every_row_are_valid(call, data, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.chdir(tmp_path)
    usage = bash("scripts/reproduce.sh")
    assert usage.returncode == 2
    patterns = usage.stderr.partition("rows:")[2].split()
    rows = bash("-c", f"echo {' '.join(patterns)}").stdout.split()
    assert len(rows) == 34
    for row in rows:
        train, plot, evaluate, *_ = commands(row, data)
        scripts = [pathlib.Path(each[0]).stem for each in (train, plot, evaluate)]
        assert scripts == ["train", "plot_run", "evaluate"]
        # All that is wrong is that the files are empty, and that the run is not there yet.
        assert (f"--run_dir=runs/{row}-1" in train, plot[1]) == (True, f"runs/{row}-1")
        assert "is empty; expected one sentence a line" in call("train.py", *train[1:]).err, row
        assert f"the folder runs/{row}-1 does not exist" in call("plot_run.py", *plot[1:]).err, row
        assert f"no training run in runs/{row}-1" in call("evaluate.py", *evaluate[1:]).err, row


def test_unknown_rows_seeds_and_files_are_reported(data, tmp_path):
    for arguments, expected in (
        (("scan-simple-gru", data), "no row scan-simple-gru; rows:\nscan-{simple,"),
        (("multi30k-gru", tmp_path), "no row multi30k-gru; rows:"),
        (("cogs-absolute", data), "no row cogs-absolute; rows:"),
        (("g2p-geo", data, "1 2"), "SEEDS must be numbers separated by commas"),
        (("g2p-geo", tmp_path / "none"), f"reproduce: no folder {tmp_path / 'none'}; DATA is"),
        (("g2p-geo", tmp_path), f"{tmp_path} has neither geo_train.tsv nor geo_train.tsv.gz"),
    ):
        done = bash("scripts/reproduce.sh", *arguments, DRY_RUN="1")
        assert done.returncode != 0
        assert done.stdout == ""
        assert expected in done.stderr


def test_seeds_give_mean_spread_and_an_ensemble(data, tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("reproduce.sh", "environment.sh"):
        shutil.copy(_ROOT / "scripts" / name, tmp_path / "scripts")
    python = tmp_path / ".venv" / "bin" / "python"  # answers like evaluate.py
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        + "".join(
            f"  *evaluate.py*-{runs}|*-{runs}/outputs.txt) "
            f'printf "words  9\\nword error rate  {rate} %%\\n" ;;\n'
            for runs, rate in (("[123],*", "1.50"), ("1", "2.00"), ("2", "4.00"), ("3", "3.00"))
        )
        + "esac\n"
    )
    python.chmod(0o755)
    for seed in "123":
        run = tmp_path / "runs" / f"g2p-geo-{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("{}\n")
        (run / "outputs.txt").write_text("a b\n")
    done = bash("scripts/reproduce.sh", "g2p-geo", data, "1,2,3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("word error rate")]
    assert found == [
        "word error rate  2.00 %",
        "word error rate  4.00 %",
        "word error rate  3.00 %",
        "word error rate, seeds 1,2,3: mean 3.00, standard deviation 1.00",
        "word error rate  1.50 %",
    ]
    logs = tmp_path / "docs" / "results" / "logs" / "g2p-geo-2"
    assert gzip.decompress((logs / "outputs.txt.gz").read_bytes()) == b"a b\n"
    assert gzip.decompress((logs / "metrics.jsonl.gz").read_bytes()) == b"{}\n"
    assert "4.00" in (logs / "score.json").read_text()


@pytest.mark.slow
def test_row_is_reproduced_on_short_commands(call, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.chdir(tmp_path)
    pairs = [pair for pair in scan().items() if len(pair[1].split()) <= 8]
    random.Random(1).shuffle(pairs)
    for split, part in (("train", pairs[300:]), ("test", pairs[:300])):
        (tmp_path / f"tasks_{split}_simple.txt").write_text("".join(lines(part)))
    steps = ("--train_steps=300", "--warmup_steps=60", "--batch_tokens=1024")
    assert reproduce(call, "scan-simple-lstm", tmp_path, *steps) >= 90
    curve = tmp_path / "runs" / "scan-simple-lstm-1" / "curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")
