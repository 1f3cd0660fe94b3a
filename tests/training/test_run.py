"""A run directory: created once, opened by later commands, and rejected if it is damaged."""

import json
import pathlib
import re

import numpy as np
import pytest
import tiny_run

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.models import build_model
from keras_transformer.training import run as run_module
from keras_transformer.training.run import RunDirectory, create_run
from keras_transformer.training.settings import RunConfigs, changed_configs, new_configs

TEXT = {"train_source": "a", "train_target": "b"}
LEARNED = {"positions": "learned", "max_positions": 20, "max_length": 19}
CHARACTERS = {"vocabulary_kind": "char", "vocabulary_size": 50}


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return tiny_run.create(tmp_path / "run")


def configs(**changes):
    training = tiny_run.training_config(**changes)
    return RunConfigs(tiny_run.model_config(), tiny_run.DATA, training)


@pytest.fixture
def files(tmp_path) -> tuple[pathlib.Path, pathlib.Path]:
    """Gives files of source and target sentences."""
    for side, lines in tiny_run.text(60, seed=3)._asdict().items():
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "source", tmp_path / "target"


@pytest.fixture
def text_files(files) -> RunConfigs:
    """Gives the configurations of a run whose text lies in files."""
    source, target = map(str, files)
    return configs()._replace(
        data=DataConfig(train_source=source, train_target=target, **CHARACTERS)
    )


# Creating and opening


