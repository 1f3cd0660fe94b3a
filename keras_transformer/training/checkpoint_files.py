"""The files of checkpoints: written whole or not at all, read back or refused.

A checkpoint `name` is `name.data-00000-of-00001` and `name.index`. Both are written to a temporary
folder, synced to disk and moved into place, the index, which completes the checkpoint, last.
"""

import collections
import contextlib
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from keras_transformer.atomic_files import sync
from keras_transformer.atomic_folders import temporary_folder
from keras_transformer.errors import InputError
from keras_transformer.training.checkpoint_contents import Contents

AVERAGE = "average"
START = "step-0"  # weights that a run begins with


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

    def listing(self, without: str | None = None) -> str:
        """Returns the names of all checkpoints, or of all but one, for messages."""
        names = [f"step-{step}" for step in self.steps()] + [AVERAGE] * self.exists(AVERAGE)
        return ", ".join(name for name in names if name != without) or "none"

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

    def names(self, name: str) -> dict[str, set[str]]:
        """Returns the names of a checkpoint's variables, by group.

        Raises:
            InputError: there is no such checkpoint, or it is damaged.
        """
        if not self.exists(name):
            raise InputError(f"no checkpoint {name} in {self.folder}; there is {self.listing()}")
        with self._refusal(name):
            stored = tf.train.list_variables(str(self.folder / name))
        names: dict[str, set[str]] = collections.defaultdict(set)
        for key, _ in stored:
            group, _, rest = key.partition("/")
            variable = rest.partition("/")[0]
            # TensorFlow writes "/" within a name as ".S", and "." as "..".
            names[group].add(re.sub(r"\.(.)", lambda found: found[1].replace("S", "/"), variable))
        return names

    def check(self, name: str) -> None:
        """Reads a checkpoint from beginning to end.

        Raises:
            InputError: there is no such checkpoint, or it is damaged.
        """
        self.names(name)
        with self._refusal(name):
            reader = tf.train.load_checkpoint(str(self.folder / name))
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)  # compares checksums

    def first_whole(self, names: Sequence[str], read: Callable[[str], None]) -> tuple[str, str]:
        """Returns the first checkpoint that `read` does not find damaged.

        Args:
            names: at least one.
            read: raises `DamagedError` as `read` and `check` do.

        Returns:
            The name, and what is wrong with those before it, "" where nothing is.

        Raises:
            InputError: all are damaged, or `read` finds another fault.
        """
        damaged: list[str] = []
        for name in names:
            try:
                read(name)
            except DamagedError as error:
                damaged.append(error.what)
            else:
                return name, "; ".join(damaged)
        raise InputError(
            f"no checkpoint in {self.folder} is whole: {'; '.join(damaged)}; restore one from "
            "a copy, or delete them to start again"
        )

    def read(self, name: str, contents: Contents, weights: Iterable[str]) -> None:
        """Sets variables to what a checkpoint holds under their names.

        Args:
            name: of the checkpoint.
            contents: the variables. The checkpoint may hold other groups, but in each of these
                no other variables.
            weights: names of all variables that it must have in its group "weights".

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it holds other variables.
        """
        stored = self.names(name)
        expected = {group: set(variables) for group, variables in contents.items()}
        expected["weights"] = set(weights)
        with self._refusal(name):
            for group, names in expected.items():
                _check_names(group, stored.get(group, set()), names)
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
                "give the run directory that it was made in, and use the same version of Keras"
            ) from error
        except (tf.errors.OpError, IndexError) as error:  # IndexError: a file that was cut short
            what = f"checkpoint {self.folder / name} is damaged ({one_line(error)})"
            raise DamagedError(what, self.listing(without=name)) from error


def _check_names(group: str, stored: set[str], expected: set[str]) -> None:
    """Raises `ValueError`, with the first name and a count, where two sets of names differ."""
    for names, what in ((expected - stored, "lacks"), (stored - expected, "also has")):
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise ValueError(f"it {what} {group}/{min(names)}{others}")


def one_line(error: BaseException) -> str:
    """Returns an error's message on one line, without the name of a TensorFlow operation."""
    return textwrap.shorten(str(error).rpartition("}} ")[2], 200)
