"""A run directory: created once, opened by later commands, and rejected if it is damaged."""

import json
import pathlib

import numpy as np
import pytest
import tiny_run

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.interop import locate
from keras_transformer.models import Transformer, build_model
from keras_transformer.serving.export import load_exported
from keras_transformer.tasks import TranslationTask
from keras_transformer.text import Vocabulary
from keras_transformer.training import run as run_module
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.optimizer import compile_for_training
from keras_transformer.training.run import RunDirectory, create_run
from keras_transformer.training.settings import RunConfigs, changed_configs, new_configs
from keras_transformer.training.trainer import train

TEXT = {"train_source": "a", "train_target": "b"}
LEARNED = {"positions": "learned", "max_positions": 20, "max_length": 19}


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
    options = {"vocabulary_kind": "char", "vocabulary_size": 50}
    return configs()._replace(data=DataConfig(train_source=source, train_target=target, **options))


# Creating and opening


def test_run_is_created_from_text_and_names_of_settings(tmp_path, files):
    options = {"vocabulary_kind": "char", "vocabulary_size": 50, "num_layers": 1, "model_dim": 32}
    run = RunDirectory.create(tmp_path / "run", train=files, dev=files, preset="tiny", **options)
    found = run.configs()
    assert (found.model.model_dim, found.training.train_steps) == (32, 20_000)
    assert found.model.vocabulary_size == run.vocabularies()[0].size == 11
    assert len(run.corpus()) == len(run.dev_sets()[0].source) == 60
    assert not run.is_finished()

    model = build_model(found.model)
    run.checkpoints().save_weights(model)
    tuned = RunDirectory.create(tmp_path / "tuned", train=files, start_from=run.path, train_steps=1)
    assert tuned.configs().origin == {"start_from": str(run.path)}
    for weight, start in zip(tuned.load_model().weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, start)


def test_paths_are_the_same_from_any_folder(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"vocabulary_kind": "char", "vocabulary_size": 50}
    run = RunDirectory.create(
        "run", train=["source", "target"], dev=("source", "target"), **options
    )
    path = run.path.absolute()
    monkeypatch.chdir("/")
    assert len(RunDirectory(path).dev_sets()[0].source) == 60
    data = RunDirectory(path).configs().data
    assert (data.train_source, data.train_target) == tuple(map(str, files))
    with pytest.raises(
        InputError, match=r"train must be a file with both sides, or one of .* got 3"
    ):
        RunDirectory.create(tmp_path / "other", train=["a", "b", "c"])


def test_search_has_room_for_the_targets_of_the_text(tmp_path):
    (tmp_path / "words").write_text("ein Wort\n" * 30)
    (tmp_path / "characters").write_text("".join("b" * length + "\n" for length in range(71, 101)))
    options = {"vocabulary_size": 20, "source_level": "word", "target_level": "char"}
    files, lines = (tmp_path / "words", tmp_path / "characters"), []
    configs = RunDirectory.make_configs(
        options | {"train_source": str(files[0]), "train_target": str(files[1])}
    )
    run = RunDirectory(tmp_path / "run")
    create_run(run, configs, say=lines.append)
    assert run.configs().search_config().max_extra_length == 100  # 98, rounded up
    assert any("100.0% of the training targets have over 50 tokens more" in line for line in lines)
    short = RunDirectory.create(tmp_path / "short", train=(files[1], files[0]), **options)
    assert short.configs().search == {}


def test_search_reads_sources_as_long_as_those_of_the_text(tmp_path):
    (tmp_path / "characters").write_text("".join("b" * size + "\n" for size in range(571, 601)))
    (tmp_path / "words").write_text("ein Wort\n" * 30)
    run = RunDirectory.create(
        tmp_path / "run", train=(tmp_path / "characters", tmp_path / "words"),
        vocabulary_size=20, source_level="char", target_level="word", max_length=700,
    )  # fmt: skip
    assert run.configs().search == {"max_source_length": 610}  # 601 with the word's beginning


def test_settings_are_unset_with_none(tmp_path):
    run = tiny_run.create(tmp_path, stop_metric="bleu", average_best=1)
    run.change(stop_metric=None, average_best=None)
    training = run.configs().training
    assert (training.stop_metric, training.average_best) == (None, None)
    with pytest.raises(InputError, match="train_steps must be a whole number, got None"):
        run.change(train_steps=None)


def test_create_rejects_unknown_options_and_existing_runs(tmp_path, run):
    with pytest.raises(InputError, match="there is no option 'num_layer'; close names: num_layers"):
        RunDirectory.create(tmp_path / "new", num_layer=3)
    assert not (tmp_path / "new").exists()
    before = (run.path / "config.json").read_bytes()
    for create in (RunDirectory.create, tiny_run.create):
        with pytest.raises(InputError, match="holds a run already"):
            create(run.path, seed=2)
    assert (run.path / "config.json").read_bytes() == before


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


