"""A run directory: created once, opened by later commands, and rejected if it is damaged."""

import errno
import json
import os
import pathlib

import numpy as np
import pytest
import tiny_run

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.interop import locate
from keras_transformer.models import Transformer
from keras_transformer.serving.export import load_exported
from keras_transformer.tasks import TranslationTask
from keras_transformer.text import Vocabulary
from keras_transformer.training import (
    Checkpoints,
    RunConfigs,
    RunDirectory,
    compile_for_training,
    train,
)
from keras_transformer.training import run as run_module
from keras_transformer.training.metrics import read_metrics
from keras_transformer.training.run import create_run
from keras_transformer.training.settings import changed_configs, new_configs
from keras_transformer.training.trainer import is_finished


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return tiny_run.create(tmp_path / "run")


def configs(**changes):
    training = tiny_run.training_config(**changes)
    return RunConfigs(tiny_run.model_config(), tiny_run.DATA, training)


@pytest.fixture
def text_files(tmp_path) -> RunConfigs:
    """Gives the configurations of a run whose text lies in files."""
    paths = {}
    for side, lines in tiny_run.text(60, seed=3)._asdict().items():
        paths[f"train_{side}"] = str(tmp_path / side)
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    data = DataConfig(**paths, vocabulary_kind="char", vocabulary_size=50)
    return configs()._replace(data=data)


# From text


@pytest.mark.slow
def test_run_created_from_text_trains_and_translates(tmp_path):
    """As in a notebook: nothing but files of text, and names of settings."""
    text = tiny_run.text(60, seed=3)
    for name, lines in (("forwards", text.source), ("backwards", text.target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = tmp_path / "forwards", tmp_path / "backwards"
    options = {"vocabulary_kind": "char", "vocabulary_size": 50, "num_layers": 1, "model_dim": 32}
    options |= {"train_steps": 20, "checkpoint_steps": 20, "batch_tokens": 200, "dropout": 0.0}
    run = RunDirectory.create(tmp_path / "run", train=files, dev=files, preset="tiny", **options)
    configs = run.configs()
    assert (configs.model.model_dim, configs.training.train_steps) == (32, 20)
    assert configs.model.vocabulary_size == run.vocabularies()[0].size == 11
    model = train(run, show=False)
    assert is_finished(run)
    assert read_metrics(run.metrics_path)[-1]["bleu"] >= 0
    translations = Translator(model, *run.vocabularies()).translate(text.source[:3])
    assert [len(each) for each in translations] == [1, 1, 1]

    tuned = RunDirectory.create(tmp_path / "tuned", train=files, start_from=run.path, train_steps=1)
    assert tuned.configs().origin == {"start_from": str(run.path)}
    for weight, start in zip(tuned.load_model().weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, start)


def test_change_sets_options_by_name(run):
    run.change(train_steps=5000, log_steps=7)
    assert run.configs() == configs(train_steps=5000, log_steps=7)
    with pytest.raises(InputError, match="there is no option 'step'"):
        run.change(step=1)


def test_create_rejects_unknown_options_and_existing_runs(tmp_path, run):
    with pytest.raises(InputError, match="there is no option 'num_layer'; close names: num_layers"):
        RunDirectory.create(tmp_path / "new", num_layer=3)
    assert not (tmp_path / "new").exists()
    before = (run.path / "config.json").read_bytes()
    for create in (RunDirectory.create, tiny_run.create):
        with pytest.raises(InputError, match="holds a run already"):
            create(run.path, seed=2)
    assert (run.path / "config.json").read_bytes() == before


# Creating and opening


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (["checkpoints/step-3.index", "checkpoints/step-2.index"], "has checkpoint step-3 of a r"),
        (["checkpoints/average.index", "metrics.jsonl"], "has the average, metrics.jsonl of a run"),
    ],
)
def test_run_that_lost_its_config_is_not_taken_for_a_new_one(tmp_path, left, message):
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{message}.*no config\.json; restore it from a copy"):
        create_run(RunDirectory(tmp_path), configs())
    with pytest.raises(InputError, match=message):
        tiny_run.create(tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_run_is_created_by_one_process_at_a_time(tmp_path, text_files):
    run = RunDirectory(tmp_path / "run")
    busy = pytest.raises(InputError, match="another process creates or trains the run")
    with run.creation(), busy:
        create_run(run, text_files)
    assert not run.path.exists()  # since the block created nothing
    create_run(run, text_files)
    with pytest.raises(InputError, match="holds a run already"):
        create_run(run, text_files)


def test_failed_creation_leaves_no_folder(tmp_path, text_files):
    absent = text_files.corpora.replace(train_source=str(tmp_path / "absent"))
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError, match="absent does not exist"):
        create_run(run, text_files._replace(data=absent))
    assert not run.path.exists()


