"""Strategies, and workers that train together."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import cluster
from tiny_run import contents

from keras_transformer.errors import InputError
from keras_transformer.training import distribution as module
from keras_transformer.training.distribution import make_strategy, report_out_of_memory
from keras_transformer.training.run import RunDirectory

FOLDER = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("all", "", "must be one of auto, none, mirrored, multi_worker, got 'all'"),
        ("multi_worker", "", "multi_worker needs TF_CONFIG in the environment"),
        ("auto", "nonsense", "TF_CONFIG is damaged"),
        ("auto", '{"cluster": 3}', "TF_CONFIG is damaged"),
    ],
)
def test_impossible_strategy_is_one_line(monkeypatch, name, config, message):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(InputError, match=message) as caught:
        make_strategy(name)
    assert "\n" not in str(caught.value)


def test_one_device_is_the_default_without_gpus_or_workers():
    if len(tf.config.list_physical_devices("GPU")) < 2:
        assert make_strategy("auto").num_replicas_in_sync == 1


@pytest.fixture
def gpus(monkeypatch):
    """Makes TensorFlow show GPUs of these compute capabilities."""

    def show(*capabilities):
        gpus = [dict(compute_capability=each) for each in capabilities]
        config = module.tf.config
        monkeypatch.setattr(config, "list_physical_devices", lambda kind: gpus)
        monkeypatch.setattr(config.experimental, "get_device_details", lambda gpu: gpu)

    return show


@pytest.mark.parametrize(
    ("capabilities", "has_instructions", "expected"),
    [
        ([(9, 0)], False, "mixed_bfloat16"),
        ([(8, 0)], False, "mixed_bfloat16"),
        ([(9, 0), (7, 5)], True, "mixed_float16"),
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
    ("error", "is_reported"),
    [
        (MemoryError(), True),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (tf.errors.InvalidArgumentError(None, None, "shapes"), False),
        (KeyError("x"), False),
    ],
)
def test_out_of_memory_names_flags(error, is_reported):
    message = r"out of memory.*--accumulation_steps.*--batch_tokens in another --run_dir[^\n]*$"
    expected = dict(match=message) if is_reported else {}
    with (
        pytest.raises(InputError if is_reported else type(error), **expected),
        report_out_of_memory(),
    ):
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


def rows(run):
    """Gives the numbers of each row of a run that are the same on any devices."""
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    names = ("step", "target_tokens", "loss", "accuracy", "val_loss", "val_accuracy", "bleu")
    return [[line[name] for name in names if name in line] for line in lines]


@pytest.fixture(scope="module")
def grid(tmp_path_factory, free_ports):
    """Trains on so many workers with so many devices each, and gives the folder of the runs."""
    made = {}

    def train(workers, devices):
        if (workers, devices) not in made:
            folder = made[workers, devices] = tmp_path_factory.mktemp("grid")
            script = FOLDER / "train_on_grid.py"
            for worker in start_workers(workers, free_ports, script, devices, folder):
                errors = worker.communicate(timeout=600)[1]
                assert worker.returncode == 0, errors
        return made[workers, devices]

    return train


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(1, 2), (2, 1), (2, 2)])
def test_workers_with_devices_train_the_run_of_one_device(grid, workers, devices):
    one = RunDirectory(grid(1, 1) / "whole")
    for name in ("whole", "resumed"):
        run = RunDirectory(grid(workers, devices) / name)
        assert len(rows(run)) == len(rows(one))
        for row, expected in zip(rows(run), rows(one), strict=True):
            assert row == pytest.approx(expected, rel=1e-4)
        for checkpoint in ("step-4", "step-8", "step-12", "average"):
            values, expected = contents(run, checkpoint), contents(one, checkpoint)
            assert values.keys() == expected.keys()
            for key, value in expected.items():
                if "states" not in key:  # of dropout, which each device draws for itself
                    np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-5)


# Worker 1 gets a signal after a step.
GETS_A_SIGNAL = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.errors import InputError
from keras_transformer.training import distribution, trainer
from keras_transformer.training.run import RunDirectory
class Trainer(trainer.Trainer):
    def _after_update(self, *arguments):
        if not self._is_chief and self.step == int(sys.argv[4]):
            os.kill(os.getpid(), int(sys.argv[3]))
        super()._after_update(*arguments)
trainer.Trainer = Trainer
strategy = distribution.make_strategy()
if distribution.worker_index(strategy) == 0:
    tiny_run.create(pathlib.Path(sys.argv[2]))
distribution.wait_for_workers(strategy)
try:
    trainer.train(RunDirectory(sys.argv[2]), tiny_run.corpus(), strategy=strategy, show=False)
except (InputError, trainer.Stopped) as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "step", "line", "steps"),
    [
        (signal.SIGKILL, 8, "another worker does not answer any more (", [4]),
        (signal.SIGTERM, 5, "stopped by SIGTERM after step 6", [4, 6]),
    ],
)
def test_signal_to_one_worker_ends_all_with_a_line(tmp_path, free_ports, number, step, line, steps):
    arguments = FOLDER, tmp_path / "run", int(number), step
    workers = start_workers(2, free_ports, "-c", GETS_A_SIGNAL, *arguments)
    (output, errors), (last, _) = (worker.communicate(timeout=300) for worker in workers)
    assert output.startswith(line) and output.count("\n") == 1, errors
    assert last == ("" if number == signal.SIGKILL else output)
    assert RunDirectory(tmp_path / "run").checkpoints().steps() == steps
