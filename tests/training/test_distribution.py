"""Strategies, and workers that wait for the first one while it prepares a run."""

import os

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training import distribution as module
from keras_transformer.training.distribution import heartbeat, make_strategy, wait_for_first_worker


class Clock:
    """Takes the place of `time`: only sleeping makes it go on."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_workers_wait_while_heartbeat_continues(tmp_path, clock):
    def is_ready():  # and the file that the first worker touches, each four minutes
        (tmp_path / "preparing").touch()
        os.utime(tmp_path / "preparing", (0, clock.now // 240))
        return clock.now > 2 * 3600

    wait_for_first_worker(tmp_path, is_ready)
    assert clock.now == pytest.approx(2 * 3600, abs=1)


@pytest.mark.parametrize("was_killed", [False, True])
def test_wait_ends_five_minutes_after_last_heartbeat(tmp_path, clock, was_killed):
    if was_killed:
        (tmp_path / "preparing").touch()
    with pytest.raises(InputError, match=r"first worker has given no sign of life .* 5 minutes;"):
        wait_for_first_worker(tmp_path, lambda: False)
    assert clock.now == pytest.approx(300, abs=1)


def test_heartbeat_touches_file_until_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_INTERVAL_S", 0.01)
    seen = set()
    with heartbeat(tmp_path / "run"):
        while len(seen) < 4:
            seen.add((tmp_path / "run" / "preparing").stat().st_mtime_ns)
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_failed_preparation_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), heartbeat(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_heartbeat_in_unwritable_folder_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(InputError, match="cannot write run directory")
    with refused, heartbeat(tmp_path / "file"):
        pass


def test_unknown_strategy_lists_known_ones():
    with pytest.raises(
        InputError, match="must be one of auto, none, mirrored, multi_worker, got 'all'"
    ):
        make_strategy("all")


def test_auto_strategy_without_gpus_is_one_device():
    if len(tf.config.list_physical_devices("GPU")) > 1:
        pytest.skip("needs a machine with at most one GPU")
    assert make_strategy("auto").num_replicas_in_sync == 1


@pytest.fixture
def gpus(monkeypatch):
    """Makes TensorFlow show cards of these compute capabilities."""

    def show(*capabilities):
        details = [
            {"compute_capability": each, "device_name": f"Card {each[0]}"} for each in capabilities
        ]
        monkeypatch.setattr(module.tf.config, "list_physical_devices", lambda kind: details)
        monkeypatch.setattr(
            module.tf.config.experimental, "get_device_details", lambda device: device
        )

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


def test_devices_are_named(gpus):
    strategy = tf.distribute.get_strategy()
    gpus((9, 0))
    assert module.describe_devices(strategy) == "the GPU (Card 9)"
    gpus()
    assert module.describe_devices(strategy) == "the CPU"


def test_driver_without_a_gpu_in_tensorflow_is_reported(gpus, monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus()
    monkeypatch.setattr(module, "NVIDIA_DRIVER", tmp_path / "none")
    assert module.why_no_gpu() == ""
    monkeypatch.setattr(module, "NVIDIA_DRIVER", tmp_path)
    assert (
        'uses the CPU; for the GPU run: pip install "tensorflow[and-cuda]"' in module.why_no_gpu()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # hidden on purpose
    assert module.why_no_gpu() == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpus((9, 0))
    assert module.why_no_gpu() == ""


@pytest.mark.parametrize("fails_here", [True, False])
def test_failure_of_one_worker_ends_all(monkeypatch, fails_here):
    reports = []
    monkeypatch.setattr(module, "worker_of", lambda strategy: module.Worker(1, 2))
    monkeypatch.setattr(module, "sum_over_workers", lambda strategy, x: reports.append(x) or 1.0)
    message = "the disk is full" if fails_here else "another worker has failed"
    with (
        pytest.raises(InputError, match=message),
        module.all_or_none(tf.distribute.get_strategy()),
    ):
        if fails_here:
            raise InputError("the disk is full")
    assert reports == [float(fails_here)]
