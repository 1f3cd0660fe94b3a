"""Strategies, and workers that wait for the first one while it prepares a run."""

import os
import types

import pytest
import tensorflow as tf

from keras_transformer import host
from keras_transformer.errors import InputError
from keras_transformer.training import distribution as module
from keras_transformer.training.distribution import (
    heartbeat,
    make_strategy,
    report_out_of_memory,
    wait_for_first_worker,
)


@pytest.mark.parametrize(
    ("begins", "ends", "waited"),
    [(True, 2 * 3600, 2 * 3600 - 240 + 300), (True, 0, 300), (False, 0, 300)],
)
def test_workers_wait_for_five_minutes_after_last_heartbeat(
    tmp_path, monkeypatch, begins, ends, waited
):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(module, "time", clock)
    if begins:
        (tmp_path / "preparing").touch()

    def is_ready():  # never; and the file that the first worker touches, each four minutes
        if clock.now < ends:
            os.utime(tmp_path / "preparing", (0, clock.now // 240))
        return False

    with pytest.raises(InputError, match=r"first worker has given no sign of life .* 5 minutes;"):
        wait_for_first_worker(tmp_path, is_ready)
    assert clock.now == pytest.approx(waited, abs=2)
    wait_for_first_worker(tmp_path, lambda: True)


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
    (tmp_path / "file").touch()
    refused = pytest.raises(InputError, match="cannot write run directory")
    with refused, heartbeat(tmp_path / "file"):
        pass


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
    with pytest.raises(InputError, match="out of memory with a batch"), report_out_of_memory():
        tf.zeros([2**25, 2**25])


def test_other_errors_are_not_out_of_memory():
    for error in (tf.errors.InvalidArgumentError(None, None, "shapes"), KeyError("x")):
        with pytest.raises(type(error)), report_out_of_memory():
            raise error
