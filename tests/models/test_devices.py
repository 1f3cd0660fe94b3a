"""Any number of devices, workers and accumulated parts gives the weights that one device gives.

See train_on_devices.py, whose batches have sentences of very different length and end with one
that leaves replicas without a sentence.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from helpers import cluster

pytestmark = pytest.mark.slow

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).with_name("train_on_devices.py")
PROCESSES = [
    ["1-1-plain-ours", "1-1-plain-keras", "1-1-plain-ponder", "alone-2-xla-ours",
     "2-1-plain-spoiled"],
    ["2-2-plain-ours", "2-1-xla-ours", "2-2-plain-keras"],
    ["2-2-plain-ponder"],
]  # fmt: skip
WORKERS = "workers-1-plain-ours"
WAYS = [
    way
    for process in PROCESSES
    for way in process
    if not way.startswith("1-1-") and way != "2-1-plain-spoiled"
]

# Of weights up to 1.3. Adam divides gradients by their size, and so enlarges their rounding.
TOLERANCE = 2e-6


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
    """The results of each way of training."""
    folder = tmp_path_factory.mktemp("devices")
    # First and alone: workers that wait for each other too long give up.
    finish([start(folder, WORKERS, TF_CONFIG=config) for config in cluster(free_ports(2))])
    finish([start(folder, *ways) for ways in PROCESSES])
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


@pytest.mark.parametrize("way", [*WAYS, f"{WORKERS}-0", f"{WORKERS}-1"])
def test_20_updates_equal_those_of_one_device(results, way):
    kind = way.split("-")[3]
    one, result = results[f"1-1-plain-{kind}"], results[way]
    assert one["change"] > 0.01
    np.testing.assert_allclose(result["weights"], one["weights"], rtol=0, atol=TOLERANCE)
    for values in ("metrics", "shown"):  # at the end, and after each batch
        np.testing.assert_allclose(result[values], one[values], rtol=1e-5)


def test_keras_loss_differs_from_ours(results):
    ours, keras = results["1-1-plain-ours"], results["1-1-plain-keras"]
    assert np.abs(keras["weights"] - ours["weights"]).max() > 1e-4


def test_float16_skips_an_update_that_one_replica_spoils(results):
    result = results["2-1-plain-spoiled"]
    assert result["bad_steps"] == 1
    assert np.isfinite(result["weights"]).all()
    assert result["change"] > 0.01
