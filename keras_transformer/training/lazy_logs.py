"""Callbacks that need not wait for the device after each batch."""

from typing import Any

import keras


class LazyLogs(keras.callbacks.CallbackList):
    """A list of callbacks for `fit` that get the logs of a batch as tensors.

    Keras turns the logs of every batch into Python numbers before it calls the first callback,
    and so waits for the device each time. Here a callback that wants a number takes `float` of
    it, and waits only then. The logs of an epoch are numbers as ever.

    Args:
        callbacks: as in `fit`.
        model: whose `fit` they are for.

    Example:
        >>> model.fit(data, callbacks=LazyLogs(callbacks, model), verbose=0)
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback], model: keras.Model) -> None:
        super().__init__(callbacks, add_history=True, model=model)  # `fit` returns the history

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for callback in self.callbacks:
            callback.on_test_batch_end(batch, logs)
