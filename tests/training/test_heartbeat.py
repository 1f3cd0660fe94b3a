"""Workers wait for the first one as long as it lives."""

import threading
import time

import pytest

from keras_transformer.errors import InputError
from keras_transformer.training import heartbeat as module
from keras_transformer.training.heartbeat import heartbeat, wait_for_first_worker


@pytest.fixture
def quick(monkeypatch):
    """Makes beats and patience short; returns the patience in seconds."""
    monkeypatch.setattr(module, "_INTERVAL_S", 0.05)
    monkeypatch.setattr(module, "_SILENCE_S", 2.0)
    return 2.0


def test_workers_wait_longer_than_their_patience_while_the_first_one_lives(tmp_path, quick):
    ready = threading.Event()

    def prepare():
        with heartbeat(tmp_path / "run"):
            time.sleep(1.5 * quick)
            (tmp_path / "run" / "result").touch()
            ready.set()

    thread = threading.Thread(target=prepare)
    thread.start()
    wait_for_first_worker(tmp_path / "run", ready.is_set)
    thread.join()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_a_first_worker_that_never_came_or_was_killed_is_waited_for_a_limited_time(tmp_path, quick):
    with pytest.raises(InputError, match=r"first worker has given no sign of life in .*run for"):
        wait_for_first_worker(tmp_path / "run", lambda: False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "preparing").touch()  # left by one that was killed
    with pytest.raises(InputError, match=r"first worker has given no sign of life in .*run for"):
        wait_for_first_worker(tmp_path / "run", lambda: False)


def test_a_preparation_that_fails_leaves_nothing(tmp_path, quick):
    with pytest.raises(KeyError), heartbeat(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="cannot write run directory"),
        heartbeat(tmp_path / "file"),
    ):
        pass
