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
