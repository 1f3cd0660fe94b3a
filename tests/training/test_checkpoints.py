"""Checkpoints: exact, kept in order, and refused where they are damaged or of another model."""

import os
import pathlib
import resource
import shutil
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training.checkpoints import Checkpoints

DATA, INDEX = "data-00000-of-00001", "index"


def make_model(seed: int = 0, width: int = 4, layers: int = 2) -> keras.Model:
    """Gives a small model whose weights, optimizer and random numbers have values of their own."""
    stack = [keras.layers.Dense(width, name=f"dense_{number}") for number in range(layers)]
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((3,)), *stack[:1], dropout, *stack[1:]])
    model.compile(optimizer=keras.optimizers.Adam(), loss="mse")
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(seed)
    for variable in everything(model):
        values = generator.uniform(1, 1000, variable.shape).astype(variable.dtype)
        variable.assign(values)
    return model


def everything(model: keras.Model) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def values(variables: list[keras.Variable]) -> list[np.ndarray]:
    return [np.array(variable) for variable in variables]


def assert_equal(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def names_in(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=3)


# Writing and reading


def test_a_restored_model_has_the_same_weights_optimizer_and_dropout(checkpoints):
    model, restored = make_model(seed=1), make_model(seed=2)
    checkpoints.save(model, 7)
    checkpoints.restore(restored, "step-7", optimizer=True)
    assert_equal(values(everything(model)), values(everything(restored)))
    x = np.ones((4, 3), "float32")
    for _ in range(2):  # the same random numbers now, and the same after them
        np.testing.assert_array_equal(model(x, training=True), restored(x, training=True))


def test_the_optimizer_is_left_alone_unless_asked_for(checkpoints):
    model, restored = make_model(seed=1), make_model(seed=2)
    before = values(restored.optimizer.variables)
    checkpoints.save(model, 7)
    checkpoints.restore(restored, "step-7")
    assert_equal(values(model.weights), values(restored.weights))
    assert_equal(before, values(restored.optimizer.variables))


def test_only_the_newest_checkpoints_are_kept(checkpoints):
    model = make_model()
    for step in (8, 9, 10, 100, 11):
        checkpoints.save(model, step)
    assert checkpoints.steps() == [10, 11, 100]
    expected = {f"step-{step}.{end}" for step in (10, 11, 100) for end in (DATA, INDEX)}
    assert names_in(checkpoints.folder) == expected


def test_a_folder_that_is_not_there_has_no_checkpoints(checkpoints):
    assert checkpoints.steps() == []


def test_the_same_step_can_be_written_again(checkpoints):
    checkpoints.save(make_model(seed=1), 7)
    checkpoints.save(model := make_model(seed=2), 7)
    checkpoints.restore(restored := make_model(seed=3), "step-7", optimizer=True)
    assert_equal(values(everything(model)), values(everything(restored)))


# Which one is meant


def test_auto_is_the_average_unless_a_later_checkpoint_was_written(checkpoints):
    model = make_model()
    checkpoints.save(model, 9)
    checkpoints.save(model, 10)
    assert checkpoints.find("auto") == "step-10"
    checkpoints.save_average(model)
    assert checkpoints.find("auto") == "average"
    assert checkpoints.find("latest") == "step-10"
    checkpoints.save(model, 11)
    assert checkpoints.find("auto") == "step-11"


def test_a_copy_whose_files_have_other_times_gives_the_same_checkpoint(checkpoints):
    checkpoints.save(make_model(), 9)
    checkpoints.save_average(make_model())
    for number, path in enumerate(sorted(checkpoints.folder.iterdir())):
        os.utime(path, (number, number))
    assert checkpoints.find("auto") == "average"


def test_average_and_a_step_mean_themselves(checkpoints):
    assert checkpoints.find("average") == "average"
    assert checkpoints.find("1200") == "step-1200"
    assert checkpoints.find("step-1200") == "step-1200"


@pytest.mark.parametrize("which", ["auto", "latest", "newest", "", "-5", "step-", "step-x"])
def test_a_name_that_means_nothing_here_is_refused(checkpoints, which):
    with pytest.raises(InputError, match=r"give auto, latest, average or a step.* there is none$"):
        checkpoints.find(which)


# The average


def test_the_average_is_the_mean_of_the_weights(checkpoints):
    models = [make_model(seed) for seed in range(3)]
    for step, model in enumerate(models):
        checkpoints.save(model, step)
    averaged = make_model(seed=9)
    checkpoints.average(averaged, [0, 2])
    for first, last, mean in zip(
        values(models[0].weights), values(models[2].weights), values(averaged.weights), strict=True
    ):
        expected = (first.astype(np.float64) + last) / 2
        np.testing.assert_array_equal(mean, expected.astype(np.float32))
    checkpoints.save_average(averaged)
    checkpoints.restore(restored := make_model(seed=8), "average")
    assert_equal(values(averaged.weights), values(restored.weights))


def test_the_mean_of_many_loses_no_digits_on_the_way(checkpoints):
    checkpoints.keep, model = 9, make_model()
    for step in range(9):  # 5 of them are one unit in the last place higher than the other 4
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 1 + 2.0**-23 * (step % 2 == 0)))
        checkpoints.save(model, step)
    checkpoints.average(model, range(9))  # sums in float32 would round to 9
    np.testing.assert_array_equal(model.weights[0], np.float32(1 + 2.0**-23))


