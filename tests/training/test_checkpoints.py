"""Checkpoints: exact, kept in order, and rejected if damaged or of another model."""

import json
import pathlib
import re
import shutil
import types
from collections.abc import Iterable

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import Metric, TranslationTask
from keras_transformer.training import checkpoints as module
from keras_transformer.training.checkpoints import AVERAGE, Checkpoints


def randomize(model: keras.Model, seed: int, optimizer: keras.Optimizer | None = None) -> None:
    """Compiles a model and gives its weights, optimizer and random states random numbers."""
    model.compile(optimizer=optimizer or keras.optimizers.Adam(), loss="mse")
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(seed)
    for variable in everything(model):
        variable.assign(generator.uniform(1, 1000, variable.shape).astype(variable.dtype))


def make_model(
    seed: int = 0, width: int = 4, layers: int = 2, optimizer: keras.Optimizer | None = None
) -> keras.Model:
    stack = [keras.layers.Dense(width, name=f"dense_{number}") for number in range(layers)]
    dropout = keras.layers.Dropout(0.5, name="dropout")
    model = keras.Sequential([keras.Input((3,)), *stack[:1], dropout, *stack[1:]])
    randomize(model, seed, optimizer)
    return model


def everything(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def assert_equal(values: Iterable[keras.Variable], expected: Iterable[keras.Variable]) -> None:
    for one, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def assert_same_state(model: keras.Model, other: keras.Model) -> None:
    assert_equal(everything(model), everything(other))


def names_in(folder: pathlib.Path) -> set[str]:
    """Gives the files, without the temporary ones of a killed process."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".writing-")}


def files_of(checkpoints: Checkpoints) -> set[str]:
    return {f"step-{step}.safetensors" for step in checkpoints.steps()} | {"manifest.json"}


def flip_bit(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 0b100
    path.write_bytes(content)


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    training = TrainingConfig(checkpoint_steps=1, keep_checkpoints=3, average_last=3)
    return Checkpoints(tmp_path / "checkpoints", training)


# Writing and reading


def test_resumed_model_has_same_state(checkpoints):
    model, restored = make_model(seed=1), make_model(seed=2)
    extra = {"bad_steps": tf.Variable(5), "seen": keras.Variable(7.0)}
    others = {"bad_steps": tf.Variable(0), "seen": keras.Variable(0.0)}
    for each in (restored, model):  # the second replaces the first
        checkpoints.save(each, 7, extra=extra)
    before = [np.array(variable) for variable in restored.optimizer.variables]
    checkpoints.restore(restored, "step-7")  # the weights alone
    assert_equal(restored.weights, model.weights)
    assert_equal(restored.optimizer.variables, before)
    assert checkpoints.resume(restored, extra=others) == 7
    assert_same_state(restored, model)
    assert (int(others["bad_steps"]), float(others["seen"])) == (5, 7.0)
    x = np.ones((4, 3), "float32")
    for _ in range(2):  # the same random numbers now, and the same after them
        np.testing.assert_array_equal(model(x, training=True), restored(x, training=True))
    path = checkpoints.path("step-7")
    assert path.stat().st_mode == (path.parent / "manifest.json").stat().st_mode
    stored = load_file(path)
    np.testing.assert_array_equal(stored["weights/dense_0/kernel"], model.layers[0].kernel)


def test_one_device_and_several_share_checkpoints(checkpoints):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        checkpoints.save(mirrored := make_model(seed=1), 1)
    checkpoints.resume(single := make_model(seed=2))
    assert_same_state(single, mirrored)
    checkpoints.save(other := make_model(seed=3), 2)
    with strategy.scope():
        checkpoints.resume(mirrored)
    assert_same_state(mirrored, other)


def test_non_finite_weights_are_not_saved(checkpoints):
    checkpoints.save(model := make_model(), 1)
    kernel = model.layers[0].kernel
    kernel.assign(np.where(np.eye(3, 4) > 0, np.nan, kernel))
    before = names_in(checkpoints.folder)
    with pytest.raises(InputError, match="dense_0/kernel is not finite after step 2"):
        checkpoints.save(model, 2, metrics={"loss": 1.0})
    assert names_in(checkpoints.folder) == before


# Which are kept, and which is meant


def test_best_checkpoints_are_kept_beside_newest(checkpoints):
    checkpoints.training = checkpoints.training.replace(average_best=2)
    model = make_model()
    for step, bleu in enumerate([9.0, 30.0, 8.0, 30.0, 30.0, np.nan, 6.0, 5.0], start=5):
        checkpoints.save(model, step, metrics={"bleu": bleu, "loss": 1.0})
    assert checkpoints.steps() == [8, 9, 10, 11, 12]  # not in the order of the alphabet
    assert names_in(checkpoints.folder) == files_of(checkpoints)
    assert checkpoints.best(1) == [9]
    assert checkpoints.best(9) == [8, 9, 11, 12]  # NaN is none of them
    assert checkpoints.newest(2) == [11, 12]
    assert checkpoints.find("best") == "step-9"
    assert list(checkpoints.dev_metrics()) == list(range(5, 13))  # for stopping early


def test_only_regular_checkpoints_are_averaged_and_others_are_dropped(tmp_path):
    options = {"checkpoint_steps": 10, "keep_checkpoints": 2, "average_last": 2}
    checkpoints = Checkpoints(tmp_path, TrainingConfig(train_steps=45, **options))
    model = make_model()
    for step in (10, 13, 20, 30, 39, 40, 44, 45):
        is_regular = checkpoints.training.is_checkpoint_step(step)
        checkpoints.save(model, step, metrics={"bleu": -step} if is_regular else None)
        assert checkpoints.steps()[-1] == step  # where training would go on
    assert (checkpoints.steps(), checkpoints.newest(2)) == ([10, 40, 45], [40, 45])
    longer = Checkpoints(
        tmp_path, TrainingConfig(train_steps=90, **options)
    )  # its former end is not regular
    assert longer.newest(1) == [40]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("bleu", [1, 2, 3, 4], []),
        ("bleu", [3, 2, 4, 2, 2], [5]),
        ("bleu", [3, 3, 3], [3]),  # the same is not better
        ("wer", [1, 2, 0.5, float("inf"), 3], [5]),
        ("val_accuracy", [0.3, 0.2, 0.1], [3]),
        ("val_loss", [1, 2, 0.5, 2, 3, 4], [5, 6]),
        ("val_perplexity", [1, float("nan"), float("nan")], [3]),
        ("val_loss", [float("nan"), float("nan"), 1.0], [2]),
    ],
)
def test_stalled_after_patience_checkpoints(tmp_path, name, values, expected):
    lower_is_better = Metric(name, higher_is_better=False)
    metric = lower_is_better if name == "wer" else TranslationTask().find_metric(name)
    training = TrainingConfig(checkpoint_steps=10, stop_metric=name, stop_patience=2)
    task = types.SimpleNamespace(find_metric=lambda _: metric)
    checkpoints = Checkpoints(tmp_path, training, task)
    for number, value in enumerate(values, start=1):
        checkpoints.write_metrics(10 * number, {name: value, "other": 1.0})
        checkpoints.write_metrics(10 * number + 5, {name: 0.0})  # not regular: not counted
    steps = range(1, len(values) + 1)
    assert [step for step in steps if checkpoints.is_at_end(10 * step)] == expected


def test_checkpoint_that_a_name_means(checkpoints):
    with pytest.raises(InputError, match=r"no checkpoint in .* yet; train the run first"):
        checkpoints.find("auto")
    model = make_model()
    checkpoints.save(model, 9)
    checkpoints.save(model, 10)
    assert checkpoints.find("auto") == "step-10"
    checkpoints.save_weights(model, AVERAGE)
    assert checkpoints.find("auto") == checkpoints.find("average") == "average"
    assert checkpoints.find("latest") == checkpoints.find("10") == "step-10"
    assert checkpoints.find("step-9") == "step-9"
    for which in ("best", "newest", "", "-5", "step-x", "1200"):
        with pytest.raises(InputError, match=r"give auto.* or one of step-9, step-10, average"):
            checkpoints.find(which)
    checkpoints.save(model, 11)  # no average is older than the newest checkpoint
    assert checkpoints.find("auto") == "step-11"


def test_average_of_many_is_exact(checkpoints):
    checkpoints.training = checkpoints.training.replace(keep_checkpoints=9)
    model = make_model()
    for step in range(9):  # 5 of them are one unit in the last place higher than the other 4
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 1 + 2.0**-23 * (step % 2 == 0)))
        checkpoints.save(model, step)
    checkpoints.load_average(model, range(9))  # sums in float32 would round to 9
    np.testing.assert_array_equal(model.weights[0], np.float32(1 + 2.0**-23))


# What cannot be read or written


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        flip_bit,
    ],
    ids=["empty", "cut", "bit"],
)
def test_newest_whole_checkpoint_is_taken(checkpoints, damage, capsys):
    for step in (1, 2, 3):
        checkpoints.save(make_model(seed=step), step)
    checkpoints.save_weights(make_model(), AVERAGE)
    for name in ("average", "step-3"):
        damage(checkpoints.path(name))
        with pytest.raises(InputError, match=f"{name}.safetensors is damaged"):
            checkpoints.restore(make_model(), name)
    model = make_model(seed=9)
    assert checkpoints.resume(model) == 2
    assert_same_state(model, make_model(seed=2))
    assert checkpoints.find("auto") == "step-2"
    output = capsys.readouterr()
    assert output.out == ""  # a translation may be there
    assert [name for name in re.findall("step-.|average", output.err)] == [
        "step-3", "average", "step-3",
    ]  # fmt: skip
    checkpoints.save(make_model(seed=3), 3)  # written again when the run gets there
    assert checkpoints.resume(model) == 3 and not capsys.readouterr().err
    for step in (1, 2, 3):
        damage(checkpoints.path(f"step-{step}"))
    with pytest.raises(InputError, match=r"^no checkpoint in .* is whole"):
        checkpoints.resume(model)


def test_files_without_manifest_are_read(checkpoints):
    checkpoints.save(make_model(seed=1), 1, metrics={"bleu": 1.0})
    manifest = checkpoints.folder / "manifest.json"
    for content in ("", "[]", '{"metrics": 3}'):
        manifest.write_text(content)
        with pytest.raises(InputError, match=r"manifest\.json is damaged \("):
            checkpoints.resume(make_model())
    manifest.unlink()
    assert checkpoints.resume(make_model()) == 1
    assert checkpoints.dev_metrics() == {}


@pytest.mark.parametrize(
    ("changes", "optimizer", "extra"),
    [
        ({"layers": 3}, keras.optimizers.Adam, ()),
        ({"layers": 1}, keras.optimizers.Adam, ()),
        ({"width": 5}, keras.optimizers.Adam, ()),
        ({}, keras.optimizers.SGD, ()),
        ({}, keras.optimizers.Adam, ["count"]),
    ],
)
def test_checkpoint_of_another_model_is_rejected(checkpoints, changes, optimizer, extra):
    model = make_model(**changes, optimizer=optimizer())
    checkpoints.save(make_model(), 1)
    message = r"step-1\.safetensors is of another model: \d+ variables differ, the first is "
    with pytest.raises(InputError, match=message):
        checkpoints.resume(model, extra={name: tf.Variable(1) for name in extra})
    if changes:
        with pytest.raises(InputError, match="is of another model"):
            checkpoints.restore(model, "step-1")


def test_failed_write_leaves_earlier_checkpoints(checkpoints, full_disk):
    model = make_model()
    checkpoints.save(model, 1)
    checkpoints.save_weights(model, AVERAGE)
    before = names_in(checkpoints.folder)
    with full_disk(), pytest.raises(InputError, match="cannot write checkpoint average"):
        checkpoints.save_weights(model, AVERAGE)
    with full_disk(), pytest.raises(InputError, match="cannot write checkpoint step-2"):
        checkpoints.save(model, 2)
    assert names_in(checkpoints.folder) == before
    for name in ("step-1", "average"):
        checkpoints.restore(restored := make_model(seed=5), name)
        assert_equal(restored.weights, model.weights)


def test_newest_checkpoint_is_whole_after_any_kill(tmp_path, monkeypatch, capsys):
    """Copies the folder before each change: that is what a kill at this moment would leave."""
    folder, moments = tmp_path / "checkpoints", []

    def copying(change):
        def copy_and_change(*arguments, **options):
            if list(folder.glob("step-*.safetensors")):
                moments.append(shutil.copytree(folder, tmp_path / f"moment-{len(moments)}"))
            return change(*arguments, **options)

        return copy_and_change

    training = TrainingConfig(checkpoint_steps=1, keep_checkpoints=2, average_last=2)
    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "unlink", copying(pathlib.Path.unlink))
        patched.setattr(pathlib.Path, "write_bytes", copying(pathlib.Path.write_bytes))
        patched.setattr(module.os, "replace", copying(module.os.replace))
        patched.setattr(module, "sync", copying(module.sync))
        saving, model = Checkpoints(folder, training), make_model()
        for step in range(1, 5):
            for variable in model.variables:
                variable.assign(variable * 0 + step)
            saving.save(model, step, metrics={"bleu": -step})
            saving.save_weights(model, AVERAGE)  # as at the end of a run, which is then extended
    litter, averages = 0, 0
    for moment in [*moments, folder]:
        checkpoints = Checkpoints(moment, training)
        step = checkpoints.resume(model)
        assert step == checkpoints.steps()[-1] > 0
        assert all(np.all(value == step) for value in model.variables)
        assert max(checkpoints.dev_metrics()) in (step, step + 1)
        if checkpoints.has_average():  # it is never an older one
            averages += 1
            checkpoints.restore(averaged := make_model(), "average")
            assert np.all(averaged.weights[0] == step)
        litter += names_in(moment) != files_of(checkpoints)
        checkpoints.save(model, step + 1, metrics={"bleu": 0.0})
        assert names_in(moment) == files_of(checkpoints)
        stored = json.loads((moment / "manifest.json").read_text())["sha256"]
        assert {f"{name}.safetensors" for name in stored} >= files_of(checkpoints) - {
            "manifest.json"
        }
    assert not capsys.readouterr().err  # none was damaged
    assert min(litter, averages) > 10  # the moments were in the middle of things
