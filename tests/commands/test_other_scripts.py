"""learn_vocabulary, average_checkpoints, and the shell scripts that set up."""

import os
import pathlib
import shutil
import signal
import subprocess

import numpy as np

from keras_transformer.config import DataConfig
from keras_transformer.text import Vocabulary
from keras_transformer.training.prepare import make_vocabularies
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import Stopped

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def test_train_uses_a_learned_vocabulary(call, texts, train_flags, training_ends, tmp_path):
    output = tmp_path / "own.model"
    options = (f"--output={output}", "--vocabulary_kind=char", "--vocabulary_size=17")
    files = (texts / "train.en", texts / "train.en")
    result = call("learn_vocabulary.py", *options, *files)
    assert result == (0, f"Wrote 17 tokens to {output}.\n", "")
    training_ends(Stopped(signal.SIGTERM, 7))
    flags = [flag for flag in train_flags if not flag.startswith("--vocabulary_")]
    result = call("train.py", f"--run_dir={tmp_path}/run", *flags, f"--vocabulary={output}")
    assert result.code == 0, result.err
    assert (tmp_path / "run" / "source.model").read_bytes() == output.read_bytes()


def test_large_text_gives_the_vocabulary_that_train_learns(call, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.data.corpus.MAX_SENTENCES", 20)  # a sample of the text
    files = [str(texts / f"train.{language}") for language in ("en", "xx")]
    options = ("--vocabulary_kind=word", "--vocabulary_size=30")
    call("learn_vocabulary.py", f"--output={tmp_path}/command.model", *options, *files)
    data = DataConfig(
        train_source=files[0], train_target=files[1], vocabulary_kind="word", vocabulary_size=30
    )
    vocabulary, _ = make_vocabularies(data)
    assert Vocabulary.load(tmp_path / "command.model").fingerprint == vocabulary.fingerprint


def test_average_checkpoints_selects_steps(call, refused, run_dir, tmp_path):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    average = copy / "checkpoints" / "average"
    run_dir = f"--run_dir={copy}"
    result = call("average_checkpoints.py", run_dir, "--last=1")
    assert result == (0, f"Averaged step 300 into {average}.\n", "")
    models = [RunDirectory(copy).load_model(name) for name in ("average", "300")]
    for weight, expected in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(weight, expected)
    result = call("average_checkpoints.py", run_dir)  # the run would average five
    assert result.out == f"Averaged steps 150, 300 into {average}.\n"
    with RunDirectory(copy).lock():
        result = call("average_checkpoints.py", run_dir, "--last=1")
    refused(result, f"another process creates or trains the run in {copy} now; wait for its end")


def bash(*arguments, cwd, **environment):
    command = ["bash", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )


def test_quickstart_takes_its_folder_relative_to_the_caller(tmp_path):
    (tmp_path / "mine").mkdir()
    done = bash(_SCRIPTS / "quickstart.sh", "mine", cwd=tmp_path)
    expected = f"quickstart: {tmp_path}/mine exists already; remove it, or name a new folder\n"
    assert (done.returncode, done.stderr) == (1, expected)


_PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/whole ;;
  "-m pip --version") [ -e .venv/whole ] ;;
esac
"""


def test_half_made_environment_is_made_again(tmp_path):
    """The process that made it was killed before pip was installed."""
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(_PYTHON.format(log=log))
    python.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python, tmp_path / ".venv" / "bin" / "python")
    for is_made in (True, False):
        log.unlink(missing_ok=True)
        program = f". {_SCRIPTS}/environment.sh; set -e; make_environment test"
        done = bash("-c", program, cwd=tmp_path, PYTHON=str(python))
        assert done.returncode == 0, done.stderr
        assert ("-m venv .venv\n" in log.read_text()) == is_made
        assert log.read_text().endswith("--editable .[test]\n")
