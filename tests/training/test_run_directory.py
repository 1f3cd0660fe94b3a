"""A run directory: created once, opened by later commands, refused where something is amiss."""

import errno
import json
import os
import pathlib

import numpy as np
import pytest
import tiny_run

from keras_transformer.errors import InputError
from keras_transformer.models import Transformer
from keras_transformer.tasks import TranslationTask
from keras_transformer.training import (
    Checkpoints,
    RunConfigs,
    RunDirectory,
    compile_for_training,
    distribution,
)
from keras_transformer.training import run as run_module


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return tiny_run.create(tmp_path / "run")


def configs(**changes):
    training = tiny_run.training_config(**changes)
    return RunConfigs(tiny_run.model_config(), tiny_run.DATA, training)


# Creating and opening


def test_a_run_is_there_once_it_is_created(tmp_path):
    path = tmp_path / "some" / "run"
    assert not RunDirectory(path).exists
    tiny_run.create(path)
    assert RunDirectory(str(path)).exists
    assert {entry.name for entry in path.iterdir()} == {"config.json", "source.model"}


def test_the_configurations_are_read_as_they_were_written(run):
    assert RunDirectory(run.path).configs() == configs()


def test_another_method_leaves_out_what_the_run_has_for_its_own():
    imported = configs()._replace(search={"early_stop": "first", "max_extra_length": 7})
    assert imported.search_config().early_stop == "first"
    sampling = imported.search_config({"method": "sampling"})
    assert (sampling.method, sampling.max_extra_length) == ("sampling", 7)
    with pytest.raises(InputError, match="early_stop cannot be combined with method sampling"):
        imported.search_config({"method": "sampling", "early_stop": "first"})


def test_a_shared_vocabulary_is_one_object(run):
    source, target = run.vocabularies()
    assert source is target
    assert source.fingerprint == tiny_run.make_vocabulary().fingerprint


def test_two_vocabularies_are_read_as_they_were_written(tmp_path):
    run = RunDirectory(tmp_path)
    source, target = tiny_run.make_vocabulary("abc"), tiny_run.make_vocabulary("xyz")
    run.create(configs(), source, target)
    assert [vocabulary.fingerprint for vocabulary in run.vocabularies()] == [
        source.fingerprint,
        target.fingerprint,
    ]


def test_a_vocabulary_left_by_an_interrupted_attempt_is_not_taken_for_the_targets(tmp_path):
    tiny_run.make_vocabulary("xyz").save(tmp_path / "target.model")
    source, target = tiny_run.create(tmp_path).vocabularies()
    assert target is source


def test_a_run_is_not_created_over_another(run):
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(InputError, match="holds a run already"):
        tiny_run.create(run.path, seed=2)
    assert (run.path / "config.json").read_bytes() == before


def test_an_empty_path_is_not_the_folder_that_one_is_in():
    with pytest.raises(InputError, match="path of the run directory is empty"):
        RunDirectory("")


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match=r"^cannot write run directory .*file"):
            tiny_run.create(path)


# Going on with a run


def test_the_same_command_goes_on_with_the_run(run):
    run.continue_with(configs())
    assert run.configs() == configs()


def test_a_run_may_get_more_steps(run):
    changes = {"keep_checkpoints": 9, "average_last": 9, "keep_best": 3, "stop_metric": "bleu"}
    run.continue_with(configs(train_steps=5001, **changes))
    assert run.configs().training.train_steps == 5001
    checkpoints = run.checkpoints()
    assert (checkpoints.keep, checkpoints.keep_best) == (9, 3)
    regular = [step for step in (1, 2, 3, 4, 5, 8, 5000, 5001) if checkpoints.is_regular(step)]
    assert regular == [4, 8, 5000, 5001]


def test_parts_of_a_batch_may_become_more_and_before_a_checkpoint_all_about_training(
    run, monkeypatch
):
    run.continue_with(configs(batch_tokens=999, seed=2))
    assert run.configs().training.batch_tokens == 999
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    run.continue_with(configs(batch_tokens=999, seed=2, accumulation_steps=4))
    assert run.configs().training.accumulation_steps == 4
    with pytest.raises(InputError, match="batch_tokens is 999 there"):
        run.continue_with(configs(seed=2))


def test_a_run_that_another_process_trains_stays_as_it_is(run):
    with run.lock(), pytest.raises(InputError, match="another process trains the run"):
        run.continue_with(configs(train_steps=5000))
    assert run.configs() == configs()
    with pytest.raises(InputError, match="no training run in"), RunDirectory("nowhere").lock():
        pass


def test_pairs_may_be_left_out_as_long_as_there_is_no_checkpoint(run, monkeypatch):
    asked = configs()
    shorter = asked.data.replace(max_length=9, max_length_ratio=2.0)
    run.continue_with(asked._replace(data=shorter))
    assert run.configs().data.max_length == 9
    with pytest.raises(InputError, match="vocabulary_size is 8000 there and 99 here"):
        run.continue_with(asked._replace(data=shorter.replace(vocabulary_size=99)))
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    with pytest.raises(InputError, match="max_length is 9 there and 256 here"):
        run.continue_with(asked)


def test_another_configuration_is_refused_and_each_difference_named(run, monkeypatch):
    monkeypatch.setattr(Checkpoints, "steps", lambda self: [4])
    before = (run.path / "config.json").read_bytes()
    model = tiny_run.model_config(num_layers=3)
    data = tiny_run.DATA.replace(max_length=99)
    training = tiny_run.training_config(seed=8, train_steps=99)
    with pytest.raises(InputError) as caught:
        run.continue_with(RunConfigs(model, data, training, TranslationTask(remove_bpe=True)))
    message = str(caught.value)
    assert "num_layers is 2 there and 3 here" in message
    assert "max_length is 256 there and 99 here" in message
    assert "seed is 1 there and 8 here" in message
    assert "remove_bpe is False there and True here" in message
    assert "train_steps" not in message
    assert "\n" not in message
    assert (run.path / "config.json").read_bytes() == before


