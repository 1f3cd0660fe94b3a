"""The checkpoints of a training run: written whole or not at all, found, restored and averaged.

A checkpoint `name` is `name.data-00000-of-00001` and `name.index`. Both are written to a temporary
folder, synced to disk and moved into place; the index, which completes the checkpoint, comes last.

Regular checkpoints are written at fixed intervals and at the end. Any other was written because
the run was stopped, and is dropped once a regular one follows: stopping a run changes neither
which checkpoints are kept nor their average.
"""

import collections
import contextlib
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError, one_line
from keras_transformer.files import sha256, sync, temporary_folder, write_atomically
from keras_transformer.tasks import Metric

Variable = Any  # keras.Variable or tf.Variable, also a mirrored one
# TensorFlow's variables, or what a strategy has made of them, by group and name. The files are the
# same for any number of devices.
Contents = Mapping[str, Mapping[str, Variable]]

AVERAGE = "average"
START = "step-0"  # weights that a run begins with


class DamagedError(InputError):
    """A checkpoint exists and cannot be read.

    Attributes:
        what: which one, and what is wrong with it.
    """

    def __init__(self, what: str, others: str) -> None:
        super().__init__(f"{what}; use another one, there is {others}")
        self.what = what


class Checkpoints:
    """The checkpoints `step-N` in one folder, and `average`, the mean of several.

    Args:
        folder: where they are, made with the first one.
        keep: how many of the newest to keep.
        keep_best: how many of those with the best `metric` to keep beside them.
        every: steps between two regular checkpoints.
        end: the last step of the run, whose checkpoint is a regular one too.
        metric: the task's, by which checkpoints are ranked; without one none is the best.

    Attributes:
        metrics: the metrics of the dev set at each checkpoint.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        keep: int = 20,
        *,
        keep_best: int = 0,
        every: int = 1,
        end: int | None = None,
        metric: Metric | None = None,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.keep_best = keep_best
        self.every = every
        self.end = end
        self.metric = metric
        self.metrics = CheckpointMetrics(folder / "checkpoint_metrics.json")

    # Which there are

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints `step-N`, oldest first."""
        return sorted(
            int(match.group(1))
            for path in self.folder.glob("step-*.index")
            if (match := re.fullmatch(r"step-(\d+)", path.stem))
        )

    def has_average(self) -> bool:
        """Whether the run's result exists; a later checkpoint drops it."""
        return self._exists(AVERAGE)

    def is_regular(self, step: int) -> bool:
        """Whether an uninterrupted run writes a checkpoint at this step."""
        return step % self.every == 0 or step == self.end

    def to_average(self, last: int, best: int | None = None) -> list[int]:
        """Returns the steps whose mean is the run's result: the newest, or the best if asked."""
        return self.newest(last) if best is None else self.best(best)

    def newest(self, count: int) -> list[int]:
        """Returns the steps of the newest regular checkpoints that were trained, oldest first."""
        return [step for step in self.steps() if step and self.is_regular(step)][-count:]

    def best(self, count: int, steps: Sequence[int] | None = None) -> list[int]:
        """Returns the steps of the regular checkpoints with the best `metric`; newer wins a tie.

        A checkpoint that was not validated, or whose value is not a number, is none of them.

        Args:
            count: how many.
            steps: to choose from; None means all.
        """
        if self.metric is None:
            return []
        metrics, name = self.metrics.read(), self.metric.name
        known = [
            (self.metric.rank(metrics[step][name]), step)
            for step in (self.steps() if steps is None else steps)
            if self.is_regular(step) and not math.isnan(metrics.get(step, {}).get(name, math.nan))
        ]
        return sorted(step for _, step in sorted(known, reverse=True)[:count])

    def is_stalled(self, step: int, metric: Metric, patience: int) -> bool:
        """Whether a metric has not improved at the last `patience` checkpoints (early stopping)."""
        best, waited = -float("inf"), 0
        for other, metrics in self.metrics.read().items():
            # Metrics of later steps are left by a run whose newest checkpoint was damaged, those of
            # other steps by the end of a run that was extended.
            if other <= step and self.is_regular(other) and metric.name in metrics:
                value = metric.rank(metrics[metric.name])
                waited = 0 if value > best else waited + 1  # NaN is not better
                best = max(best, value)
        return waited >= patience

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that `which` means.

        Args:
            which: "latest", "best" (by `metric`), "average", a step, or "auto": the average, or
                the latest if there is none. "auto" skips damaged ones, and says so on stderr.

        Raises:
            InputError: the name is unknown, there is no checkpoint, or all are damaged.
        """
        if which == AVERAGE:
            return AVERAGE
        candidates = [AVERAGE] * self.has_average() + [f"step-{n}" for n in reversed(self.steps())]
        if which == "auto" and candidates:
            name, damaged = self._first_whole(candidates, self._check)
            if damaged:
                print(f"{damaged}; using {name} instead.", file=sys.stderr)
            return name
        steps = self.best(1) if which == "best" else self.steps()
        if which in ("latest", "best") and steps:
            return f"step-{steps[-1]}"
        step = which.removeprefix("step-")
        if step.isdecimal():
            return f"step-{step}"
        if not candidates:
            raise InputError(f"no checkpoint in {self.folder} yet; train the run first")
        known = ": give auto, latest, best"
        if which == "best":
            label = "metric" if self.metric is None else self.metric.label
            known = f", since none has a dev {label}: give auto, latest"
        raise InputError(
            f"no checkpoint {which!r} in {self.folder}{known}, average or a step; "
            f"there is {self.listing()}"
        )

    def digest(self, name: str) -> str:
        """Returns the SHA-256 of a checkpoint's files."""
        return sha256(sorted(self.folder.glob(f"{name}.*")))

    def listing(self, without: str | None = None) -> str:
        """Returns the names of all checkpoints, or of all but one, for messages."""
        names = [f"step-{step}" for step in self.steps()] + [AVERAGE] * self.has_average()
        return ", ".join(name for name in names if name != without) or "none"

    # Writing

    def save(
        self,
        model: keras.Model,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        average_weights: Mapping[str, Variable] | None = None,
        extra: Mapping[str, Variable] | None = None,
    ) -> None:
        """Writes checkpoint `step-<step>` and drops the average, then those that are not kept.

        Args:
            model: gives the weights, the states of dropout and the optimizer.
            step, metrics: batches trained on, and metrics of the model then. They are written
                first, and are the same whenever the step is reached: a crash in between is
                harmless.
            average_weights, extra: moving averages by the weight's path; other variables by name.

        Raises:
            InputError: a weight is not finite, or the disk full; the earlier checkpoints stay.
        """
        contents = training_contents(model, average_weights, extra)
        for group in ("weights", "average_weights"):
            for name, weight in contents.get(group, {}).items():
                if weight.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(weight)):
                    raise InputError(
                        f"weight {name} is not finite after step {step}, so no checkpoint was "
                        f"written; there is {self.listing()}; train another run with a lower "
                        "learning_rate or clip_norm"
                    )
        self._write(f"step-{step}", contents, (step, metrics) if metrics else None)
        # Later checkpoints are damaged ones, and are rewritten.
        steps = [other for other in self.steps() if other <= step]
        regular = [other for other in steps if self.is_regular(other)]
        keep = {step, *regular[-self.keep :], *self.best(self.keep_best, regular)}
        for other in steps:
            if other not in keep:
                self.drop(f"step-{other}")
        for path in self.folder.glob("step-*.data-*"):  # left by a process that was killed
            if not self._exists(path.stem):
                path.unlink(missing_ok=True)

    def save_weights(self, model: keras.Model, name: str = AVERAGE) -> None:
        """Writes the model's weights, and nothing else, as a checkpoint."""
        self._write(name, {"weights": by_name(model, model.weights)})

    def drop(self, name: str) -> None:
        """Removes a checkpoint if it exists."""
        for path in sorted(self.folder.glob(f"{name}.*"), reverse=True):  # "index" before "data"
            path.unlink(missing_ok=True)

    # Reading

    def restore(self, model: keras.Model, name: str) -> None:
        """Reads the weights of checkpoint `name`, or their moving averages if it has them.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it is another model's.
        """
        weights = by_name(model, model.weights)
        names = self._names(name)
        averaged = names.get("average_weights", set())  # all but frozen ones
        contents: dict[str, dict[str, Variable]] = collections.defaultdict(dict)
        for path, weight in weights.items():
            contents["average_weights" if path in averaged else "weights"][path] = weight
        self._read(name, contents, weights)

    def resume(
        self,
        model: keras.Model,
        *,
        average_weights: Mapping[str, Variable] | None = None,
        extra: Mapping[str, Variable] | None = None,
        say: Callable[[str], None] = print,
    ) -> int:
        """Sets all that `save` was given to the newest checkpoint that is not damaged.

        Returns:
            The checkpoint's step; 0 if there is none. `say` takes a line about skipped ones.

        Raises:
            InputError: all checkpoints are damaged, or the newest is another model's.
        """
        self.metrics.read()  # a damaged file is reported now, not after an interval
        contents = training_contents(model, average_weights, extra)
        names = [f"step-{step}" for step in reversed(self.steps())]
        if not names:
            return 0

        def read(name: str) -> None:
            parts = [contents]
            if "optimizer" not in self._names(name):
                # Weights only, which the run starts from: they are those of the moving average
                # too.
                groups = contents.keys() & {"weights", "average_weights"}
                parts = [{"weights": contents[group]} for group in groups]
            for part in parts:
                self._read(name, part, contents["weights"])

        name, damaged = self._first_whole(names, read)
        step = int(name.removeprefix("step-"))
        if damaged:
            say(f"{damaged}; resuming from step {step}.")
        return step

    def average(self, model: keras.Model, steps: Sequence[int]) -> None:
        """Sets the model's weights to the mean of those of the checkpoints (6.1)."""
        if not steps:
            raise InputError(f"no checkpoints to average in {self.folder}; train the run first")
        sums = [np.zeros(weight.shape, np.float64) for weight in model.weights]
        for step in steps:
            self.restore(model, f"step-{step}")
            for total, weight in zip(sums, model.weights, strict=True):
                total += keras.ops.convert_to_numpy(weight)
        for total, weight in zip(sums, model.weights, strict=True):
            weight.assign(total / len(steps))

    def _exists(self, name: str) -> bool:
        return (self.folder / f"{name}.index").exists()

    def _write(
        self, name: str, contents: Contents, metrics: tuple[int, Mapping[str, float]] | None = None
    ) -> None:
        """Writes a checkpoint, replacing any of that name and an average."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if metrics:
                self.metrics.write(*metrics)
            with temporary_folder(self.folder) as aside:  # another process may write an average
                tf.train.Checkpoint(**contents).write(str(aside / name))
                paths = sorted(aside.glob(f"{name}.*"))  # "data" before "index"
                for path in paths:
                    sync(path)
                for replaced in (AVERAGE, name):  # no average is older than the newest checkpoint
                    self.drop(replaced)
                for path in paths:
                    path.replace(self.folder / path.name)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"cannot write checkpoint {name} to {self.folder} ({one_line(error)}); free some "
                f"space, or make it writable, and run again; there is {self.listing()}"
            ) from error

    def _read(self, name: str, contents: Contents, weights: Iterable[str]) -> None:
        """Sets variables to what a checkpoint holds under their names.

        Args:
            name: of the checkpoint.
            contents: the variables. The checkpoint may hold other groups, but in each of these
                no other variables.
            weights: names of all variables that it must have in its group "weights".

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it holds other variables.
        """
        stored = self._names(name)
        expected = {group: set(variables) for group, variables in contents.items()}
        expected["weights"] = set(weights)
        with self._reading(name):
            for group, names in expected.items():
                known = stored.get(group, set())
                for differing, what in ((names - known, "lacks"), (known - names, "also has")):
                    if differing:
                        others = f" and {len(differing) - 1} others" * (len(differing) > 1)
                        raise ValueError(f"it {what} {group}/{min(differing)}{others}")
            status = tf.train.Checkpoint(**contents).read(str(self.folder / name))
            status.assert_existing_objects_matched().expect_partial()

    def _names(self, name: str) -> dict[str, set[str]]:
        """Returns the names of a checkpoint's variables, by group; raises as `restore` does."""
        if not self._exists(name):
            raise InputError(f"no checkpoint {name} in {self.folder}; there is {self.listing()}")
        with self._reading(name):
            stored = tf.train.list_variables(str(self.folder / name))
        names: dict[str, set[str]] = collections.defaultdict(set)
        for key, _ in stored:
            group, _, rest = key.partition("/")
            variable = rest.partition("/")[0]
            names[group].add(re.sub(r"\.(.)", lambda match: match[1].replace("S", "/"), variable))
        return names

    def _check(self, name: str) -> None:
        """Reads a checkpoint from beginning to end; raises as `restore` does."""
        self._names(name)
        with self._reading(name):
            reader = tf.train.load_checkpoint(str(self.folder / name))
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)  # compares checksums

    def _first_whole(self, names: Sequence[str], read: Callable[[str], None]) -> tuple[str, str]:
        """Returns the first of some checkpoints for which `read` does not raise `DamagedError`.

        The second value says what is wrong with those before it, "" if nothing is. `InputError` is
        raised if all are damaged.
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

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
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


class CheckpointMetrics:
    """The metrics of the dev set at the checkpoints of a run, by step, in a JSON file.

    Args:
        path: the file; made when the first metrics are written.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def read(self) -> dict[int, dict[str, float]]:
        """Returns the metrics by step, in the order of the steps.

        Raises:
            InputError: the file cannot be read.
        """
        if not self.path.exists():
            return {}
        try:
            by_step = json.loads(self.path.read_text(encoding="utf-8"))
            return {
                int(step): {name: float(value) for name, value in metrics.items()}
                for step, metrics in sorted(by_step.items(), key=lambda entry: int(entry[0]))
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.path} is damaged ({type(error).__name__}: {error}); restore it from a "
                "copy, or delete it to continue without the metrics of earlier checkpoints"
            ) from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics at a step, or replaces them; raises `OSError`."""
        by_step = self.read() | {step: {name: float(value) for name, value in metrics.items()}}
        write_atomically(self.path, json.dumps(by_step, indent=1) + "\n")


# The contents: weights, random states and the optimizer's variables, each by a name. A name follows
# from the path of a weight or layer within the model, never from the order in which Keras keeps
# variables: that order may change with a version of Keras.


def training_contents(
    model: keras.Model,
    average_weights: Mapping[str, Variable] | None,
    extra: Mapping[str, Variable] | None,
) -> dict[str, dict[str, Variable]]:
    """Returns the variables that training resumes from, by group and name."""
    contents = {
        "weights": by_name(model, model.weights),
        "seeds": _seed_states(model),
        "optimizer": _optimizer_state(model),
    }
    for group, variables in (("average_weights", average_weights), ("extra", extra)):
        if variables:
            contents[group] = {name: value_of(variable) for name, variable in variables.items()}
    return contents


def by_name(model: keras.Model, weights: Sequence[keras.Variable]) -> dict[str, Variable]:
    """Returns some of a model's weights under names that are the same in any process."""
    return _unique((_path_within(model, weight), weight) for weight in weights)