def test_run_is_created_by_one_process_at_a_time_and_whole(tmp_path, text_files):
    run = RunDirectory(tmp_path / "run")
    with run.creation(), pytest.raises(InputError, match="another process creates or trains"):
        create_run(run, text_files)
    absent = text_files.corpora.replace(train_source=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="absent does not exist"):
        create_run(run, text_files._replace(data=absent))
    assert not run.path.exists()  # neither left a folder
    create_run(run, text_files)
    with pytest.raises(InputError, match="holds a run already"):
        create_run(run, text_files)


def test_home_folder_and_addresses_in_paths_of_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    tiny_run.create("~/run")
    assert RunDirectory(tmp_path / "run").exists
    assert RunDirectory.of_checkpoint("~/run/checkpoints/step-3")[0].path == tmp_path / "run"
    for use in (RunDirectory, Vocabulary.load, load_exported, locate):
        with pytest.raises(InputError, match="gs://bucket/it is not on this machine"):
            use("gs://bucket/it")


def test_unusable_path_is_rejected(tmp_path):
    with pytest.raises(InputError, match="path of the run directory is empty"):
        RunDirectory("")
    with pytest.raises(InputError, match="one,two has a comma, which separates runs"):
        tiny_run.create(tmp_path / "one,two")
    (tmp_path / "link").symlink_to(tmp_path / "a[1]")
    for path, character in (("a[1]/run", r"\["), (r"a\b", r"\\"), ("link/run", r"\[")):
        with pytest.raises(InputError, match=f"has {character}, and TensorFlow cannot read"):
            tiny_run.create(tmp_path / path)
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match=r"^cannot write run directory .*file"):
            tiny_run.create(path)


def test_search_config_drops_options_of_other_method():
    imported = configs()._replace(search={"early_stop": "first", "max_extra_length": 7})
    assert imported.search_config().early_stop == "first"
    sampling = imported.search_config({"method": "sampling"})
    assert (sampling.method, sampling.max_extra_length) == ("sampling", 7)
    with pytest.raises(InputError, match="early_stop cannot be combined with method sampling"):
        imported.search_config({"method": "sampling", "early_stop": "first"})


# Going on with a run


def test_run_can_be_extended(run):
    run.continue_with(configs())
    assert run.configs() == configs()
    changes = {"keep_checkpoints": 9, "average_last": 9, "keep_best": 3, "stop_metric": "bleu"}
    run.change(train_steps=5001, **changes)
    assert run.configs() == configs(train_steps=5001, **changes)
    checkpoints = run.checkpoints()
    assert (checkpoints.keep, checkpoints.keep_best) == (9, 3)
    regular = [step for step in (1, 2, 3, 4, 5, 8, 5000, 5001) if checkpoints.is_regular(step)]
    assert regular == [4, 8, 5000, 5001]
    run.change(stop_metric=None)
    assert run.configs().training.stop_metric is None


def changed(data=None, model=None, task=None, **training):
    return RunConfigs(
        tiny_run.model_config(**(model or {})),
        tiny_run.DATA.replace(**(data or {})),
        tiny_run.training_config(**{"train_steps": 200} | training),
        TranslationTask(**(task or {})),
    )


@pytest.mark.parametrize(
    ("step", "asked", "messages"),
    [
        (120, {"train_steps": 60}, ["train_steps is 60, and the run in .* is at step 120 already"]),
        (120, {"train_steps": 240}, None),
        (120, {"train_steps": 240, "schedule": "cosine"}, ["train_steps is 200 there and 240 her"]),
        (4, {"accumulation_steps": 4}, None),
        (0, {"batch_tokens": 9, "seed": 2}, None),  # before the first checkpoint
        (4, {"batch_tokens": 9}, ["batch_tokens is 64 there.* --accumulation_steps needs less"]),
        (0, {"data": {"max_length": 9, "max_length_ratio": 2.0}}, None),
        (4, {"data": {"max_length": 9}}, ["max_length is 256 there and 9 here"]),
        (0, {"data": {"vocabulary_size": 99}}, ["vocabulary_size is None there and 99 here"]),
        (4, dict(model={"num_layers": 3}, task={"remove_bpe": True}, seed=8, train_steps=300),
         ["num_layers is 1 there and 3", "seed is 1 there and 8", "remove_bpe is False there and"]),
    ],
)  # fmt: skip
def test_settings_that_a_run_can_still_change(tmp_path, monkeypatch, step, asked, messages):
    schedule = asked.get("schedule", "paper")
    run, wanted = tiny_run.create(tmp_path, train_steps=200, schedule=schedule), changed(**asked)
    before = (run.path / "config.json").read_bytes()
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [step] * bool(step))
    if messages is None:
        run.continue_with(wanted)
        assert run.configs() == wanted
        return
    with pytest.raises(InputError) as caught:
        run.continue_with(wanted)
    for message in messages:
        assert caught.match(message)
    assert ("train_steps" in str(caught.value)) == ("train_steps" in messages[0])
    assert "\n" not in str(caught.value)
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.slow
def test_changed_text_is_an_error(tmp_path, text_files):
    run, source = RunDirectory(tmp_path / "run"), tmp_path / "source"
    create_run(run, text_files)
    train(run, show=False)
    run.change(train_steps=14)
    source.write_text("".join(reversed(source.read_text().splitlines(True))))
    with pytest.raises(InputError, match=r"text has changed .* to step 12, .*; restore the text"):
        train(run, show=False)
    assert run.checkpoints().steps()[-1] == 12


