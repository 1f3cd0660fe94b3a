"""Checkpoints of a training run: written whole or not at all, read back or refused.

A checkpoint holds the weights by name, the state of every dropout's random numbers, and the
optimizer. Its files are written aside and then moved to their place, the index, which makes them
a checkpoint, last: a crash or a full disk leaves the earlier checkpoints as they are.
"""

import pathlib
import re
import shutil
import textwrap
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError

AVERAGE = "average"


class Checkpoints:
    """The checkpoints `step-N` in one folder, and `average`, the mean of several.

    Args:
        folder: where they are; made when the first one is written.
        keep: how many of the newest to keep.
    """

    def __init__(self, folder: pathlib.Path, keep: int = 20) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first."""
        return sorted(
            int(match.group(1))
            for path in self.folder.glob("step-*.index")
            if (match := re.fullmatch(r"step-(\d+)", path.stem))
        )

    def save(self, model: keras.Model, step: int) -> None:
        """Writes the model and its optimizer as checkpoint `step-<step>`, then drops old ones.

        The average of earlier ones, which no longer is the run's result, is dropped as well.

        Raises:
            InputError: the disk does not take it; the earlier checkpoints stay as they are.
        """
        self._write(_contents(model, optimizer=True), f"step-{step}")
        for old in [AVERAGE, *(f"step-{step}" for step in self.steps()[: -self.keep])]:
            self._drop(old)

    def save_average(self, model: keras.Model) -> None:
        """Writes the model's weights as checkpoint `average`."""
        self._write(_contents(model, optimizer=False), AVERAGE)

    def restore(self, model: keras.Model, name: str, *, optimizer: bool = False) -> None:
        """Reads checkpoint `name` into the model, and into its optimizer too if asked.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it is another model's.
        """
        prefix = self.folder / name
        if not prefix.with_suffix(".index").exists():
            raise InputError(f"no checkpoint {name} in {self.folder}; there is {self._listing()}")
        try:
            stored = [key for key, _ in tf.train.list_variables(str(prefix))]
            if sum(key.startswith("weights/") for key in stored) != len(model.weights):
                raise ValueError(f"it does not hold {len(model.weights)} weights")
            status = tf.train.Checkpoint(**_contents(model, optimizer)).read(str(prefix))
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError) as error:
            raise InputError(
                f"checkpoint {prefix} is of another model ({_reason(error)}); "
                "give the run directory that it was made in"
            ) from error
        except (tf.errors.OpError, IndexError) as error:  # IndexError: a file that was cut short
            raise InputError(
                f"checkpoint {prefix} is damaged ({_reason(error)}); "
                f"delete its files to go on from an earlier one; there is {self._listing()}"
            ) from error

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that a person means by `which`.

        Args:
            which: "latest", "average", a step, or "auto": the average where there is one, else
                the latest.

        Raises:
            InputError: it names no kind of checkpoint, or there is none yet.
        """
        steps = self.steps()
        if which == AVERAGE or (which == "auto" and self._has_average()):
            return AVERAGE
        if which in ("auto", "latest") and steps:
            return f"step-{steps[-1]}"
        step = which.removeprefix("step-")
        if step.isdecimal():
            return f"step-{step}"
        raise InputError(
            f"no checkpoint {which!r} in {self.folder}: give auto, latest, average or a step; "
            f"there is {self._listing()}"
        )

    def average(self, model: keras.Model, steps: Sequence[int]) -> None:
        """Sets the model's weights to the mean of those of the checkpoints (6.1).

        Raises:
            InputError: no steps are given, or as of `restore`.
        """
        if not steps:
            raise InputError(f"no checkpoints to average in {self.folder}; train the run first")
        sums = [np.zeros(weight.shape, np.float64) for weight in model.weights]
        for step in steps:
            self.restore(model, f"step-{step}")
            for total, weight in zip(sums, model.weights, strict=True):
                total += keras.ops.convert_to_numpy(weight)
        for total, weight in zip(sums, model.weights, strict=True):
            weight.assign(total / len(steps))

    def _write(self, contents: dict[str, dict[str, tf.Variable]], name: str) -> None:
        aside = self.folder / "writing"
        try:
            aside.mkdir(parents=True, exist_ok=True)
            tf.train.Checkpoint(**contents).write(str(aside / name))
            self._drop(name)
            for path in sorted(aside.glob(f"{name}.*")):  # "data" before "index"
                path.replace(self.folder / path.name)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"cannot write checkpoint {name} to {self.folder} ({_reason(error)}); "
                f"free some space and run again; there is {self._listing()}"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _drop(self, name: str) -> None:
        for path in sorted(self.folder.glob(f"{name}.*"), reverse=True):  # "index" before "data"
            path.unlink()

    def _has_average(self) -> bool:
        return (self.folder / f"{AVERAGE}.index").exists()

    def _listing(self) -> str:
        names = [f"step-{step}" for step in self.steps()] + [AVERAGE] * self._has_average()
        return ", ".join(names) or "none"


def _reason(error: Exception) -> str:
    """Returns TensorFlow's message on one line, without the name of its operation."""
    return textwrap.shorten(str(error).rpartition("}} ")[2], 200)


def _contents(model: keras.Model, optimizer: bool) -> dict[str, dict[str, tf.Variable]]:
    """Returns the variables by name; names do not depend on what else the process has built."""
    # The path begins with the model's own name, which Keras numbers by process.
    own_name = f"{model.name}/"
    weights = {weight.path.removeprefix(own_name): weight.value for weight in model.weights}
    known = {id(weight) for weight in model.weights}
    seeds = [variable.value for variable in model.variables if id(variable) not in known]
    contents = {"weights": weights, "seeds": {str(i): seed for i, seed in enumerate(seeds)}}
    if optimizer:
        slots = [variable.value for variable in model.optimizer.variables]
        contents["optimizer"] = {str(i): slot for i, slot in enumerate(slots)}
    return contents
