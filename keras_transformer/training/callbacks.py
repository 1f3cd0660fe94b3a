"""What happens between the batches of `model.fit`: speed, checkpoints, the record of the run."""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.training.checkpoints import Checkpoints


class Throughput(keras.callbacks.Callback):
    """Shows real target symbols a second, from the metric `TargetTokens` and the wall clock."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._seconds = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._seconds += time.perf_counter() - self._start
        self._replace(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._replace(logs)
        if logs is not None:
            logs.pop("val_target_tokens", None)

    def _replace(self, logs: dict[str, Any] | None) -> None:
        if logs and "target_tokens" in logs:
            logs["tokens_per_second"] = round(logs.pop("target_tokens") / self._seconds)


class SaveCheckpoint(keras.callbacks.Callback):
    """Writes a checkpoint at the end of each interval that `fit` calls an epoch.

    Args:
        checkpoints: where to.
        step_after: gives the number of batches seen by the end of an epoch. The optimizer's own
            count stays behind it where float16 overflows and an update is left out.
    """

    def __init__(self, checkpoints: Checkpoints, step_after: Callable[[int], int]) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.step_after = step_after

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.checkpoints.save(self.model, self.step_after(epoch))


class MetricsFile(keras.callbacks.Callback):
    """Appends one JSON object an interval to a file: step, seconds since the start, all metrics.

    Args:
        path: the file.
        step_after: as of `SaveCheckpoint`.
    """

    def __init__(self, path: pathlib.Path, step_after: Callable[[int], int]) -> None:
        super().__init__()
        self.path = path
        self.step_after = step_after
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        row: dict[str, float] = {"step": self.step_after(epoch)}
        row["seconds"] = round(time.perf_counter() - self._start, 1)
        row |= {name: float(value) for name, value in (logs or {}).items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
