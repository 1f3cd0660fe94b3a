"""Strategies, and workers that train and wait together."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import cluster
from tiny_run import contents

from keras_transformer import host
from keras_transformer.errors import InputError
from keras_transformer.training import distribution as module
from keras_transformer.training.distribution import (
    make_strategy,
    report_out_of_memory,
    wait_for_files,
)
from keras_transformer.training.run import RunDirectory

FOLDER = pathlib.Path(__file__).resolve().parent


def test_worker_waits_five_minutes_for_the_files_of_the_first(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(module, "time", clock)
    wait_for_files(tmp_path, lambda: clock.now >= 240)
    assert clock.now == pytest.approx(240, abs=1)
    clock.now = 0.0
    with pytest.raises(InputError, match=r"does not see in .* the first worker wrote .* 5 minutes"):
        wait_for_files(tmp_path, lambda: False)
    assert clock.now == pytest.approx(300, abs=1)


def test_unknown_strategy_lists_known_ones():
    known = "must be one of auto, none, mirrored, multi_worker, got 'all'"
    with pytest.raises(InputError, match=known):
        make_strategy("all")
    if len(tf.config.list_physical_devices("GPU")) < 2:
        assert make_strategy("auto").num_replicas_in_sync == 1


@pytest.fixture
def gpus(monkeypatch):
    """Makes TensorFlow show cards of these compute capabilities."""

    def show(*capabilities):
        cards = [
            dict(compute_capability=each, device_name=f"Card {each[0]}") for each in capabilities
        ]
        config = module.tf.config
        monkeypatch.setattr(config, "list_physical_devices", lambda kind: cards)
        monkeypatch.setattr(config.experimental, "get_device_details", lambda card: card)

    return show


@pytest.mark.parametrize(
    ("capabilities", "has_instructions", "expected"),
    [
        ([(9, 0)], False, "mixed_bfloat16"),
        ([(8, 0)], False, "mixed_bfloat16"),
        ([(9, 0), (7, 5)], True, "mixed_float16"),
        ([(7, 0)], True, "mixed_float16"),
        ([(6, 1)], True, "float32"),
        ([], True, "mixed_bfloat16"),
        ([], False, "float32"),
    ],
)
def test_auto_precision_follows_from_the_device(
    gpus, monkeypatch, capabilities, has_instructions, expected
):
    gpus(*capabilities)
    monkeypatch.setattr(module, "has_bfloat16", lambda: has_instructions)
    assert module.auto_precision() == expected


@pytest.mark.parametrize(
    ("driver", "capabilities", "hidden", "reported"),
    [
        ("none", [], None, False),
        ("", [], None, True),
        ("", [], "-1", False),  # hidden on purpose
        ("", [(9, 0)], None, False),
    ],
)
def test_devices_are_named_and_a_driver_without_a_gpu_is_reported(
    gpus, monkeypatch, tmp_path, driver, capabilities, hidden, reported
):
    gpus(*capabilities)
    monkeypatch.setattr(host, "NVIDIA_DRIVER", tmp_path / driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    line = module.why_no_gpu()
    assert ('for the GPU run: pip install "tensorflow[and-cuda]"' in line) == bool(line) == reported
    named = module.describe_devices(tf.distribute.get_strategy())
    assert named == ("the GPU (Card 9)" if capabilities else "the CPU")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: so it is"),
        tf.errors.InternalError(None, None, "Failed to create cuBLAS handle: NOT_INITIALIZED"),
    ],
)
def test_out_of_memory_names_flags(error):
    message = "out of memory.*--accumulation_steps.*--batch_tokens in another --run_dir[^\n]*$"
    with pytest.raises(InputError, match=message), report_out_of_memory():
        raise error


@pytest.mark.slow
def test_failed_allocation_is_out_of_memory():
    with pytest.raises(InputError, match="out of memory in training"), report_out_of_memory():
        tf.zeros([2**25, 2**25])


def test_other_errors_are_not_out_of_memory():
    for error in (tf.errors.InvalidArgumentError(None, None, "shapes"), KeyError("x")):
        with pytest.raises(type(error)), report_out_of_memory():
            raise error


# Workers and their devices


def start_workers(count, free_ports, *arguments):
    """Starts the workers of a cluster on this machine."""
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[1])}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    command = [sys.executable, *map(str, arguments)]
    return [
        subprocess.Popen(command, env=environment | {"TF_CONFIG": config}, **pipes)
        for config in cluster(free_ports(count))
    ]


def finish(workers):
    """Waits for the end of workers that have no error."""
    for worker in workers:
        errors = worker.communicate(timeout=600)[1]
        assert worker.returncode == 0, errors


def rows(run):
    """Gives the numbers of each row of a run that are the same on any devices."""
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    names = ("step", "target_tokens", "loss", "accuracy", "val_loss", "val_accuracy", "bleu")
    return [[line[name] for name in names if name in line] for line in lines]


@pytest.mark.slow
def test_two_workers_with_two_devices_train_the_run_of_one_device(tmp_path, free_ports):
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        finish(start_workers(count, free_ports, FOLDER / "train_on_grid.py", count, folder))
    one = RunDirectory(tmp_path / "1" / "whole")
    for name in ("whole", "resumed"):
        run = RunDirectory(tmp_path / "2" / name)
        assert len(rows(run)) == len(rows(one))
        for row, expected in zip(rows(run), rows(one), strict=True):
            assert row == pytest.approx(expected, rel=1e-4)
        for checkpoint in ("step-4", "step-8", "step-12", "average"):
            values, expected = contents(run, checkpoint), contents(one, checkpoint)
            assert values.keys() == expected.keys()
            for key, value in expected.items():
                if "seeds" not in key:  # of dropout, which each device draws for itself
                    np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-5)


# Worker 1 dies at step 8 of a run, or waits for the first one.
LOSES_A_WORKER = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.errors import InputError
from keras_transformer.training import trainer
from keras_transformer.training.distribution import make_strategy
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.distribution import all_or_none
class DyingTrainer(trainer.Trainer):
    def _signal_to_any(self, *arguments):
        if self.worker.index == 1 and self.step == 8:
            os.kill(os.getpid(), 9)
        return super()._signal_to_any(*arguments)
trainer.Trainer = DyingTrainer
strategy = make_strategy()
index = strategy.cluster_resolver.task_id
print("ready", flush=True)
try:
    with all_or_none(strategy):
        if index == 0:
            time.sleep(float(sys.argv[3]))
            tiny_run.create(pathlib.Path(sys.argv[2]))
    trainer.train(RunDirectory(sys.argv[2]), tiny_run.corpus(), strategy=strategy, show=False)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_worker_that_is_left_alone_ends_with_a_line(tmp_path, free_ports):
    first, second = start_workers(2, free_ports, "-c", LOSES_A_WORKER, FOLDER, tmp_path / "run", 0)
    output, errors = first.communicate(timeout=300)
    assert second.wait() == -signal.SIGKILL
    assert output.splitlines()[1:] == [
        "worker 1 does not answer any more; see in its output why it ended, and start all workers "
        "again with the same command: they resume from the newest checkpoint"
    ], errors


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_waits_for_the_first(tmp_path, free_ports):
    first, second = start_workers(2, free_ports, "-c", LOSES_A_WORKER, FOLDER, tmp_path / "r", 600)
    assert second.stdout.readline() == "ready\n"
    time.sleep(2)
    second.terminate()
    assert second.wait(timeout=20) == -signal.SIGTERM
    first.kill()
    first.communicate()