def test_a_full_disk_is_told_and_leaves_the_old_configuration(run, monkeypatch):
    def fail(*paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "replace", fail)
    with pytest.raises(InputError, match=r"cannot write run directory .*No space left on device"):
        run.continue_with(configs(train_steps=5000))
    assert run.configs() == configs()
    assert {entry.name for entry in run.path.iterdir()} == {"config.json", "lock", "source.model"}


# What cannot be opened


def test_a_missing_run_is_told(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"^no training run in .*give the --run_dir"):
            RunDirectory(path).configs()


def broken(*keys, value):
    """Gives the configuration of a run with one value replaced."""
    whole = place = configs().to_dict()
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"model": {}}',
        b"\xff\xfe\x00",
        broken("model", value=[]),
        broken("model", "num_layers", value="six"),
        broken("model", "num_layers", value=0),
        broken("model", "num_leyers", value=6),
        broken("training", "precision", value="float8"),
        broken("task", "name", value="unknown"),
        broken("task", "bleu_tokenize", value="13b"),
    ],
    ids=range(14),
)
def test_a_damaged_configuration_is_told_in_one_line(run, content):
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is damaged \(") as caught:
        run.configs()
    assert "\n" not in str(caught.value)


def test_a_missing_vocabulary_is_told(run):
    (run.path / "source.model").unlink()
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*source\.model"):
        run.vocabularies()


@pytest.mark.parametrize("content", ["null", "{}", '{"source.model": {}}', '{"x": 1}'])
def test_a_configuration_without_a_record_of_the_vocabularies_is_damaged(run, content):
    values = json.loads((run.path / "config.json").read_text())
    values["vocabularies"] = json.loads(content)
    (run.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"config\.json is damaged \("):
        run.vocabularies()


def assert_vocabulary_refused(run, name, what):
    with pytest.raises(
        InputError, match=rf"{name} is not the vocabulary .*: it has {what}"
    ) as caught:
        run.vocabularies()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_vocabulary_is_refused(run, share):
    content = (run.path / "source.model").read_bytes()
    (run.path / "source.model").write_bytes(content[: int(share * len(content))])
    assert_vocabulary_refused(run, r"source\.model", rf"[\d,]+ bytes in place of {len(content):,};")


def test_a_vocabulary_that_was_altered_or_copied_from_another_run_is_refused(tmp_path):
    run = RunDirectory(tmp_path)
    run.create(configs(), tiny_run.make_vocabulary("abc"), tiny_run.make_vocabulary("xyzv"))
    run.continue_with(configs(train_steps=5000))  # which keeps what is noted of the files
    assert run.vocabularies()[1].size == tiny_run.make_vocabulary("xyzv").size
    tiny_run.make_vocabulary("xywv").save(tmp_path / "target.model")
    assert_vocabulary_refused(run, r"target\.model", "the same size but another content")
    (tmp_path / "target.model").unlink()
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*target\.model"):
        run.vocabularies()


def test_a_target_vocabulary_that_is_put_into_a_run_that_has_none_is_refused(run):
    tiny_run.make_vocabulary("xyz").save(run.path / "target.model")
    with pytest.raises(InputError, match=r"target\.model is no part of this run.*; remove it$"):
        run.vocabularies()


# Precision


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("has_instructions", [True, False])
def test_auto_is_bfloat16_where_the_machine_computes_in_it(
    tmp_path, monkeypatch, has_gpu, has_instructions
):
    monkeypatch.setattr(distribution, "has_bfloat16", lambda: has_instructions)
    devices = ["GPU:0"] if has_gpu else []
    monkeypatch.setattr(distribution.tf.config, "list_physical_devices", lambda kind: devices)
    run = tiny_run.create(tmp_path, precision="auto")
    expected = "mixed_bfloat16" if has_gpu or has_instructions else "float32"
    assert run.configs().training.precision == expected


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_keeps_the_precision_that_auto_chose_on_another_machine(
    tmp_path, monkeypatch, has_checkpoint
):
    monkeypatch.setattr(run_module, "computes_in_bfloat16", lambda: True)
    run = tiny_run.create(tmp_path, precision="auto")
    if has_checkpoint:
        model = Transformer(tiny_run.model_config(), dtype="mixed_bfloat16")
        compile_for_training(model, run.configs().training)
        run.checkpoints().save(model, 4)
    monkeypatch.setattr(run_module, "computes_in_bfloat16", lambda: False)
    run.continue_with(configs(precision="auto", train_steps=16))
    training = run.configs().training
    assert (training.precision, training.train_steps) == ("mixed_bfloat16", 16)
    assert run.resolved(tiny_run.training_config(precision="auto", train_steps=16)) == training


def test_a_precision_that_is_named_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "computes_in_bfloat16", lambda: True)
    assert tiny_run.create(tmp_path, precision="float32").configs().training.precision == "float32"


# The model


def test_a_model_is_loaded_in_float32_with_the_weights_of_the_checkpoint(tmp_path):
    run = tiny_run.create(tmp_path, precision="mixed_bfloat16")
    model = Transformer(tiny_run.model_config(), dtype="mixed_bfloat16")
    compile_for_training(model, run.configs().training)
    run.checkpoints().save(model, 4)
    loaded = run.load_model()
    assert loaded.dtype_policy.name == "float32"
    for expected, weight in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_a_run_without_checkpoints_has_no_model(run):
    with pytest.raises(InputError, match=r"no checkpoint 'auto' in .*there is none"):
        run.load_model()
