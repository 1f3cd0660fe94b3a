"""The checkpoints of a run: a file of arrays for each, and one manifest.

step-4000.safetensors  weights, optimizer and random states after 4,000 updates
average.safetensors    the mean of the weights of several checkpoints: the result of the run
manifest.json          the SHA-256 of each file, and the dev metrics of each validated step

A file is renamed to its final name once it is whole, synced, and listed in the manifest: a killed
process leaves the checkpoints before it. A file that differs from its digest is damaged, and the
newest whole one is taken.

Regular checkpoints are written at fixed intervals and at the end. Any other was written because
the run was stopped, and is dropped once a regular one follows: stopping a run changes neither
which checkpoints are kept nor their average.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import safetensors.numpy
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError, writing
from keras_transformer.files import file_identity, sha256, sync, write_atomically
from keras_transformer.tasks import Task, TranslationTask

Variable = Any  # keras.Variable or tf.Variable, also a mirrored one
Arrays = Mapping[str, npt.NDArray[Any]]

AVERAGE = "average"
START = "step-0"  # weights that a run begins with, without an optimizer


@dataclasses.dataclass
class Checkpoints:
    """The checkpoints `step-N` in one folder, and `average`, the mean of several.

    Args:
        folder: where they are, made with the first one.
        training: of the run; says which are regular, and which are kept.
        task: has the metric by which checkpoints are ranked.
    """

    folder: pathlib.Path
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    task: Task = dataclasses.field(default_factory=TranslationTask)

    # Which there are

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints `step-N`, oldest first."""
        files = self.folder.glob("*.safetensors")
        matches = (re.fullmatch(r"step-(\d+)", path.stem) for path in files)
        return sorted(int(match[1]) for match in matches if match)

    def has_average(self) -> bool:
        """Whether the run's result exists; a later checkpoint drops it."""
        return self.path(AVERAGE).exists()

    def path(self, name: str) -> pathlib.Path:
        """Returns the file of a checkpoint."""
        return self.folder / f"{name}.safetensors"

    def newest(self, count: int) -> list[int]:
        """Returns the steps of the newest regular checkpoints that were trained, oldest first."""
        regular = filter(self.training.is_checkpoint_step, self.steps())
        return [step for step in regular if step][-count:]

    def best(self, count: int, steps: Sequence[int] | None = None) -> list[int]:
        """Returns the steps of the regular checkpoints with the best metric; newer wins a tie.

        One that was not validated, or whose value is not a number, is none of them. `steps` are
        those to choose from; None means all.
        """
        metrics, metric = self.dev_metrics(), self.task.metric
        ranked = [
            (metric.rank(value), step)
            for step in (self.steps() if steps is None else steps)
            if self.training.is_checkpoint_step(step)
            and not math.isnan(value := metrics.get(step, {}).get(metric.name, math.nan))
        ]
        return sorted(step for _, step in sorted(ranked, reverse=True)[:count])

    def is_at_end(self, step: int) -> bool:
        """Whether training ends after a step: it is the last one, or `stop_metric`, if the run has
        one, has not improved at the last `stop_patience` checkpoints (early stopping).
        """
        if step >= self.training.train_steps or self.training.stop_metric is None:
            return step >= self.training.train_steps
        metric = self.task.find_metric(self.training.stop_metric)
        best, waited = -math.inf, 0
        for other, metrics in self.dev_metrics().items():
            # Metrics of later steps are left by a run whose newest checkpoint was damaged, those of
            # other steps by the end of a run that was extended.
            if other <= step and self.training.is_checkpoint_step(other) and metric.name in metrics:
                value = metric.rank(metrics[metric.name])
                waited = 0 if value > best else waited + 1  # NaN is not better
                best = max(best, value)
        return waited >= self.training.stop_patience

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that `which` means.

        Args:
            which: "latest", "best" (by the metric), "average", a step, or "auto": the average, or
                the latest if there is none. "auto" skips damaged ones, with a line on stderr.

        Raises:
            InputError: there is no such checkpoint, or all are damaged.
        """
        names = [AVERAGE] * self.has_average() + [f"step-{n}" for n in reversed(self.steps())]
        if not names:
            raise InputError(f"no checkpoint in {self.folder} yet; train the run first")
        if which == "auto":
            return self._newest_whole(names)
        steps = {"latest": self.steps()[-1:], "best": self.best(1)}.get(which, [])
        name = f"step-{steps[0]}" if steps else which
        name = f"step-{name}" if name.isdecimal() else name
        if name not in names:
            raise InputError(
                f"no checkpoint {which!r} in {self.folder}; give auto, latest, best (by the dev "
                f"metric, if it was measured) or one of {', '.join(reversed(names))}"
            )
        return name

    def digest(self, name: str) -> str:
        """Returns the SHA-256 of a checkpoint's file."""
        return str(file_identity(self.path(name))["sha256"])

    def dev_metrics(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of the dev set by step, in the order of the steps."""
        metrics = self._manifest()["metrics"]
        return {int(step): metrics[step] for step in sorted(metrics, key=int)}

    # Writing

    def save(
        self,
        model: keras.Model,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        extra: Mapping[str, Variable] | None = None,
    ) -> None:
        """Writes checkpoint `step-<step>` and drops the average, then those that are not kept.

        Args:
            model: gives the weights, the states of dropout and the optimizer.
            step, metrics: updates so far, and the metrics of the dev set then.
            extra: other variables by name.

        Raises:
            InputError: a weight is not finite, or the disk full; the earlier checkpoints stay.
        """
        variables = _training_variables(model, extra)
        self._write(f"step-{step}", variables, step, metrics)
        # Later checkpoints are damaged ones, and are rewritten.
        steps = [other for other in self.steps() if other <= step]
        regular = [other for other in steps if self.training.is_checkpoint_step(other)]
        newest = max(self.training.keep_checkpoints, self.training.average_last)
        best = self.best(self.training.average_best or 1, regular)
        keep = {step, *regular[-newest:], *best}
        for other in steps:
            if other not in keep:
                self.drop(f"step-{other}")

    def save_weights(self, model: keras.Model, name: str) -> None:
        """Writes the model's weights, and nothing else, as a checkpoint."""
        weights = by_name(model, model.weights)
        self._write(name, {f"weights/{path}": weight for path, weight in weights.items()})

    def drop(self, name: str) -> None:
        """Removes a checkpoint if it exists."""
        self.path(name).unlink(missing_ok=True)

    def _write(
        self,
        name: str,
        variables: Mapping[str, Variable],
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        with writing(f"checkpoint {name} to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / "unfinished"  # a killed process leaves it until the next one
            try:
                _write_arrays(path, variables, step)
                sync(path)
                for replaced in (AVERAGE, name):  # no average is older than the newest checkpoint
                    self.drop(replaced)
                self.write_metrics(step, metrics, **{name: sha256([path])})
                os.replace(path, self.path(name))
            finally:
                path.unlink(missing_ok=True)

    # Reading

    def restore(self, model: keras.Model, which: str = "auto") -> None:
        """Gives a model the weights of a checkpoint.

        Args:
            model: built.
            which: as in `find`.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it is another model's.
        """
        name = self.find(which)
        assign(by_name(model, model.weights), _weights(self._load(name)), self.path(name))

    def resume(
        self,
        model: keras.Model,
        *,
        extra: Mapping[str, Variable] | None = None,
    ) -> int:
        """Sets all that `save` was given to the newest checkpoint that is not damaged.

        Returns:
            The checkpoint's step; 0 if there is none. A line on stderr names damaged ones.

        Raises:
            InputError: all checkpoints are damaged, or the newest is another model's.
        """
        names = [f"step-{step}" for step in reversed(self.steps())]
        if not names:
            return 0
        name = self._newest_whole(names)
        if name == START:
            self.restore(model, name)
        else:
            assign(_training_variables(model, extra), self._load(name), self.path(name))
        return int(name.removeprefix("step-"))

    def load_average(self, model: keras.Model, steps: Sequence[int]) -> None:
        """Sets the model's weights to the mean of those of the checkpoints (6.1)."""
        sums: dict[str, Any] = {}
        for step in steps:
            for path, array in _weights(self._load(f"step-{step}")).items():
                sums[path] = sums.get(path, 0) + array.astype(np.float64)
        means = {path: total / len(steps) for path, total in sums.items()}
        assign(by_name(model, model.weights), means, self.path(f"step-{steps[-1]}"))

    def _load(self, name: str) -> Arrays:
        """Returns the arrays of a checkpoint."""
        path = self.path(name)
        if not path.exists():
            raise InputError(f"no checkpoint {name} in {self.folder}; name another one")
        if not self._is_whole(name):
            raise InputError(f"{path} is damaged: its SHA-256 is not that of the manifest")
        return safetensors.numpy.load_file(path)

    def _is_whole(self, name: str) -> bool:
        digest = self.digest(name)
        return bool(self._manifest()["sha256"].get(name, digest) == digest)

    def _newest_whole(self, names: Sequence[str]) -> str:
        """Returns the first of some checkpoints that is not damaged."""
        for name in names:
            if self._is_whole(name):
                return name
            print(f"{self.path(name)} is damaged; trying an older one.", file=sys.stderr)
        raise InputError(f"no checkpoint in {self.folder} is whole; restore one from a copy")

    def _manifest(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "manifest.json"
        if not path.exists():  # files without a digest are taken to be whole
            return {"sha256": {}, "metrics": {}}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return {name: dict(values[name]) for name in ("sha256", "metrics")}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is damaged ({type(error).__name__}: {error})") from error

    def write_metrics(
        self, step: int | None, metrics: Mapping[str, float] | None, **digests: str
    ) -> None:
        """Adds dev metrics at a step, if there are any, and digests of files to the manifest."""
        values = self._manifest()
        kept = {name: x for name, x in values["sha256"].items() if self.path(name).exists()}
        values["sha256"] = kept | digests
        if metrics:
            values["metrics"][str(step)] = {name: float(x) for name, x in metrics.items()}
        write_atomically(self.folder / "manifest.json", json.dumps(values, indent=1) + "\n")


# The variables, by name. They are the same for any number of devices.


def by_name(model: keras.Model, weights: Sequence[keras.Variable]) -> dict[str, Variable]:
    """Returns some of a model's weights by their paths within it, the same in any process.

    Raises:
        InputError: two weights have the same path.
    """
    # The path begins with the model's own name, which Keras numbers by process.
    names = [str(weight.path).removeprefix(f"{model.name}/") for weight in weights]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two weights have the name {twice.pop()}; name the model's layers anew")
    return dict(zip(names, weights, strict=True))


def assign(variables: Mapping[str, Variable], arrays: Arrays, path: pathlib.Path) -> None:
    """Sets variables to the arrays of the same names, which are those of a file.

    Raises:
        InputError: names or shapes differ.
    """
    shapes = {name: tuple(value_of(variable).shape) for name, variable in variables.items()}
    differing = [
        name
        for name in sorted(shapes.keys() | arrays.keys())
        if name not in arrays or shapes.get(name) != arrays[name].shape
    ]
    if differing:
        raise InputError(
            f"{path} is of another model: {len(differing)} variables differ, the first is "
            f"{differing[0]}; give the run directory that it was made in"
        )
    for name, variable in variables.items():
        tensorflow_variable = value_of(variable)
        tensorflow_variable.assign(tf.cast(arrays[name], tensorflow_variable.dtype))


def value_of(variable: Variable) -> Variable:
    """Returns TensorFlow's variable of a Keras one; another as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _training_variables(
    model: keras.Model, extra: Mapping[str, Variable] | None
) -> dict[str, Variable]:
    """Returns the variables that training resumes from.

    Random states and those of the optimizer have numbers, in Keras's order as in its own files: a
    checkpoint is that of one optimizer and one order of the model's layers.
    """
    is_weight = {id(weight) for weight in model.weights}
    states = [variable for variable in model.variables if id(variable) not in is_weight]
    groups: dict[str, Mapping[str, Variable]] = {
        "weights": by_name(model, model.weights),
        "states": {str(number): state for number, state in enumerate(states)},
        "optimizer": {str(number): x for number, x in enumerate(model.optimizer.variables)},
        "extra": extra or {},
    }
    return {f"{group}/{name}": x for group, named in groups.items() for name, x in named.items()}


def _write_arrays(path: pathlib.Path, variables: Mapping[str, Variable], step: int | None) -> None:
    """Writes a safetensors file of variables.

    Raises:
        InputError: a weight is not finite after `step`; None means that it is not checked.
        OSError: the file cannot be written.
    """
    arrays = {name: np.asarray(value_of(variable).numpy()) for name, variable in variables.items()}
    for name, array in arrays.items():
        if step is not None and name.startswith("weights/") and not np.isfinite(array).all():
            raise InputError(
                f"{name} is not finite after step {step}, so no checkpoint was written; train "
                "another run with a lower learning_rate or clip_norm"
            )
    path.write_bytes(safetensors.numpy.save(arrays))  # `save_file` lets nobody else read it


def _weights(arrays: Arrays) -> Arrays:
    """Returns the weights in a checkpoint by path."""
    group = "weights/"
    return {name.removeprefix(group): x for name, x in arrays.items() if name.startswith(group)}
