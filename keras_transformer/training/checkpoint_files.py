"""The files of checkpoints: written whole or not at all, read back or refused.

A checkpoint `name` is `name.data-00000-of-00001` and `name.index`. Both are written aside, brought
to the disk, and moved to their place, the index, which makes them a checkpoint, last.
"""

import collections
import contextlib
import pathlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.atomic_files import sync
from keras_transformer.atomic_folders import temporary_folder
from keras_transformer.errors import InputError

AVERAGE = "average"

Variable = Any  # keras.Variable or tf.Variable, also a mirrored one
# TensorFlow's variables, or what a strategy has made of them, by group and name. The files are the
# same for any number of devices.
Contents = Mapping[str, Mapping[str, Variable]]


class DamagedError(InputError):
    """A checkpoint that is there and cannot be read.

    Attributes:
        what: which one, and what is wrong with it.
    """

    def __init__(self, what: str, others: str) -> None:
        super().__init__(f"{what}; take another one, there is {others}")
        self.what = what


class CheckpointFiles:
    """The files of the checkpoints in one folder.

    Args:
        folder: where they are; it must be there when one is written.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints `step-N`, oldest first."""
        return sorted(
            int(match.group(1))
            for path in self.folder.glob("step-*.index")
            if (match := re.fullmatch(r"step-(\d+)", path.stem))
        )

    def exists(self, name: str) -> bool:
        """Whether there is such a checkpoint."""
        return (self.folder / f"{name}.index").exists()

    def listing(self) -> str:
        """Returns the names of all checkpoints, for messages."""
        names = [f"step-{step}" for step in self.steps()] + [AVERAGE] * self.exists(AVERAGE)
        return ", ".join(names) or "none"

    def write(self, name: str, contents: Contents) -> None:
        """Writes a checkpoint in the place of any of that name.

        Raises:
            OSError, tf.errors.OpError: the disk does not take it.
        """
        with temporary_folder(self.folder) as aside:  # training and averaging may write at one time
            tf.train.Checkpoint(**contents).write(str(aside / name))
            paths = sorted(aside.glob(f"{name}.*"))  # "data" before "index"
            for path in paths:
                sync(path)
            self.drop(name)
            for path in paths:
                path.replace(self.folder / path.name)
                sync(self.folder)

    def drop(self, name: str) -> None:
        """Removes a checkpoint where there is one."""
        for path in sorted(self.folder.glob(f"{name}.*"), reverse=True):  # "index" before "data"
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Removes data of `step-N` without an index, which a process that was killed has left."""
        for path in self.folder.glob("step-*.data-*"):
            if not self.exists(path.stem):
                path.unlink(missing_ok=True)

    def count(self, name: str) -> collections.Counter[str]:
        """Returns how many variables a checkpoint has in each group.

        Raises:
            InputError: there is no such checkpoint, or it is damaged.
        """
        if not self.exists(name):
            raise InputError(f"no checkpoint {name} in {self.folder}; there is {self.listing()}")
        with self._refusal(name):
            stored = tf.train.list_variables(str(self.folder / name))
        return collections.Counter(key.partition("/")[0] for key, _ in stored)

    def read(self, name: str, contents: Contents, num_weights: int) -> None:
        """Sets variables to what a checkpoint holds under their names.

        Args:
            name: of the checkpoint.
            contents: the variables; the checkpoint may hold others too.
            num_weights: variables that it must have in its group "weights".

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it holds no such variables.
        """
        found = self.count(name)["weights"]
        with self._refusal(name):
            if found != num_weights:
                raise ValueError(f"it has {found} weights, not {num_weights}")
            status = tf.train.Checkpoint(**contents).read(str(self.folder / name))
            status.assert_existing_objects_matched().expect_partial()

    @contextlib.contextmanager
    def _refusal(self, name: str) -> Iterator[None]:
        """Makes an `InputError` of what TensorFlow raises when it reads a checkpoint."""
        try:
            yield
        except (AssertionError, ValueError) as error:
            raise InputError(
                f"checkpoint {self.folder / name} is of another model ({one_line(error)}); "
                "give the run directory that it was made in"
            ) from error
        except (tf.errors.OpError, IndexError) as error:  # IndexError: a file that was cut short
            what = f"checkpoint {self.folder / name} is damaged ({one_line(error)})"
            raise DamagedError(what, self.listing()) from error


def training_contents(
    model: keras.Model,
    average_weights: Mapping[str, Variable] | None,
    extra: Mapping[str, Variable] | None,
) -> dict[str, dict[str, Variable]]:
    """Returns all that training goes on from; see `Checkpoints.save`."""
    known = {id(weight) for weight in model.weights}
    seeds = [variable for variable in model.variables if id(variable) not in known]
    contents = {
        "weights": by_name(model, model.weights),
        "seeds": _numbered(seeds),
        "optimizer": _numbered(model.optimizer.variables),
    }
    for group, variables in (("average_weights", average_weights), ("extra", extra)):
        if variables:
            contents[group] = {name: _value(variable) for name, variable in variables.items()}
    return contents


def by_name(model: keras.Model, weights: Sequence[keras.Variable]) -> dict[str, Variable]:
    """Returns some of a model's weights under names that are the same in any process."""
    # The path begins with the model's own name, which Keras numbers by process.
    own_name = f"{model.name}/"
    return {weight.path.removeprefix(own_name): _value(weight) for weight in weights}


def one_line(error: BaseException) -> str:
    """Returns an error's message on one line, without the name of a TensorFlow operation."""
    return textwrap.shorten(str(error).rpartition("}} ")[2], 200)


def _numbered(variables: Sequence[keras.Variable]) -> dict[str, Variable]:
    return {str(number): _value(variable) for number, variable in enumerate(variables)}


def _value(variable: Variable) -> Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable
