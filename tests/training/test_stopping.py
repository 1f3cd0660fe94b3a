"""What ends training early: signals, metrics that stall, bad gradients and lack of memory."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.tasks import Metric, TranslationTask
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.metrics import StepCounter
from keras_transformer.training.trainer import (
    StopEarly,
    StopOnBadSteps,
    StopOnSignal,
    Stopped,
    report_out_of_memory,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def handlers():
    """Has Ctrl-C handled as in a terminal, and checks that all handlers are put back."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    signal.signal(signal.SIGINT, found)


class Run:
    """Fits a tiny model, 4 steps an interval, and notes what was saved."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.ended: list[int] = []
        self.counter = StepCounter()

    def fit(self, *callbacks, epochs=3):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        batches = tf.data.Dataset.from_tensors((np.ones((1, 2)), np.ones((1, 1)))).repeat()
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: self.ended.append(self.counter.step)
        )
        callbacks = [self.counter, *callbacks[:-1], note, callbacks[-1]]
        options = {"callbacks": callbacks, "shuffle": False, "verbose": 0}
        model.fit(batches, steps_per_epoch=4, epochs=epochs, **options)

    def after(self, step, action):
        """Gives a callback that does something after a step."""

        def act(batch, logs):
            if self.counter.step == step:
                action()

        return keras.callbacks.LambdaCallback(on_train_batch_end=act)

    def stop_on_signal(self, every=4):
        regular, validated = (lambda step: step % every == 0), (lambda step: step % 4 == 0)
        return StopOnSignal(self.counter, self.saved.append, regular, validated)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_it_came_in_and_stops(number):
    run = Run()
    with pytest.raises(Stopped) as stopped, run.stop_on_signal() as stop:
        run.fit(run.after(6, lambda: signal.raise_signal(number)), stop)
    assert (stopped.value.signal, stopped.value.step) == (number, 6)
    assert run.saved == [6]
    assert run.ended == [4]


def test_a_signal_in_an_intervals_last_step_waits_for_its_end_which_saves():
    run = Run()
    with pytest.raises(Stopped) as stopped, run.stop_on_signal() as stop:
        run.fit(run.after(8, lambda: signal.raise_signal(signal.SIGTERM)), stop)
    assert stopped.value.step == 8
    assert run.saved == []
    assert run.ended == [4, 8]


def test_a_signal_before_a_validation_without_checkpoint_waits_for_it_and_saves():
    run = Run()
    with pytest.raises(Stopped) as stopped, run.stop_on_signal(every=8) as stop:
        run.fit(run.after(4, lambda: signal.raise_signal(signal.SIGTERM)), stop)
    assert stopped.value.step == 4
    assert run.saved == [4]
    assert run.ended == [4]


def test_a_second_ctrl_c_stops_at_once():
    run = Run()

    def press_twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), run.stop_on_signal() as stop:
        run.fit(run.after(6, press_twice), stop)
    assert run.saved == []


def test_without_a_signal_nothing_is_saved_or_stopped():
    run = Run()
    with run.stop_on_signal() as stop:
        run.fit(stop)
    assert run.saved == []
    assert run.ended == [4, 8, 12]


def test_handlers_are_put_back_after_an_error():
    run = Run()
    with pytest.raises(ZeroDivisionError), run.stop_on_signal():
        raise ZeroDivisionError  # the fixture looks at the handlers


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and `&` in scripts do
    try:
        run = Run()
        with run.stop_on_signal() as stop:
            run.fit(run.after(2, lambda: signal.raise_signal(signal.SIGINT)), stop)
        assert run.ended == [4, 8, 12]
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_than_the_main_one_trains_without_handlers():
    run, failures = Run(), []

    def train():
        try:
            with run.stop_on_signal() as stop:
                run.fit(stop, epochs=1)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert failures == []
    assert run.ended == [4]


STOPPED_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_stopping import Run, Stopped
run = Run()
try:
    with run.stop_on_signal() as stop:
        run.fit(run.after(5, lambda: print("training", flush=True)), stop, epochs=10**9)
except Stopped as stopped:
    print(stopped.signal.name, run.saved == [stopped.step] or stopped.step % 4 == 0)
"""


def test_a_signal_from_outside_reaches_a_process_that_trains():
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_PROCESS, str(pathlib.Path(__file__).parent)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=1200)[0] == "SIGTERM True\n"
    assert process.returncode == 0


# A metric that stalls

BLEU = TranslationTask.metric


def find_metric(name):
    """Gives a metric of translation, or one of another task, which is better where it is lower."""
    return (
        Metric(name, higher_is_better=False)
        if name == "wer"
        else TranslationTask().find_metric(name)
    )


def due_after(tmp_path, metric, values, patience=2):
    """Gives the steps after which a run with these values would stop, each seen on its own."""
    checkpoints = Checkpoints(tmp_path)
    for step, value in enumerate(values, start=1):
        checkpoints.metrics.write(step, {metric.name: value, "other": 1.0})
    steps = range(1, len(values) + 1)
    return [
        step
        for step in steps
        if StopEarly(StepCounter(step), checkpoints, metric, patience).is_due()
    ]


@pytest.mark.parametrize(
    ("metric", "values", "due"),
    [
        ("bleu", [1, 2, 3, 4], []),
        ("bleu", [3, 2, 1], [3]),
        ("bleu", [3, 2, 4, 2, 2], [5]),
        ("bleu", [3, 3, 3], [3]),  # the same is not better
        ("wer", [3, 2, 1], []),
        ("wer", [1, 2, 0.5, float("inf"), 3], [5]),
        ("val_accuracy", [0.3, 0.2, 0.1], [3]),
        ("val_loss", [3, 2, 1], []),
        ("val_loss", [1, 2, 0.5, 2, 3, 4], [5, 6]),
        ("val_perplexity", [1, float("nan"), float("nan")], [3]),
        ("val_loss", [float("nan"), float("nan"), 1.0], [2]),
    ],
)
def test_a_run_ends_when_its_metric_has_not_improved(tmp_path, metric, values, due):
    assert due_after(tmp_path, find_metric(metric), values) == due


def test_scores_of_later_steps_do_not_count_yet(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step, value in enumerate([5.0, 1.0, 1.0, 9.0], start=1):
        checkpoints.metrics.write(step, {"bleu": value})
    assert not StopEarly(StepCounter(2), checkpoints, BLEU, 2).is_due()
    assert StopEarly(StepCounter(3), checkpoints, BLEU, 2).is_due()
    assert not StopEarly(StepCounter(4), checkpoints, BLEU, 2).is_due()


def test_the_end_of_a_run_that_was_extended_is_no_checkpoint_of_its_own(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=100)
    for step, value in ((100, 3.0), (200, 2.0), (250, 1.0)):
        checkpoints.metrics.write(step, {"bleu": value})
    checkpoints.metrics.write(300, {"bleu": 4.0})
    assert not StopEarly(StepCounter(250), checkpoints, BLEU, 2).is_due()
    assert not StopEarly(StepCounter(300), checkpoints, BLEU, 2).is_due()


def test_fit_stops_and_a_run_that_goes_on_stops_at_the_same_step(tmp_path):
    values = {4: 2.0, 8: 3.0, 12: 1.0, 16: 1.0, 20: 9.0}

    def train(start):
        run, checkpoints = Run(), Checkpoints(tmp_path, metric=BLEU)
        run.counter.step = start

        def score(epoch, logs):
            logs["bleu"] = values[run.counter.step]
            checkpoints.metrics.write(run.counter.step, logs)

        scored = keras.callbacks.LambdaCallback(on_epoch_end=score)
        run.fit(scored, StopEarly(run.counter, checkpoints, BLEU, 2), epochs=9)
        return run.counter.step

    assert train(0) == 16
    assert train(8) == 16  # as one killed after step 8
    assert json.loads((tmp_path / "checkpoint_metrics.json").read_text()).keys() == {
        "4",
        "8",
        "12",
        "16",
    }


def test_a_metric_that_there_is_not_is_told_at_the_first_checkpoint(tmp_path):
    run = Run()
    with pytest.raises(
        InputError, match=r"'blue' is no metric of this run's dev set; it has no dev set$"
    ):
        run.fit(StopEarly(run.counter, Checkpoints(tmp_path), Metric("blue"), 2))
    assert run.counter.step == 4


# Gradients that are not finite


def stop_on_bad_steps(tmp_path, max_bad_steps, counts):
    """Gives the steps at which a callback reads the count, and that at which it ends training."""
    read = []

    class Count:
        def numpy(self):
            read.append(counter.step)
            return np.int32(counts[counter.step - 1])

    counter = StepCounter()
    callback = StopOnBadSteps(counter, Checkpoints(tmp_path), max_bad_steps)
    callback.set_model(types.SimpleNamespace(bad_steps_in_a_row=Count()))
    for step in range(1, len(counts) + 1):
        counter.step = step
        try:
            callback.on_train_batch_end(0)
        except InputError as error:
            return read, step, str(error)
    return read, None, None


def test_too_many_bad_steps_end_the_run_with_what_to_do(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="adam")
    Checkpoints(tmp_path).save(model, 30)
    read, step, message = stop_on_bad_steps(tmp_path, 8, [0, 0, 0, *range(1, 30)])
    assert (read, step) == ([4, 8, 12], 12)
    assert message.startswith("no gradient was finite in the 9 updates up to step 12, and the last")
    for part in ("step-30", "learning_rate", "clip_norm", "max_bad_steps"):
        assert part in message


def test_bad_steps_between_good_ones_do_not_end_the_run(tmp_path):
    assert stop_on_bad_steps(tmp_path, 4, [1, 2, 3, 0, 1, 2, 3, 0, 1, 2])[1] is None


def test_one_bad_step_can_be_too_many(tmp_path):
    _, step, message = stop_on_bad_steps(tmp_path, 1, [0, 0, 1])
    assert step == 3
    assert "no checkpoint yet" in message


# Lack of memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: so it is"),
    ],
)
def test_lack_of_memory_names_the_flags(error):
    with pytest.raises(InputError) as caught, report_out_of_memory():
        raise error
    for part in ("out of memory", "--accumulation_steps", "--batch_tokens in another --run_dir"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_batch_that_tensorflow_cannot_allocate_is_told():
    expected = r"out of memory with a batch \(.*raise --accumulation_steps"
    with pytest.raises(InputError, match=expected), report_out_of_memory():
        tf.zeros([2**25, 2**25])


def test_other_errors_stay_themselves():
    for error in (tf.errors.InvalidArgumentError(None, None, "shapes"), KeyError("x")):
        with pytest.raises(type(error)), report_out_of_memory():
            raise error