def test_home_folder_and_addresses_in_paths_of_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    tiny_run.create("~/run")
    assert RunDirectory(tmp_path / "run").exists
    assert RunDirectory.of_checkpoint("~/run/checkpoints/step-3")[0].path == tmp_path / "run"


def test_addresses_are_rejected_wherever_python_takes_a_path():
    for use in (RunDirectory, Vocabulary.load, load_exported, locate):
        with pytest.raises(InputError, match="gs://bucket/it is not on this machine"):
            use("gs://bucket/it")


def test_run_exists_once_written(tmp_path):
    path = tmp_path / "some" / "run"
    assert not RunDirectory(path).exists
    tiny_run.create(path)
    assert RunDirectory(str(path)).exists
    assert RunDirectory(path).configs() == configs()
    assert {entry.name for entry in path.iterdir()} == {"config.json", "source.model"}


def test_search_config_drops_options_of_other_method():
    imported = configs()._replace(search={"early_stop": "first", "max_extra_length": 7})
    assert imported.search_config().early_stop == "first"
    sampling = imported.search_config({"method": "sampling"})
    assert (sampling.method, sampling.max_extra_length) == ("sampling", 7)
    with pytest.raises(InputError, match="early_stop cannot be combined with method sampling"):
        imported.search_config({"method": "sampling", "early_stop": "first"})


def test_vocabularies_round_trip(run, tmp_path):
    source, target = run.vocabularies()
    assert source is target
    assert source.fingerprint == tiny_run.make_vocabulary().fingerprint
    run = RunDirectory(tmp_path / "two")
    source, target = tiny_run.make_vocabulary("abc"), tiny_run.make_vocabulary("xyz")
    run.write(configs(), source, target)
    assert [vocabulary.fingerprint for vocabulary in run.vocabularies()] == [
        source.fingerprint,
        target.fingerprint,
    ]


def test_vocabulary_of_interrupted_attempt_is_dropped(tmp_path):
    tiny_run.make_vocabulary("xyz").save(tmp_path / "target.model")
    source, target = tiny_run.create(tmp_path).vocabularies()
    assert target is source


def test_unusable_path_is_rejected(tmp_path):
    with pytest.raises(InputError, match="path of the run directory is empty"):
        RunDirectory("")
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match=r"^cannot write run directory .*file"):
            tiny_run.create(path)


# Going on with a run


def test_run_can_be_extended(run):
    run.continue_with(configs())
    assert run.configs() == configs()
    changes = {"keep_checkpoints": 9, "average_last": 9, "keep_best": 3, "stop_metric": "bleu"}
    run.continue_with(configs(train_steps=5001, **changes))
    assert run.configs().training.train_steps == 5001
    checkpoints = run.checkpoints()
    assert (checkpoints.keep, checkpoints.keep_best) == (9, 3)
    regular = [step for step in (1, 2, 3, 4, 5, 8, 5000, 5001) if checkpoints.is_regular(step)]
    assert regular == [4, 8, 5000, 5001]


