"""Checkpoints of a training run: written whole or not at all, read back or refused.

A checkpoint holds the weights by name, the state of every dropout's random numbers, and the
optimizer with its step. TensorFlow writes the data first and the `checkpoint` file that names
the newest one last, each under another name and then renamed: a crash leaves the last good one.
"""

import pathlib
import re
import shutil
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

        Raises:
            InputError: the disk does not take it; the earlier checkpoints stay as they are.
        """
        self._write(_contents(model, optimizer=True), f"step-{step}")
        for old in self.steps()[: -self.keep]:
            for path in self.folder.glob(f"step-{old}.*"):
                path.unlink()

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
            status = tf.train.Checkpoint(**_contents(model, optimizer)).read(str(prefix))
            status.assert_existing_objects_matched().expect_partial()
        except (tf.errors.OpError, AssertionError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"checkpoint {prefix} cannot be read ({reason}); "
                f"delete its files to go on from an earlier one; there is {self._listing()}"
            ) from error

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that a person means by `which`.

        Args:
            which: "latest", "average", a step, or "auto": the average where there is one and no
                later checkpoint, else the latest.
        """
        steps = self.steps()
        average = self.folder / f"{AVERAGE}.index"
        if which == AVERAGE or (which == "auto" and average.exists() and not self._newer(average)):
            return AVERAGE
        if which in ("auto", "latest") and steps:
            return f"step-{steps[-1]}"
        if which in ("auto", "latest") or not which.isdigit():
            known = "auto, latest, average or a step number"
            raise InputError(f"no checkpoint {which!r} in {self.folder}: give {known}; there is "
                             f"{self._listing()}")  # fmt: skip
        return f"step-{which}"

    def average(self, model: keras.Model, steps: Sequence[int]) -> None:
        """Sets the model's weights to the mean of those of the checkpoints (6.1)."""
        sums = [np.zeros(weight.shape, np.float64) for weight in model.weights]
        for step in steps:
            self.restore(model, f"step-{step}")
            for total, weight in zip(sums, model.weights, strict=True):
                total += keras.ops.convert_to_numpy(weight)
        for total, weight in zip(sums, model.weights, strict=True):
            weight.assign(total / len(steps))

    def _write(self, contents: dict[str, dict[str, tf.Variable]], name: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tf.train.Checkpoint(**contents).write(str(self.folder / name))
        except (tf.errors.OpError, OSError) as error:
            for path in self.folder.glob(f"{name}*temp*"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"cannot write checkpoint {name} to {self.folder} ({reason}); "
                f"free some space and run again; there is {self._listing()}"
            ) from error

    def _newer(self, average: pathlib.Path) -> bool:
        newest = self.folder / f"step-{self.steps()[-1]}.index" if self.steps() else average
        return newest.stat().st_mtime > average.stat().st_mtime

    def _listing(self) -> str:
        names = [f"step-{step}" for step in self.steps()]
        if (self.folder / f"{AVERAGE}.index").exists():
            names.append(AVERAGE)
        return ", ".join(names) or "none"


def _contents(model: keras.Model, optimizer: bool) -> dict[str, dict[str, tf.Variable]]:
    """Returns the variables by name; names do not depend on what else the process has built."""
    # The path begins with the model's own name, which Keras numbers by process.
    weights = {weight.path.partition("/")[2]: weight.value for weight in model.weights}
    known = {id(weight) for weight in model.weights}
    seeds = [variable.value for variable in model.variables if id(variable) not in known]
    contents = {"weights": weights, "seeds": {str(i): seed for i, seed in enumerate(seeds)}}
    if optimizer:
        slots = [variable.value for variable in model.optimizer.variables]
        contents["optimizer"] = {str(i): slot for i, slot in enumerate(slots)}
    return contents