def test_run_is_created_from_text_and_names_of_settings(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = CHARACTERS | {"num_layers": 1, "model_dim": 32}
    run = RunDirectory.create(
        "run", train=["source", "target"], dev=("source", "target"), preset="tiny", **options
    )
    created = run.configs()
    assert (created.model.model_dim, created.training.train_steps) == (32, 20_000)
    assert created.model.vocabulary_size == run.vocabularies()[0].size == 11
    run = RunDirectory(run.path.absolute())
    monkeypatch.chdir("/")  # paths are the same from any folder
    assert (created.data.train_source, created.data.train_target) == tuple(map(str, files))
    assert len(run.corpus()) == len(run.dev_set().source) == 60
    assert not run.is_finished()


def test_run_starts_from_a_run_a_checkpoint_or_a_model_of_the_package(tmp_path, files):
    origin = tiny_run.create(tmp_path / "origin")
    model = build_model(origin.configs().model)
    origin.checkpoints().save_weights(model, "step-8")
    path = str(origin.path)
    starts = {
        "run": (path, path, model),
        "checkpoint": (f"{path}/checkpoints/step-8", f"{path}/checkpoints/step-8", model),
        "file": (f"{path}/checkpoints/step-8.safetensors", None, model),
        "package": ("en-de", "en-de", RunDirectory.of_checkpoint("en-de")[0].load_model()),
    }
    for name, (start_from, stored, expected) in starts.items():
        tuned = RunDirectory.create(
            tmp_path / name, train=files, start_from=start_from, dropout=0.25, train_steps=1
        )
        settings = tuned.configs()
        assert settings.origin["start_from"] == stored or stored is None
        assert settings.model == expected.config.replace(dropout=0.25)
        assert settings.training.train_steps == 1
        rate = 0.1 * (settings.model.model_dim * 4000) ** -0.5
        assert settings.training.learning_rate == pytest.approx(rate, rel=0.02)
        loaded = tuned.load_model().weights
        for weight, start in zip(loaded, expected.weights, strict=True):
            np.testing.assert_array_equal(weight, start)
    wrong = [{"num_layers": 3}, {"vocabulary_size": 9}, {"architecture": "recurrent"}]
    for options in wrong:
        with pytest.raises(InputError, match=f"{next(iter(options))}"):
            RunDirectory.create(tmp_path / "x", train=files, start_from=path, **options)
    with pytest.raises(InputError, match="--start_from needs text to train on"):
        RunDirectory.create(tmp_path / "x", start_from=path)
    with pytest.raises(InputError, match="no checkpoint 'step-9'"):
        RunDirectory.create(tmp_path / "x", train=files, start_from=f"{path}/checkpoints/step-9")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("source", "target", "options", "expected"),
    [
        (["ein Wort"] * 30, ["b" * size for size in range(71, 101)],
         {"source_level": "word", "target_level": "char"}, {"max_extra_length": 100}),
        (["b" * size for size in range(71, 101)], ["ein Wort"] * 30,
         {"source_level": "char", "target_level": "word"}, {}),
        (["b" * size for size in range(571, 601)], ["ein Wort"] * 30,
         {"source_level": "char", "target_level": "word", "max_length": 700},
         {"max_source_length": 610}),  # 601 with the word's beginning
    ],
)  # fmt: skip
def test_search_has_room_for_the_text(tmp_path, source, target, options, expected):
    for name, lines in (("source", source), ("target", target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    pair = tmp_path / "source", tmp_path / "target"
    run = RunDirectory.create(tmp_path / "run", train=pair, vocabulary_size=20, **options)
    assert run.configs().search == expected


def test_run_is_created_by_one_process_at_a_time_and_whole(tmp_path, text_files, full_disk):
    run = RunDirectory(tmp_path / "run")
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
        create_run(RunDirectory(run.path), text_files)
    absent = text_files.required_data.replace(train_source=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="absent is not a file on disk"):
        create_run(run, text_files._replace(data=absent))
    assert not run.path.exists()  # neither left a folder
    create_run(run, text_files)
    with pytest.raises(InputError, match="holds a run already"):
        create_run(run, text_files)
    before = run.configs()
    (run.path / "tokens" / ".writing-x" / "tokens").mkdir(parents=True)  # a killed process's
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
        RunDirectory(run.path).change(train_steps=5000)
    with full_disk(), pytest.raises(InputError, match="cannot write run directory"):
        run.change(train_steps=5000)
    assert run.configs() == before and not [*run.path.rglob(".writing-*")]


def test_unusable_path_is_rejected(tmp_path):
    with pytest.raises(InputError, match="path of the run directory is empty"):
        RunDirectory("")
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match="file"):
            tiny_run.create(path)
    for left in ("checkpoints/step-3.safetensors", "metrics.jsonl"):  # of a run without its config
        (tmp_path / left).parent.mkdir(exist_ok=True)
        (tmp_path / left).touch()
        with pytest.raises(InputError, match=r"of a run, but no config\.json; restore it"):
            create_run(RunDirectory(tmp_path), configs())
        (tmp_path / left).unlink()


# Going on with a run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_steps": 240, "accumulation_steps": 4, "log_steps": 7}, None),
        ({"keep_checkpoints": 9, "average_last": 9, "average_best": 2}, None),
        ({"stop_metric": "bleu", "stop_patience": 3, "test_file": "/c"}, None),
        ({"precision": "auto", "task": "translation", "architecture": "transformer"}, None),
        ({"seed": 2, "num_layers": 3}, "seed is 1 there and 2 here; num_layers is 1 there and 3"),
        ({"batch_tokens": 9}, "batch_tokens is 64 there and 9 here"),
        ({"max_length": 9}, "max_length is 256 there and 9 here"),
        ({"train_source": "other"}, "train_source is 'forwards.txt' there and '/.*other' here"),
        ({"remove_bpe": True}, "remove_bpe is False there and True here"),
        ({"preset": "base"}, "model_dim is 16 there and 512 here; .*; remove"),
        ({"architecture": "recurrent"}, "architecture is 'transformer' there and 'recurrent' here"),
        ({"task": "parsing"}, "task is 'translation' there and 'parsing' here"),
        ({"hidden_dim": 7}, "hidden_dim"),  # of another architecture
        ({"copy_words": True}, "copy_words is None there and True here"),
        ({"freeze": "encoder"}, "freeze is None there and 'encoder' here"),
        ({"stop_metric": "f1"}, "stop_metric must be one of bleu"),
        ({"train_steps": None}, "train_steps must be a whole number, got None"),
        ({"step": 1}, "there is no option 'step'"),
    ],
)
def test_settings_that_a_run_can_still_change(run, options, message):
    before = (run.path / "config.json").read_bytes()
    if message:
        with pytest.raises(InputError, match=message) as caught:
            run.change(**options)
        assert "\n" not in str(caught.value)
        assert (run.path / "config.json").read_bytes() == before
        return
    run.change(**options)
    expected = {name: value for name, value in options.items() if name != "precision"}
    after = run.configs()
    values = {"task": after.task.name} | after.data.to_dict() | after.training.to_dict()
    assert expected.items() <= (values | {"architecture": after.model.architecture}).items()
    run.change(train_steps=300, stop_metric=None, average_best=None)
    assert (run.configs().training.stop_metric, run.configs().training.train_steps) == (None, 300)