def test_an_average_of_nothing_is_refused(checkpoints):
    with pytest.raises(InputError, match="no checkpoints to average"):
        checkpoints.average(make_model(), [])


# What cannot be read


def test_a_missing_checkpoint_is_refused_with_those_that_are_there(checkpoints):
    checkpoints.save(make_model(), 1)
    checkpoints.save_average(make_model())
    with pytest.raises(InputError, match=r"^no checkpoint step-2 in .*; there is step-1, average$"):
        checkpoints.restore(make_model(), "step-2")


def assert_refused_as_damaged(checkpoints: Checkpoints) -> None:
    with pytest.raises(InputError, match=r"^checkpoint .*step-1 is damaged \(.*delete its files"):
        checkpoints.restore(make_model(), "step-1", optimizer=True)


@pytest.mark.parametrize("kept_share", [0, 0.5, 0.999])
@pytest.mark.parametrize("end", [DATA, INDEX])
def test_a_truncated_file_is_refused(checkpoints, end, kept_share):
    checkpoints.save(make_model(), 1)
    path = checkpoints.folder / f"step-1.{end}"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept_share * len(content))])
    assert_refused_as_damaged(checkpoints)


def test_a_missing_data_file_is_refused(checkpoints):
    checkpoints.save(make_model(), 1)
    (checkpoints.folder / f"step-1.{DATA}").unlink()
    assert_refused_as_damaged(checkpoints)


@pytest.mark.parametrize("place", [0.0, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("end", [DATA, INDEX])
def test_a_flipped_bit_is_found_out(checkpoints, end, place):
    checkpoints.save(make_model(), 1)
    path = checkpoints.folder / f"step-1.{end}"
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0b100
    path.write_bytes(content)
    assert_refused_as_damaged(checkpoints)


@pytest.mark.parametrize("optimizer", [True, False], ids=["with optimizer", "weights alone"])
@pytest.mark.parametrize("other", [{"layers": 3}, {"layers": 1}, {"width": 5}], ids=str)
def test_the_checkpoint_of_another_model_is_refused(checkpoints, other, optimizer):
    checkpoints.save(make_model(), 1)
    with pytest.raises(InputError, match=r"^checkpoint .*step-1 is of another model \(") as caught:
        checkpoints.restore(make_model(**other), "step-1", optimizer=optimizer)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


# A disk that takes no more


def assert_a_failed_write_harms_nothing(checkpoints: Checkpoints, model: keras.Model) -> None:
    before = names_in(checkpoints.folder)
    with pytest.raises(InputError, match=r"cannot write checkpoint step-2 .*there is step-1, aver"):
        checkpoints.save(model, 2)
    assert names_in(checkpoints.folder) == before
    for name in ("step-1", "average"):
        checkpoints.restore(restored := make_model(seed=5), name)
        assert_equal(values(restored.weights), values(model.weights))


def test_a_write_that_fails_leaves_the_earlier_checkpoints_and_no_litter(checkpoints):
    model = make_model()
    checkpoints.save(model, 1)
    checkpoints.save_average(model)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # bytes a file may have
    try:
        with pytest.raises(InputError, match="cannot write checkpoint average"):
            checkpoints.save_average(model)
        assert_a_failed_write_harms_nothing(checkpoints, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_earlier_checkpoints_and_no_litter(tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        checkpoints, model = Checkpoints(tmp_path / "checkpoints"), make_model()
        checkpoints.save(model, 1)
        checkpoints.save_average(model)
        with (tmp_path / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(1024))
        assert_a_failed_write_harms_nothing(checkpoints, model)
        (tmp_path / "filler").unlink()
        checkpoints.save(model, 2)
        assert checkpoints.steps() == [1, 2]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_away(checkpoints):
    checkpoints.save(make_model(seed=1), 1)
    aside = checkpoints.folder / "writing"
    aside.mkdir()
    for path in checkpoints.folder.glob("step-1.*"):
        shutil.copy(path, aside / path.name.replace("step-1", "step-2"))
    assert checkpoints.steps() == [1]
    checkpoints.save(model := make_model(seed=2), 2)
    checkpoints.restore(restored := make_model(seed=3), "step-2")
    assert_equal(values(model.weights), values(restored.weights))
    assert not aside.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write checkpoint step-1"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(make_model(), 1)


def test_checkpoints_are_ordinary_tensorflow_checkpoints(checkpoints):
    checkpoints.save(model := make_model(), 1)
    stored = tf.train.load_checkpoint(str(checkpoints.folder / "step-1"))
    name = "weights/dense_0.Skernel/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(stored.get_tensor(name), model.layers[0].kernel)
