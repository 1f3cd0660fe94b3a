"""The command train: what it leaves, how it resumes, and what it rejects."""

import pathlib
import shutil
import signal
from unittest import mock

import numpy as np
import pytest
from helpers import user_modules

from keras_transformer.config import DataConfig, TrainingConfig, TransformerConfig
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary
from keras_transformer.training import trainer
from keras_transformer.training.metrics import read_metrics
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.settings import RunConfigs
from keras_transformer.training.trainer import Stopped

_BAG = pathlib.Path(__file__).parents[2] / "examples" / "gru_architecture.py"


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


# Runs that start from another one.


@pytest.fixture(scope="module")
def origin(words, tmp_path_factory):
    """A run with weights, of the words of both languages, that nothing has trained."""
    vocabulary = learn_vocabulary([" ".join(words), " ".join(words.values())], size=20, kind="word")
    config = TransformerConfig(
        vocabulary_size=vocabulary.size, num_layers=1, model_dim=16, num_heads=2,
        feed_forward_dim=16, activation="swish",
    )  # fmt: skip
    data = DataConfig(train_source="gone", train_target="gone", vocabulary_kind="word")
    configs = RunConfigs(
        config, data, TrainingConfig(), search={"beam_size": 2, "max_extra_length": 5}
    )
    run = RunDirectory(tmp_path_factory.mktemp("origin") / "run")
    run.write(configs, vocabulary, vocabulary, Transformer(config))
    return run


@pytest.mark.slow
def test_start_from_trains_all_but_frozen_parts(call, origin, train_flags, tmp_path):
    path = shutil.copytree(origin.path, tmp_path / "origin")
    files = ("--train_source", "--train_target", "--dev_")
    flags = [flag for flag in train_flags if flag.startswith(files)]
    flags += [f"--run_dir={tmp_path}/run", f"--start_from={path}/checkpoints/step-0"]
    flags += ["--freeze=encoder", "--preset=base", "--dropout=0", "--warmup_steps=1"]
    flags += ["--train_steps=2", "--checkpoint_steps=1", "--batch_tokens=200"]
    result = call("train.py", *flags)
    assert result.code == 0, result.err
    assert "\n0/2  loss " in result.out and "BLEU" in result.out
    run = RunDirectory(tmp_path / "run")
    configs, theirs = run.configs(), origin.configs()
    assert configs.model == theirs.model.replace(dropout=0.0)
    assert (configs.search, configs.required_data.vocabulary_kind) == (theirs.search, "word")
    assert configs.training.learning_rate == pytest.approx(0.1 * (16 * 4000) ** -0.5, rel=0.02)
    assert configs.origin == {"start_from": f"{path}/checkpoints/step-0"}
    assert run.vocabularies()[0].fingerprint == origin.vocabularies()[0].fingerprint
    before, after = origin.load_model(), run.load_model("2")
    for weight, other in zip(before.weights, after.weights, strict=True):
        is_frozen = "/encoder/" in weight.path
        assert is_frozen == np.array_equal(weight, other), weight.path
    shutil.rmtree(path)
    result = call("train.py", *flags, "--train_steps=3")
    assert result.code == 0, result.err
    assert "from step 2 on" in result.out
    assert [row["step"] for row in read_metrics(run.path / "metrics.jsonl")] == [0, 1, 2, 3]


# Modules of the user.


@pytest.mark.slow
def test_user_architecture_trains_and_translates(call, refused, train_flags, tmp_path):
    own = f"--user_module={_BAG}"
    not_of_it = ("--preset", "--num_", "--feed_forward")
    flags = [flag for flag in train_flags if not flag.startswith(not_of_it)]
    flags += ["--architecture=bag", f"--run_dir={tmp_path}/run", "--train_steps=2"]
    translate = ("translate.py", f"--run_dir={tmp_path}/run")
    with user_modules() as forget:
        assert "--units" in call("train.py", own, "--help").out
        result = call("train.py", own, *flags)
        assert result.code == 0, result.err
        forget()
        refused(call(*translate, stdin=b"ein\n"), "got 'bag'", "--user_module")
        translated = call(*translate, own, stdin=b"ein\n")
        assert translated.code == 0, translated.err
        assert len(translated.out.splitlines()) == 1
