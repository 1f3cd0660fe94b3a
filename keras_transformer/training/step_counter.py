"""How many batches of the run have been trained on: what every other callback counts by."""

from typing import Any

import keras


class StepCounter(keras.callbacks.Callback):
    """Counts batches over all calls of `fit`; comes first in the list of callbacks.

    The optimizer's own count stays behind it where float16 overflows and an update is left out.

    Args:
        step: batches of the run before this process.

    Attributes:
        step: batches of the run so far.
    """

    def __init__(self, step: int = 0) -> None:
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step += 1
