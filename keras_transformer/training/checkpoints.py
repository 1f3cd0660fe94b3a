"""The checkpoints of a training run: which are kept, which one is meant, and their average.

`checkpoint_contents.py` says what one holds, `checkpoint_files.py` how it is written.

Regular checkpoints are written at fixed intervals and at the end. Any other was written because
the run was stopped, and is dropped once a regular one follows: stopping a run changes neither
which checkpoints are kept nor their average.
"""

import collections
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.tasks import Metric
from keras_transformer.training.checkpoint_contents import (
    Contents,
    Variable,
    by_name,
    first_not_finite,
    training_contents,
)
from keras_transformer.training.checkpoint_files import AVERAGE, CheckpointFiles, one_line
from keras_transformer.training.checkpoint_metrics import CheckpointMetrics


class Checkpoints:
    """The checkpoints `step-N` in one folder, and `average`, the mean of several.

    Args:
        folder: where they are, made with the first one.
        keep: how many of the newest to keep.
        keep_best: how many of those with the best `metric` to keep beside them.
        every: steps between two regular checkpoints.
        end: the last step of the run, whose checkpoint is a regular one too.
        metric: the task's, by which checkpoints are ranked; without one none is the best.
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
        self._files = CheckpointFiles(folder)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first."""
        return self._files.steps()

    def has_average(self) -> bool:
        """Whether the run's result is there; a later checkpoint drops it."""
        return self._files.exists(AVERAGE)

    def is_regular(self, step: int) -> bool:
        """Whether an uninterrupted run writes a checkpoint at this step."""
        return step % self.every == 0 or step == self.end

    def newest(self, count: int) -> list[int]:
        """Returns the steps of the newest regular checkpoints that were trained, oldest first."""
        return [step for step in self.steps() if step and self.is_regular(step)][-count:]

    def best(self, count: int) -> list[int]:
        """Returns the steps of the regular checkpoints with the best `metric`; newer wins a tie."""
        return self._best_of(self.steps(), count)

    def to_average(self, last: int, best: int | None = None) -> list[int]:
        """Returns the steps whose mean is the run's result: the newest, or the best if asked."""
        return self.newest(last) if best is None else self.best(best)

    def save(
        self,
        model: keras.Model,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        average_weights: Mapping[str, Variable] | None = None,
        extra: Mapping[str, Variable] | None = None,
    ) -> None:
        """Writes checkpoint `step-<step>`, then drops the average and those that are not kept.

        Args:
            model: gives the weights, the states of dropout and the optimizer.
            step, metrics: batches trained on, and metrics of the model then.
            average_weights, extra: moving averages by the weight's path; other variables by name.

        Raises:
            InputError: a weight is not finite, or the disk full; the earlier checkpoints stay.
        """
        contents = training_contents(model, average_weights, extra)
        if name := first_not_finite(contents):
            raise InputError(
                f"weight {name} is not finite after step {step}, so no checkpoint was written; "
                f"there is {self._files.listing()}; train another run with a lower learning_rate "
                "or clip_norm"
            )
        self._write(f"step-{step}", contents, (step, metrics) if metrics else None)
        self._tidy(step)

    def save_weights(self, model: keras.Model, name: str = AVERAGE) -> None:
        """Writes the model's weights, and nothing else, as a checkpoint."""
        self._write(name, {"weights": by_name(model, model.weights)})

    def drop(self, name: str) -> None:
        """Removes a checkpoint where there is one."""
        self._files.drop(name)

    def restore(self, model: keras.Model, name: str) -> None:
        """Reads the weights of checkpoint `name`, or their moving averages where it has them.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it is another model's.
        """
        weights = by_name(model, model.weights)
        averaged = self._files.names(name).get("average_weights", set())  # all but frozen ones
        contents: dict[str, dict[str, Variable]] = collections.defaultdict(dict)
        for path, weight in weights.items():
            contents["average_weights" if path in averaged else "weights"][path] = weight
        self._files.read(name, contents, weights)

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
            The checkpoint's step; 0 where there is none. `say` takes a line about any skipped.

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
            if "optimizer" not in self._files.names(name):  # what the run starts from
                groups = contents.keys() & {"weights", "average_weights"}
                parts = [{"weights": contents[group]} for group in groups]
            for part in parts:
                self._files.read(name, part, contents["weights"])

        name, damaged = self._files.first_whole(names, read)
        step = int(name.removeprefix("step-"))
        if damaged:
            say(f"{damaged}; going on from step {step}.")
        return step

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that a person means by `which`.

        Args:
            which: "latest", "best" (by `metric`), "average", a step, or "auto": the average, or
                the latest where there is none. "auto" skips damaged ones, and says so on stderr.

        Raises:
            InputError: it is no such name, there is no checkpoint, or all are damaged.
        """
        if which == AVERAGE:
            return AVERAGE
        candidates = [AVERAGE] * self.has_average() + [f"step-{n}" for n in reversed(self.steps())]
        if which == "auto" and candidates:
            name, damaged = self._files.first_whole(candidates, self._files.check)
            if damaged:
                print(f"{damaged}; taking {name} in its place.", file=sys.stderr)
            return name
        steps = self.best(1) if which == "best" else self.steps()
        if which in ("latest", "best") and steps:
            return f"step-{steps[-1]}"
        step = which.removeprefix("step-")
        if step.isdecimal():
            return f"step-{step}"
        known = ": give auto, latest, best"
        if which == "best":
            label = "metric" if self.metric is None else self.metric.label
            known = f", as none has a dev {label}: give auto, latest"
        raise InputError(
            f"no checkpoint {which!r} in {self.folder}{known}, average or a step; "
            f"there is {self._files.listing()}"
        )

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

    def _best_of(self, steps: Sequence[int], count: int) -> list[int]:
        if self.metric is None:
            return []
        metrics, name = self.metrics.read(), self.metric.name
        known = [
            (self.metric.rank(metrics[step][name]), step)
            for step in steps
            if self.is_regular(step) and name in metrics.get(step, {})
        ]
        return sorted(step for _, step in sorted(known, reverse=True)[:count])

    def _write(
        self, name: str, contents: Contents, metrics: tuple[int, Mapping[str, float]] | None = None
    ) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if metrics:
                self.metrics.write(*metrics)
            self._files.write(name, contents)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"cannot write checkpoint {name} to {self.folder} ({one_line(error)}); free some "
                f"space, or make it writable, and run again; there is {self._files.listing()}"
            ) from error

    def _tidy(self, step: int) -> None:
        """Drops what is not kept after checkpoint `step`; later ones, damaged, are rewritten."""
        steps = [other for other in self.steps() if other <= step]
        regular = [other for other in steps if self.is_regular(other)]
        kept = {step, *regular[-self.keep :], *self._best_of(regular, self.keep_best)}
        for name in [AVERAGE, *(f"step-{other}" for other in steps if other not in kept)]:
            self._files.drop(name)
        self._files.sweep()
