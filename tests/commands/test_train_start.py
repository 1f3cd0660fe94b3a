"""The command train with --start_from: what a run takes from another one, and what it refuses."""

import json
import shutil

import numpy as np
import pytest

from keras_transformer.config import DataConfig, TrainingConfig, TransformerConfig
from keras_transformer.models import Transformer
from keras_transformer.text import learn_vocabulary
from keras_transformer.training import RunConfigs, RunDirectory
from keras_transformer.training.settings import fine_tuning_configs


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


@pytest.fixture
def flags(texts, tmp_path, origin):
    files = [
        f"--{split}_{side}={texts}/{split}.{ending}"
        for split in ("train", "dev")
        for side, ending in (("source", "en"), ("target", "xx"))
    ]
    steps = ["--train_steps=2", "--checkpoint_steps=1", "--batch_tokens=200"]
    return [f"--run_dir={tmp_path}/run", f"--start_from={origin.path}", *files, *steps]


@pytest.mark.slow
def test_start_from_trains_all_but_frozen_parts(call, origin, flags, tmp_path):
    path = shutil.copytree(origin.path, tmp_path / "origin")
    flags = [*flags, f"--start_from={path}/checkpoints/step-0", "--freeze=encoder"]
    flags += ["--preset=base", "--dropout=0", "--warmup_steps=1"]
    result = call("train.py", *flags)
    assert result.code == 0, result.err
    assert "\n0/2  loss " in result.out and "BLEU" in result.out
    run = RunDirectory(tmp_path / "run")
    configs, theirs = run.configs(), origin.configs()
    assert configs.model == theirs.model.replace(dropout=0.0)
    assert (configs.search, configs.corpora.vocabulary_kind) == (theirs.search, "word")
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
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]


def test_start_from_finds_run_and_checkpoint(origin, tmp_path):
    path = shutil.copytree(origin.path, tmp_path / "checkpoints" / "run1")
    for given, checkpoint in (("", "auto"), ("checkpoints/step-0.index", "step-0")):
        run, found = RunDirectory.of_checkpoint(path / given)
        assert (run.path, found) == (path, checkpoint)


def test_resumed_random_run_cannot_freeze(call, origin, texts, tmp_path, refused):
    run = RunDirectory(tmp_path / "run")  # killed before its first checkpoint
    data = DataConfig(
        train_source=f"{texts}/train.en", train_target=f"{texts}/train.xx", vocabulary_kind="word"
    )
    vocabulary = origin.vocabularies()[0]
    run.write(origin.configs()._replace(data=data), vocabulary, vocabulary)
    result = call("train.py", f"--run_dir={run.path}", "--freeze=encoder")
    refused(result, "--freeze would keep random weights")


@pytest.mark.parametrize(("options", "factor"), [({}, 0.1), ({"lora_rank": 8}, 1.0)])
def test_fine_tuning_rate_is_higher_with_lora(origin, options, factor):
    options = {"train_file": "text", **options}
    configs = fine_tuning_configs(origin.configs(), "origin", options)
    assert configs.training.learning_rate == pytest.approx(factor * (16 * 4000) ** -0.5, rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        ["--train_source=a", "--train_target=b", "--preset=rnn-base", "--dropout=0.25"],
        ["--train_file=a", "--vocabulary=v.model", "--noshare_vocabulary", "--clip_norm=3.5"],
        ["--train_file=a", "--seed=7", "--freeze=encoder", "--start_from={origin}"],
    ],
    ids=["recurrent", "vocabulary", "start"],
)
def test_printed_flags_make_the_same_run(call, origin, tmp_path, options):
    options = [option.format(origin=origin.path) for option in options]
    printed = call("train.py", f"--run_dir={tmp_path}/new", "--print_flags", *options)
    assert printed.code == 0, printed.err
    for option in options:
        assert option.startswith("--preset") or option in printed.out.splitlines()
    (tmp_path / "file").write_text(printed.out)
    flags = [f"--flagfile={tmp_path}/file", f"--run_dir={tmp_path}/other", "--print_flags"]
    assert call("train.py", *flags) == printed
    assert not (tmp_path / "new").exists()
