"""The checkpoints of a training run: which are kept, which one is meant, and their average.

A checkpoint holds the weights by name, the state of every dropout's random numbers, the optimizer,
and what else training goes on from. A crash, a full disk or a power loss while one is written
leaves the earlier ones as they are; see `checkpoint_files.py`.

Regular checkpoints come after every so many steps and at the end. Any other was written because
the run was stopped: training goes on from it, and it is dropped once a regular one follows, so
that stopping a run changes neither which checkpoints are kept nor their average.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training.checkpoint_files import (
    AVERAGE,
    CheckpointFiles,
    Contents,
    DamagedError,
    Variable,
    by_name,
    one_line,
    training_contents,
)
from keras_transformer.training.checkpoint_metrics import CheckpointMetrics


class Checkpoints:
    """The checkpoints `step-N` in one folder, and `average`, the mean of several.

    Args:
        folder: where they are; made when the first one is written.
        keep: how many of the newest to keep.
        keep_best: how many of those with the best dev BLEU to keep beside them.
        every: steps between two regular checkpoints.
        end: the last step of the run, whose checkpoint is a regular one too.

    Attributes:
        scores: the metrics at each checkpoint.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        keep: int = 20,
        *,
        keep_best: int = 0,
        every: int = 1,
        end: int | None = None,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.keep_best = keep_best
        self.every = every
        self.end = end
        self.metrics = CheckpointMetrics(folder / "checkpoint_metrics.json")
        self._files = CheckpointFiles(folder)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first."""
        return self._files.steps()

    def has_average(self) -> bool:
        """Whether the run's result is there; a later checkpoint drops it."""
        return self._files.exists(AVERAGE)

    def is_regular(self, step: int) -> bool:
        """Whether a run that nothing disturbs writes a checkpoint at this step."""
        return step % self.every == 0 or step == self.end

    def newest(self, count: int) -> list[int]:
        """Returns the steps of the newest regular checkpoints, oldest first."""
        return [step for step in self.steps() if self.is_regular(step)][-count:]

    def best(self, count: int) -> list[int]:
        """Returns the steps of the regular checkpoints with the best dev BLEU, oldest first.

        Among equals the newer one is better; those without a BLEU are none of the best.
        """
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
        """Writes checkpoint `step-<step>`, then drops those that are not kept any longer.

        The average of earlier ones, which no longer is the run's result, is dropped as well.

        Args:
            model: gives the weights, the random numbers of dropout and the optimizer.
            step: batches trained on.
            metrics: of the model at this step, for `best` and for stopping early.
            average_weights: moving averages of the trainable weights, by the weights' paths within
                the model.
            extra: other variables that training goes on from, by name.

        Raises:
            InputError: a weight is not finite, or the disk does not take the checkpoint; the
                earlier ones stay as they are.
        """
        contents = training_contents(model, average_weights, extra)
        self._check_finite(contents, step)
        self._write(f"step-{step}", contents, step, metrics)
        self._tidy(step)

    def save_average(self, model: keras.Model) -> None:
        """Writes the model's weights as checkpoint `average`."""
        self._write(AVERAGE, {"weights": by_name(model, model.weights)})

    def drop_average(self) -> None:
        """Removes checkpoint `average` where there is one."""
        self._files.drop(AVERAGE)

    def restore(self, model: keras.Model, name: str) -> None:
        """Reads the weights of checkpoint `name`, or its moving averages of them if it has such.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it is another model's.
        """
        contents = {"weights": by_name(model, model.weights)}
        if "average_weights" in self._files.count(name):
            contents = {
                "weights": by_name(model, model.non_trainable_weights),
                "average_weights": by_name(model, model.trainable_weights),
            }
        self._files.read(name, contents, len(model.weights))

    def resume(
        self,
        model: keras.Model,
        *,
        average_weights: Mapping[str, Variable] | None = None,
        extra: Mapping[str, Variable] | None = None,
        say: Callable[[str], None] = print,
    ) -> int:
        """Sets all that `save` was given to the newest checkpoint that is whole.

        Args:
            model: as in `save`.
            average_weights: as in `save`.
            extra: as in `save`.
            say: takes a line where damaged checkpoints are passed over.

        Returns:
            The checkpoint's step; 0 where there is none yet.

        Raises:
            InputError: all checkpoints are damaged, or the newest is another model's.
        """
        self.metrics.read()  # a damaged file is reported now, not after an interval
        contents = training_contents(model, average_weights, extra)
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                self._files.read(f"step-{step}", contents, len(model.weights))
            except DamagedError as error:
                damaged.append(error.what)
                continue
            if damaged:
                say(f"{'; '.join(damaged)}; going on from step {step}.")
            return step
        if damaged:
            raise InputError(
                f"no checkpoint in {self.folder} is whole: {'; '.join(damaged)}; restore one from "
                "a copy, or delete them to start anew"
            )
        return 0

    def find(self, which: str) -> str:
        """Returns the name of the checkpoint that a person means by `which`.

        Args:
            which: "latest", "best" (by dev BLEU), "average", a step, or "auto": the average
                where there is one, else the latest.

        Raises:
            InputError: it names no kind of checkpoint, or there is none yet.
        """
        if which == AVERAGE or (which == "auto" and self.has_average()):
            return AVERAGE
        steps = self.best(1) if which == "best" else self.steps()
        if which in ("auto", "latest", "best") and steps:
            return f"step-{steps[-1]}"
        step = which.removeprefix("step-")
        if step.isdecimal():
            return f"step-{step}"
        known = ": give auto, latest, best"
        if which == "best":
            known = ", as none has a dev BLEU: give auto, latest"
        raise InputError(
            f"no checkpoint {which!r} in {self.folder}{known}, average or a step; "
            f"there is {self._files.listing()}"
        )

    def average(self, model: keras.Model, steps: Sequence[int]) -> None:
        """Sets the model's weights to the mean of those of the checkpoints (6.1).

        Raises:
            InputError: no steps are given, or as in `restore`.
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

    def _best_of(self, steps: Sequence[int], count: int) -> list[int]:
        scores = self.metrics.read()
        known = [
            (scores[step]["bleu"], step)
            for step in steps
            if self.is_regular(step) and "bleu" in scores.get(step, {})
        ]
        return sorted(step for _, step in sorted(known, reverse=True)[:count])

    def _check_finite(self, contents: Contents, step: int) -> None:
        """Raises `InputError` for weights that no later step can mend."""
        for group in ("weights", "average_weights"):
            for name, weight in contents.get(group, {}).items():
                if weight.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(weight)):
                    raise InputError(
                        f"weight {name} is not finite after step {step}, so no checkpoint was "
                        f"written; there is {self._files.listing()}; train another run with a "
                        "lower learning_rate or clip_norm"
                    )

    def _write(
        self,
        name: str,
        contents: Contents,
        step: int = 0,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if metrics:
                self.metrics.write(step, metrics)
            self._files.write(name, contents)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"cannot write checkpoint {name} to {self.folder} ({one_line(error)}); "
                f"free some space and run again; there is {self._files.listing()}"
            ) from error

    def _tidy(self, step: int) -> None:
        """Drops what is not kept any longer once checkpoint `step` is written.

        Later ones are left alone: if there are any, they could not be read when the run went on
        from an earlier one, and will be written again.
        """
        steps = [other for other in self.steps() if other <= step]
        regular = [other for other in steps if self.is_regular(other)]
        kept = {step, *regular[-self.keep :], *self._best_of(regular, self.keep_best)}
        for name in [AVERAGE, *(f"step-{other}" for other in steps if other not in kept)]:
            self._files.drop(name)
        self._files.sweep()