def _path_within(model: keras.Model, weight: keras.Variable) -> str:
    # The path begins with the model's own name, which Keras numbers by process.
    return str(weight.path).removeprefix(f"{model.name}/")


def _seed_states(model: keras.Model) -> dict[str, Variable]:
    """Returns the states of random number generators by the names of the layers that have them."""
    states: dict[int, tuple[str, Variable]] = {}

    def visit(layer: keras.Layer, prefix: str) -> None:
        for attribute, value in vars(layer).items():
            if isinstance(value, keras.random.SeedGenerator):
                entry = (f"{prefix}{attribute}", value.state)
                # A layer that several share has the first name in alphabetical order.
                states[id(value.state)] = min(entry, states.get(id(value.state), entry))
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            visit(inner, f"{prefix}{inner.name}/")

    visit(model, "")
    known = {id(weight) for weight in model.weights} | states.keys()
    for variable in model.variables:
        if id(variable) not in known:
            raise InputError(
                f"{variable.path} cannot be saved: it is neither a weight nor the state of a "
                "SeedGenerator that is an attribute of a layer; make it one of them"
            )
    return _unique(states.values())


def _optimizer_state(model: keras.Model) -> dict[str, Variable]:
    """Returns the optimizer's variables: moments as <kind>/<weight's path>, others by name."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of LossScaleOptimizer
    paths = [_path_within(model, weight) for weight in inner._trainable_variables]
    # The moments of one kind are a list in the order of the weights; their own names, such as
    # Adafactor's, may be ambiguous.
    moments = {
        id(variable): f"{attribute.strip('_')}/{path}"
        for attribute, values in vars(inner).items()
        if attribute not in ("_variables", "_trainable_variables")
        and isinstance(values, list)
        and len(values) == len(paths)
        for path, variable in zip(paths, values, strict=True)
        if isinstance(variable, keras.Variable)
    }
    inner_ids = {id(variable) for variable in inner.variables} if inner is not optimizer else set()

    def name_of(variable: keras.Variable) -> str:
        prefix = "inner/" if id(variable) in inner_ids else ""
        return moments.get(id(variable), f"{prefix}{variable.name}")

    return _unique((name_of(variable), variable) for variable in optimizer.variables)


def _unique(named: Iterable[tuple[str, Variable]]) -> dict[str, Variable]:
    """Returns variables by name; `InputError` where two have the same one."""
    variables: dict[str, Variable] = {}
    for name, variable in named:
        if name in variables:
            raise InputError(
                f"two variables have the name {name}, so a checkpoint cannot tell them apart; "
                "give the model's layers other names"
            )
        variables[name] = value_of(variable)
    return variables


def value_of(variable: Variable) -> Variable:
    """Returns TensorFlow's variable of a Keras one; another as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable
