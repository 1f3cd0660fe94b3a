"""scripts/reproduce.sh: the commands of its rows, and its figures over seeds."""

import gzip
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from keras_transformer.tasks import task

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# The files of all rows, for bash to expand.
_FILES = (
    "tasks_{train,test}_{simple,length}.txt {kat,got,ara}{_large.train,.dev,.test} "
    "{arm_e,dut,fre,geo,hbs_latn,hun,jpn_hira,vie_hanoi}_{train,dev,test}.tsv "
    "{train,dev,test,gen}.tsv {train,valid,test.2016}.{en,de,fr}"
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
    assert len(rows) == 33
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
