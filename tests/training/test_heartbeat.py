"""Workers wait for the first one as long as it lives."""

import os

import pytest

from keras_transformer.errors import InputError
from keras_transformer.training import distribution as module
from keras_transformer.training.distribution import heartbeat, wait_for_first_worker


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


def test_workers_wait_for_hours_while_the_first_one_lives(tmp_path, clock):
    def is_ready():  # and the file that the first worker touches, each four minutes
        (tmp_path / "preparing").touch()
        os.utime(tmp_path / "preparing", (0, clock.now // 240))
        return clock.now > 2 * 3600

    wait_for_first_worker(tmp_path, is_ready)
    assert clock.now == pytest.approx(2 * 3600, abs=1)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_first_worker_that_is_dead_is_waited_for_five_minutes(tmp_path, clock, was_killed):
    if was_killed:
        (tmp_path / "preparing").touch()
    with pytest.raises(InputError, match=r"first worker has given no sign of life .* 5 minutes;"):
        wait_for_first_worker(tmp_path, lambda: False)
    assert clock.now == pytest.approx(300, abs=1)


def test_the_first_worker_touches_a_file_again_and_again_until_it_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_INTERVAL_S", 0.01)
    seen = set()
    with heartbeat(tmp_path / "run"):
        while len(seen) < 4:
            seen.add((tmp_path / "run" / "preparing").stat().st_mtime_ns)
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_a_preparation_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), heartbeat(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(InputError, match="cannot write run directory")
    with refused, heartbeat(tmp_path / "file"):
        pass
