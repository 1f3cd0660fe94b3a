"""The dev metrics of each checkpoint of a run: `checkpoint_metrics.json` beside the checkpoints.

A checkpoint's metrics are written before it is, and are the same whenever its step is reached: a
crash between the two leaves metrics that will be written again, and does no harm.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.atomic_files import write_atomically
from keras_transformer.errors import InputError
from keras_transformer.tasks import Metric


class CheckpointMetrics:
    """The metrics of a run at its checkpoints, by step.

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
        """Adds the metrics at a step, or replaces them.

        Raises:
            OSError: the disk does not take them; the file stays as it was.
        """
        by_step = self.read() | {step: {name: float(value) for name, value in metrics.items()}}
        write_atomically(self.path, json.dumps(by_step, indent=1) + "\n")


def dev_metrics(logs: Mapping[str, Any] | None, metric: Metric | None) -> dict[str, float]:
    """Returns the metrics of the dev set, that of the task among them, at the end of an interval.

    The others cover the batches since the run was last interrupted: they would not be the same
    each time.
    """
    return {
        name: float(value)
        for name, value in (logs or {}).items()
        if name.startswith("val_") or (metric is not None and name == metric.name)
    }