@pytest.mark.parametrize(
    ("schedule", "train_steps", "message"),
    [
        ("paper", 60, "train_steps is 60, and the run in .* is at step 120 already; give more"),
        ("cosine", 240, "train_steps is 200 there and 240 here"),
        ("paper", 240, None),
    ],
)
def test_train_steps_that_do_not_fit_are_rejected(
    tmp_path, monkeypatch, schedule, train_steps, message
):
    run = tiny_run.create(tmp_path / "run", train_steps=200, schedule=schedule)
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [120])
    asked = configs(train_steps=train_steps, schedule=schedule)
    if message is None:
        run.continue_with(asked)
    else:
        with pytest.raises(InputError, match=message):
            run.continue_with(asked)
    assert run.configs().training.train_steps == (train_steps if message is None else 200)


def test_training_can_change_before_first_checkpoint(run, monkeypatch):
    run.continue_with(configs(batch_tokens=999, seed=2))
    assert run.configs().training.batch_tokens == 999
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    run.continue_with(configs(batch_tokens=999, seed=2, accumulation_steps=4))
    assert run.configs().training.accumulation_steps == 4
    with pytest.raises(InputError, match=r"batch_tokens is 999 there.* --accumulation_steps needs"):
        run.continue_with(configs(seed=2))


def test_locked_run_keeps_its_configs(run):
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
        run.continue_with(configs(train_steps=5000))
    assert run.configs() == configs()
    with pytest.raises(InputError, match="no training run in"), RunDirectory("nowhere").lock():
        pass


def test_length_limits_can_change_before_first_checkpoint(run, monkeypatch):
    asked = configs()
    shorter = asked.data.replace(max_length=9, max_length_ratio=2.0)
    run.continue_with(asked._replace(data=shorter))
    assert run.configs().data.max_length == 9
    with pytest.raises(InputError, match="vocabulary_size is None there and 99 here"):
        run.continue_with(asked._replace(data=shorter.replace(vocabulary_size=99)))
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    with pytest.raises(InputError, match="max_length is 9 there and 256 here"):
        run.continue_with(asked)


def test_differing_configs_are_rejected_by_name(run, monkeypatch):
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    before = (run.path / "config.json").read_bytes()
    model = tiny_run.model_config(num_layers=3)
    data = tiny_run.DATA.replace(max_length=99)
    training = tiny_run.training_config(seed=8, train_steps=99)
    with pytest.raises(InputError) as caught:
        run.continue_with(RunConfigs(model, data, training, TranslationTask(remove_bpe=True)))
    message = str(caught.value)
    assert "num_layers is 1 there and 3 here" in message
    assert "max_length is 256 there and 99 here" in message
    assert "seed is 1 there and 8 here" in message
    assert "remove_bpe is False there and True here" in message
    assert "train_steps" not in message
    assert "\n" not in message
    assert (run.path / "config.json").read_bytes() == before


def test_full_disk_leaves_old_configs(run, monkeypatch):
    def fail(*paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "replace", fail)
    with pytest.raises(InputError, match=r"cannot write run directory .*No space left on device"):
        run.continue_with(configs(train_steps=5000))
    assert run.configs() == configs()
    assert {entry.name for entry in run.path.iterdir()} == {"config.json", "lock", "source.model"}


# What cannot be opened


def test_missing_run_is_reported(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"^no training run in .*give the --run_dir"):
            RunDirectory(path).configs()


def broken(part, **values):
    """Gives the configuration of a run with other values in one part."""
    whole = configs().to_dict()
    return json.dumps(whole | {part: whole[part] | values}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"model": {}}',
        b"\xff\xfe\x00",
        broken("model", num_layers=0),
        broken("model", num_leyers=6),
        broken("task", bleu_tokenize="13b"),
    ],
    ids=range(7),
)
def test_damaged_config_is_reported_in_one_line(run, content):
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is damaged \(") as caught:
        run.configs()
    assert "\n" not in str(caught.value)


def test_missing_vocabulary_is_reported(run):
    (run.path / "source.model").unlink()
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*source\.model"):
        run.vocabularies()


def test_unregistered_task_of_a_run_names_user_module(run):
    path = run.path / "config.json"
    stored = json.loads(path.read_text())
    stored["task"]["name"] = "own_task"
    path.write_text(json.dumps(stored))
    with pytest.raises(InputError, match=r"got 'own_task'; import .*--user_module") as caught:
        run.configs()
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("content", ["null", "{}", '{"target.model": "x"}'])
def test_config_without_fingerprints_is_damaged(run, content):
    values = json.loads((run.path / "config.json").read_text())
    values["vocabularies"] = json.loads(content)
    (run.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"config\.json is damaged \("):
        run.vocabularies()


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_truncated_vocabulary_is_rejected(run, share):
    content = (run.path / "source.model").read_bytes()
    (run.path / "source.model").write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"source\.model(:| is not the vocabulary)") as caught:
        run.vocabularies()
    assert "\n" not in str(caught.value)


