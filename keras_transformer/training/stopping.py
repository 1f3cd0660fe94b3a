"""What ends training before its last step, and how nothing is lost by it.

On a signal a checkpoint is saved first. Training also ends where going on would be a waste: when
a metric stops improving, gradients stay non-finite or memory runs out.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Self

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import Metric, Task
from keras_transformer.training.checkpoint_files import one_line
from keras_transformer.training.checkpoint_metrics import dev_metrics
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.step_counter import StepCounter

# Steps after which several workers ask each other whether to stop; each time a GPU must wait.
_STEPS_BETWEEN_QUESTIONS = 8


class Stopped(Exception):  # noqa: N818  # it is no error
    """Training was stopped by a signal, and a checkpoint of its state was written.

    Attributes:
        signal: which one.
        step: of the checkpoint.
    """

    def __init__(self, received: signal.Signals, step: int) -> None:
        super().__init__(f"stopped by {received.name} after step {step}")
        self.signal = received
        self.step = step


class StopOnSignal(keras.callbacks.Callback):
    """Ends training on SIGTERM or Ctrl-C: saves what there is, then raises `Stopped`.

    It is a context as well, in which the signals are caught; `fit` is called inside. A second
    Ctrl-C stops at once, with `KeyboardInterrupt`. Where the signals cannot be caught, outside of
    the main thread, or are ignored, as by `nohup`, all stays as it is. It comes last in the list
    of callbacks, so that at the end of an interval the others have done their work.

    Args:
        counter: counts the steps.
        save: writes the checkpoint of a step.
        is_regular: says of a step whether it gets a checkpoint anyway; `Checkpoints.is_regular`.
        is_validated: whether the dev set is evaluated after a step; that comes first.
        ask_all: for several workers, which must stop after the same step: given whether this one
            has a signal, returns whether any has. All of them call it at the same steps.

    Example:
        >>> checks = checkpoints.is_regular, training.is_validated
        >>> with StopOnSignal(counter, save, *checks) as stop:
        ...     model.fit(batches, callbacks=[counter, stop])
    """

    def __init__(
        self,
        counter: StepCounter,
        save: Callable[[int], None],
        is_regular: Callable[[int], bool] = lambda step: False,
        is_validated: Callable[[int], bool] = lambda step: False,
        ask_all: Callable[[bool], bool] | None = None,
    ) -> None:
        super().__init__()
        self.counter = counter
        self.save = save
        self.is_regular = is_regular
        self.is_validated = is_validated
        self.ask_all = ask_all
        self._received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if self.is_regular(step) or self.is_validated(step):  # see `on_epoch_end`
            return
        if self.ask_all is not None and step % _STEPS_BETWEEN_QUESTIONS:
            return
        if received := self._signal_to_any():
            self.save(step)
            raise Stopped(received, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if received := self._signal_to_any():
            if not self.is_regular(step):  # an interval that ends with a validation only
                self.save(step)
            raise Stopped(received, step)

    def _signal_to_any(self) -> signal.Signals | None:
        """Returns the signal to heed: this worker's own, or SIGTERM for that of another."""
        if self.ask_all is not None and self.ask_all(self._received is not None):
            return self._received or signal.SIGTERM
        return None if self.ask_all is not None else self._received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signal.Signals(number)


class StopEarly(keras.callbacks.Callback):
    """Ends training once a metric has not improved at so many checkpoints in a row.

    All that it knows it reads from the checkpoints' metrics: a run that is resumed stops where it
    would have stopped. It comes after the callback that saves checkpoints.

    Args:
        counter: counts the steps.
        checkpoints: hold the metrics.
        metric: which one, and its direction.
        patience: checkpoints without a better value before the run stops.
        is_validated: whether the dev set is evaluated after a step.
    """

    def __init__(
        self,
        counter: StepCounter,
        checkpoints: Checkpoints,
        metric: Metric,
        patience: int,
        is_validated: Callable[[int], bool] = lambda step: True,
    ) -> None:
        super().__init__()
        self.is_validated = is_validated
        self.counter = counter
        self.checkpoints = checkpoints
        self.metric = metric
        self.patience = patience

    def is_due(self) -> bool:
        """Whether the run has come to its end, at the step where it is."""
        best, waited = -float("inf"), 0
        for step, metrics in self.checkpoints.metrics.read().items():
            # Metrics of later steps are left by a run whose newest checkpoint was damaged, those of
            # other steps by the end of a run that was extended.
            if step > self.counter.step or not self.checkpoints.is_regular(step):
                continue
            if self.metric.name not in metrics:
                continue
            value = self.metric.rank(metrics[self.metric.name])
            waited = 0 if value > best else waited + 1
            best = max(best, value)
        return waited >= self.patience

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.is_validated(self.counter.step):
            return
        known = sorted(dev_metrics(logs, self.checkpoints.metric))
        if self.metric.name not in known:
            raise InputError(
                f"stop_metric {self.metric.name!r} is no metric of this run's dev set; it has "
                f"{', '.join(known) or 'no dev set'}"
            )
        if self.is_due():
            self.model.stop_training = True


def is_stopped_early(
    training: TrainingConfig, task: Task, checkpoints: Checkpoints, step: int
) -> bool:
    """Whether `stop_metric`, where there is one, ends the run at this step."""
    if training.stop_metric is None:
        return False
    metric = task.find_metric(training.stop_metric)
    return StopEarly(StepCounter(step), checkpoints, metric, training.stop_patience).is_due()


class StopOnBadSteps(keras.callbacks.Callback):
    """Ends training where update after update is skipped, because no gradient is finite.

    The model counts them, as `bad_steps_in_a_row`. To read the number makes a GPU wait, so it is
    read twice in `max_bad_steps` steps.

    Args:
        counter: counts the steps.
        checkpoints: names the last good one.
        max_bad_steps: skipped updates in a row that end the run.
    """

    def __init__(self, counter: StepCounter, checkpoints: Checkpoints, max_bad_steps: int) -> None:
        super().__init__()
        self.counter = counter
        self.checkpoints = checkpoints
        self.max_bad_steps = max_bad_steps

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self.counter.step
        if step % max(1, self.max_bad_steps // 2):
            return
        bad_steps = int(self.model.bad_steps_in_a_row.numpy())
        if bad_steps >= self.max_bad_steps:
            steps = self.checkpoints.steps()
            last = f"the last good checkpoint is step-{steps[-1]}" if steps else "no checkpoint yet"
            raise InputError(
                f"no gradient was finite in the {bad_steps} updates up to step {step}, and {last}; "
                "train another run with a lower learning_rate or clip_norm, or raise max_bad_steps"
            )


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raises `InputError`, saying which flags to change, where memory runs out."""
    try:
        yield
    except (MemoryError, tf.errors.OpError) as error:
        # Libraries beneath TensorFlow report it as an internal error.
        if not isinstance(
            error, MemoryError | tf.errors.ResourceExhaustedError
        ) and "out of memory" not in str(error).lower().replace("_", " "):
            raise
        raise InputError(
            f"out of memory with a batch ({one_line(error)}); raise --accumulation_steps, which "
            "makes the batches of training and of the dev set smaller, or lower --batch_tokens in "
            "another --run_dir"
        ) from error
