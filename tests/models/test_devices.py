"""Any number of devices, workers and accumulated parts gives the weights that one device gives.

See train_on_devices.py, whose batches have sentences of very different length and end with one
that leaves replicas without a sentence.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("train_on_devices.py")

ONE_DEVICE = "1-1-plain-ours"
WAYS = [
    "1-2-plain-ours",
    "1-4-plain-ours",
    "1-1-xla-ours",
    "2-1-plain-ours",
    "2-2-plain-ours",
    "2-1-xla-ours",
    "4-1-plain-ours",
    "workers-1-plain-ours-0",
    "workers-1-plain-ours-1",
]


def start(folder: pathlib.Path, *ways: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), *ways],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def results(tmp_path_factory, free_ports) -> dict[str, dict[str, np.ndarray]]:
    """What each way of training gave."""
    folder = tmp_path_factory.mktemp("devices")
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    # First and alone: workers that wait for each other too long give up.
    for_workers = []
    for index in range(2):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for_workers.append(start(folder, "workers-1-plain-ours", TF_CONFIG=json.dumps(task)))
    finish(for_workers)
    others = [
        start(folder, ONE_DEVICE, "1-1-plain-keras", "1-2-plain-ours", "1-4-plain-ours",
              "1-1-xla-ours", "2-1-plain-spoiled"),
        start(folder, "2-1-plain-ours", "2-2-plain-ours", "2-1-xla-ours", "2-2-plain-keras"),
        start(folder, "4-1-plain-ours"),
        start(folder, "1-1-plain-ponder", "1-2-plain-ponder", "2-1-plain-ponder"),
        start(folder, "1-1-plain-recurrent", "1-2-plain-recurrent", "2-1-plain-recurrent"),
    ]  # fmt: skip
    finish(others)
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


@pytest.mark.parametrize("way", WAYS)
def test_20_updates_give_the_weights_of_one_device(results, way):
    assert results[ONE_DEVICE]["change"] > 0.01
    np.testing.assert_allclose(
        results[way]["weights"], results[ONE_DEVICE]["weights"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("way", WAYS)
def test_loss_and_metrics_are_those_of_the_whole_batch(results, way):
    for kind in ("metrics", "shown"):
        np.testing.assert_allclose(results[way][kind], results[ONE_DEVICE][kind], rtol=1e-5)


def test_a_loss_of_keras_gives_the_same_weights_on_two_devices_too(results):
    one, two = results["1-1-plain-keras"], results["2-2-plain-keras"]
    assert np.abs(one["weights"] - results[ONE_DEVICE]["weights"]).max() > 1e-4
    np.testing.assert_allclose(two["weights"], one["weights"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(two["metrics"], one["metrics"], rtol=1e-5)


@pytest.mark.parametrize("way", ["1-2-plain-ponder", "2-1-plain-ponder"])
def test_the_ponder_cost_is_that_of_the_whole_batch(results, way):
    one, other = results["1-1-plain-ponder"], results[way]
    assert one["change"] > 0.01
    np.testing.assert_allclose(other["weights"], one["weights"], rtol=0, atol=1e-5)
    for kind in ("metrics", "shown"):
        np.testing.assert_allclose(other[kind], one[kind], rtol=1e-5)


@pytest.mark.parametrize("way", ["1-2-plain-recurrent", "2-1-plain-recurrent"])
def test_a_recurrent_model_gets_the_gradients_of_the_whole_batch(results, way):
    one, other = results["1-1-plain-recurrent"], results[way]
    assert one["change"] > 0.01
    np.testing.assert_allclose(other["weights"], one["weights"], rtol=0, atol=1e-6)


def test_float16_leaves_out_an_update_that_one_replica_alone_could_not_make(results):
    result = results["2-1-plain-spoiled"]
    assert result["bad_steps"] == 1
    assert np.isfinite(result["weights"]).all()
    assert result["change"] > 0.01