def test_vocabulary_of_another_run_is_rejected(tmp_path):
    run = RunDirectory(tmp_path)
    run.write(configs(), tiny_run.make_vocabulary("abc"), tiny_run.make_vocabulary("xyzv"))
    run.continue_with(configs(train_steps=5000))  # which keeps the fingerprints
    assert run.vocabularies()[1].size == tiny_run.make_vocabulary("xyzv").size
    tiny_run.make_vocabulary("xywv").save(tmp_path / "target.model")
    with pytest.raises(InputError, match=r"target\.model is not the vocabulary that the run was"):
        run.vocabularies()
    (tmp_path / "target.model").unlink()
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*target\.model"):
        run.vocabularies()


def test_extra_target_vocabulary_is_rejected(run):
    tiny_run.make_vocabulary("xyz").save(run.path / "target.model")
    with pytest.raises(InputError, match=r"target\.model does not belong .*; remove it$"):
        run.vocabularies()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(vocabulary_size=9), "--vocabulary_size is for a vocabulary that is learned"),
        (dict(byte_fallback=True), "--byte_fallback is for a vocabulary that is learned"),
    ],
)
def test_options_of_learning_contradict_a_vocabulary(options, message):
    text = {"train_source": "a", "train_target": "b", "vocabulary": "some.model"}
    with pytest.raises(InputError, match=message):
        new_configs(text | options)


def test_training_pairs_must_fit_the_learned_positions():
    options = {"train_source": "a", "train_target": "b", "positions": "learned"}
    configs = new_configs(options | {"max_positions": 20, "max_length": 19})
    message = "max_length=20 needs 21 learned positions, .* and max_positions is 20; lower"
    with pytest.raises(InputError, match=message):
        new_configs(options | {"max_positions": 20, "max_length": 20})
    with pytest.raises(InputError, match=message):
        changed_configs(configs, {"max_length": 20})


def test_changed_stop_metric_must_exist():
    configs = new_configs({"train_source": "a", "train_target": "b"})
    with pytest.raises(InputError, match="stop_metric must be one of"):
        changed_configs(configs, {"stop_metric": "foo"})


# Precision


def test_run_has_the_precision_that_auto_means_here(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "auto_precision", lambda: "mixed_float16")
    for asked, precision in (("auto", "mixed_float16"), ("float32", "float32")):
        run = tiny_run.create(tmp_path / asked, precision=asked)
        assert run.configs().training.precision == precision


def test_resumed_run_keeps_precision_of_auto(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "auto_precision", lambda: "mixed_bfloat16")
    run = tiny_run.create(tmp_path, precision="auto")
    monkeypatch.setattr(run_module, "auto_precision", lambda: "float32")
    run.continue_with(configs(precision="auto", train_steps=16))
    training = run.configs().training
    assert (training.precision, training.train_steps) == ("mixed_bfloat16", 16)
    assert run.resolved(tiny_run.training_config(precision="auto", train_steps=16)) == training


# The model


def test_load_model_gives_float32_weights(tmp_path):
    run = tiny_run.create(tmp_path, precision="mixed_bfloat16")
    with pytest.raises(InputError, match=r"no checkpoint in .* yet; train the run first"):
        run.load_model()
    model = Transformer(tiny_run.model_config(), dtype="mixed_bfloat16")
    compile_for_training(model, run.configs().training)
    run.checkpoints().save(model, 4)
    loaded = run.load_model()
    assert loaded.dtype_policy.name == "float32"
    for expected, weight in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