def test_run_keeps_the_precision_that_auto_meant_when_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "auto_precision", lambda: "mixed_bfloat16")
    assert tiny_run.create(tmp_path / "a").configs().training.precision == "float32"
    run = tiny_run.create(tmp_path / "b", precision="auto")
    monkeypatch.setattr(run_module, "auto_precision", lambda: "float32")
    run.change(precision="auto", train_steps=16)
    training = run.configs().training
    assert (training.precision, training.train_steps) == ("mixed_bfloat16", 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LEARNED | {"max_length": 20}, "max_length=20 needs 21 .*max_positions is 20; lower"),
        ({"freeze": "encoder"}, "--freeze would keep random weights; give --start_from too"),
        ({"hidden_dim": 3}, "hidden_dim"),
    ],
)  # fmt: skip
def test_contradicting_settings_are_rejected(options, message):
    with pytest.raises(InputError, match=message):
        new_configs(TEXT | options)


def test_schedule_that_ends_at_the_last_step_keeps_it():
    with pytest.raises(InputError, match="train_steps is 20000 there and 240000 here"):
        changed_configs(new_configs(TEXT | {"schedule": "cosine"}), {"train_steps": 240_000})


def test_defaults_of_a_task_give_way_to_a_vocabulary():
    options = {"task": "pronunciation", "train_file": "a", "vocabulary": "some.model"}
    assert new_configs(options).required_data.kinds == ("bpe", "bpe")


# What cannot be opened


def broken(part, **values):
    """Gives the configuration of a run with other values in one part."""
    whole = configs().to_dict()
    return json.dumps(whole | {part: whole[part] | values}).encode()


DAMAGED = r"config\.json is damaged or of no run \("


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no training run in"),
        (b"", DAMAGED),
        (b"[]", DAMAGED),
        (b'{"model": {}}', DAMAGED),
        (b"\xff\xfe\x00", DAMAGED),
        (broken("model", num_layers=0), DAMAGED),
        (broken("model", num_leyers=6), DAMAGED),
        (broken("task", bleu_tokenize="13b"), DAMAGED),
        (broken("task", name="own_task"), r"got 'own_task'; if .*--user_module"),
    ],
    ids=range(9),
)
def test_missing_or_damaged_config_is_reported_in_one_line(run, content, message):
    (run.path / "config.json").unlink()
    if content is not None:
        (run.path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        run.configs()
    assert "\n" not in str(caught.value)


def test_vocabularies_round_trip(run, tmp_path):
    source, target = run.vocabularies()
    assert source is target
    assert source.fingerprint == tiny_run.make_vocabulary().fingerprint
    pair = tiny_run.make_vocabulary("abc"), tiny_run.make_vocabulary("xyz")
    run = RunDirectory(tmp_path / "two")
    run.write(configs(), *pair)
    run.change(train_steps=5000)  # which keeps the fingerprints
    fingerprints = [vocabulary.fingerprint for vocabulary in pair]
    assert [vocabulary.fingerprint for vocabulary in run.vocabularies()] == fingerprints
    (tmp_path / "new").mkdir()  # of an attempt that was interrupted
    tiny_run.make_vocabulary("xyz").save(tmp_path / "new" / "target.model")
    source, target = tiny_run.create(tmp_path / "new").vocabularies()
    assert target is source


def test_another_vocabulary_is_reported(run):
    path = run.path / "source.model"
    tiny_run.make_vocabulary("abcdeg").save(path)
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        run.vocabularies()
    assert "\n" not in str(caught.value)


def test_model_is_loaded_in_a_precision(run):
    with pytest.raises(InputError, match=r"no checkpoint in .* yet; train the run first"):
        run.load_model()
    model = build_model(run.configs().model)
    run.checkpoints().save_weights(model, "average")
    for dtype in ("float32", "bfloat16"):
        loaded = run.load_model(dtype=dtype)
        assert loaded.dtype_policy.name == dtype
        for expected, weight in zip(model.weights, loaded.weights, strict=True):
            np.testing.assert_array_equal(weight, expected.numpy().astype(dtype))