def test_locked_run_keeps_its_configs(run):
    with run.lock(), pytest.raises(InputError, match="another process creates or trains"):
        run.continue_with(configs(train_steps=5000))
    assert run.configs() == configs()
    with pytest.raises(InputError, match="no training run in"), RunDirectory("nowhere").lock():
        pass


def test_run_keeps_the_precision_that_auto_meant_when_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "auto_precision", lambda: "mixed_bfloat16")
    assert tiny_run.create(tmp_path / "a").configs().training.precision == "float32"
    run = tiny_run.create(tmp_path / "b", precision="auto")
    monkeypatch.setattr(run_module, "auto_precision", lambda: "float32")
    run.continue_with(configs(precision="auto", train_steps=16))
    training = run.configs().training
    assert (training.precision, training.train_steps) == ("mixed_bfloat16", 16)
    assert run.resolved(tiny_run.training_config(precision="auto", train_steps=16)) == training


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (
            {"task": "pronunciation", "held_out": 0.1, "dev_file": "a"},
            {},
            "held_out has no effect in a run with a dev set; remove it",
        ),
        (LEARNED | {"max_length": 20}, {}, "max_length=20 needs 21 .*max_positions is 20; lower"),
        (LEARNED, {"max_length": 20}, "max_length=20 needs 21 learned positions"),
        ({}, {"step": 1}, "there is no option 'step'"),
    ],
)
def test_contradicting_settings_are_rejected(options, changes, message):
    with pytest.raises(InputError, match=message):
        changed_configs(new_configs(TEXT | options), changes)


def test_defaults_of_a_task_give_way_to_a_vocabulary():
    options = {"task": "pronunciation", "train_file": "a", "vocabulary": "some.model"}
    assert new_configs(options).corpora.kinds == ("bpe", "bpe")


# What cannot be opened


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


def test_missing_run_and_unregistered_task_are_reported(run, tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"^no training run in .*give the --run_dir"):
            RunDirectory(path).configs()
    (run.path / "config.json").write_bytes(broken("task", name="own_task"))
    with pytest.raises(InputError, match=r"got 'own_task'; if .*--user_module") as caught:
        run.configs()
    assert "damaged" not in str(caught.value)


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
    # Of an attempt that was interrupted.
    (tmp_path / "new").mkdir()
    tiny_run.make_vocabulary("xyz").save(tmp_path / "new" / "target.model")
    source, target = tiny_run.create(tmp_path / "new").vocabularies()
    assert target is source


def cut_source(path, share):
    """Keeps a share of the source vocabulary's file."""
    content = (path / "source.model").read_bytes()
    (path / "source.model").write_bytes(content[: int(share * len(content))])


def replace_target(path, letters):
    tiny_run.make_vocabulary(letters).save(path / "target.model")


def store_fingerprints(path, stored):
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | {"vocabularies": stored}))


@pytest.mark.parametrize(
    ("letters", "damage", "message"),
    [
        (None, lambda path: (path / "source.model").unlink(), "cannot read the vocabulary .*sour"),
        ("xyz", lambda path: (path / "target.model").unlink(), "cannot read the vocabulary .*ta"),
        (None, lambda path: cut_source(path, 0), r"source\.model(:| is not the vocabulary)"),
        (None, lambda path: cut_source(path, 0.5), r"source\.model(:| is not the vocabulary)"),
        (None, lambda path: cut_source(path, 0.99), r"source\.model(:| is not the vocabulary)"),
        ("xyzv", lambda path: replace_target(path, "xywv"), r"target\.model is not the vocabular"),
        (None, lambda path: replace_target(path, "xyz"), r"target\.model does .*; remove it$"),
        (None, lambda path: store_fingerprints(path, None), r"config\.json is damaged \("),
        (None, lambda path: store_fingerprints(path, {}), r"config\.json is damaged \("),
        (None, lambda path: store_fingerprints(path, {"target.model": "x"}), "json is damaged"),
    ],
)
def test_wrong_vocabulary_is_reported(tmp_path, letters, damage, message):
    run, source = RunDirectory(tmp_path), tiny_run.make_vocabulary()
    run.write(configs(), source, tiny_run.make_vocabulary(letters) if letters else source)
    damage(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        run.vocabularies()
    assert "\n" not in str(caught.value)


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
