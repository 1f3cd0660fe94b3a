"""The command train: what it leaves, how it resumes, and what it rejects."""

import shutil
import signal
from unittest import mock

import pytest

from keras_transformer.training import trainer
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import Stopped


def _contents(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def copy(run_dir, tmp_path):
    return shutil.copytree(run_dir, tmp_path / "copy")


def test_finished_run_is_reported_and_unchanged(call, copy, texts):
    before = _contents(copy)
    same = f"--train_source={texts}/../{texts.name}/train.en"  # the path in another way
    result = call("train.py", f"--run_dir={copy}", same)
    assert (result.code, result.err) == (0, "")
    assert "Nothing to do: the run has reached its last step, 300" in result.out
    after = _contents(copy)
    before.pop("config.json"), after.pop("config.json")  # written again
    assert after == before


def test_none_unsets_an_option(call, copy):
    set_and_unset = ("--stop_metric=bleu", "--stop_patience=7"), ("--stop_metric=none",)
    for flags, expected in zip(set_and_unset, (("bleu", 7), (None, 10)), strict=True):
        assert call("train.py", f"--run_dir={copy}", *flags).code == 0
        training = RunDirectory(copy).configs().training
        assert (training.stop_metric, training.stop_patience) == expected


@pytest.mark.parametrize(
    ("error", "code", "report"),
    [
        (Stopped(signal.SIGTERM, 7), 0, "stopped; checkpoint step-7 is saved in run/checkpoints"),
        (Stopped(signal.SIGINT, 7), 130, "train.py: stopped; checkpoint step-7 is saved in run/ch"),
        (KeyboardInterrupt(), 130, "train.py: interrupted"),
    ],
)
def test_stopped_run_reports_its_checkpoint(
    call, tmp_path, train_flags, monkeypatch, error, code, report
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "train", mock.Mock(side_effect=error))
    flags = [flag for flag in train_flags if not flag.startswith("--dev_")]
    result = call("train.py", "--run_dir=run", *flags)
    assert result.code == code
    assert (result.err if code else result.out).splitlines()[-1].startswith(report)
    assert "There is no dev set; name one with --dev_source and --dev_target" in result.out
