"""Training on several devices."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training import make_strategy

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Logical devices must be set up before TensorFlow starts: in a process of their own.
_TRAIN = """
import pathlib
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.training import fit, make_strategy

strategy = make_strategy("mirrored")
print("replicas", strategy.num_replicas_in_sync)
run = tiny_run.create(pathlib.Path(sys.argv[2]), num_layers=1)
fit.train(run, tiny_run.corpus(), tiny_run.text(16, seed=1), strategy=strategy, show=False)
"""


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(
        InputError, match="must be one of auto, none, mirrored, multi_worker, got 'all'"
    ):
        make_strategy("all")


def test_auto_is_one_device_where_there_are_not_several_gpus():
    if len(tf.config.list_physical_devices("GPU")) > 1:
        pytest.skip("needs a machine with at most one GPU")
    assert make_strategy("auto").num_replicas_in_sync == 1


@pytest.mark.slow
def test_a_mirrored_run_trains_checkpoints_and_averages_on_two_devices(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    tests = str(pathlib.Path(__file__).parent)
    command = [sys.executable, "-c", _TRAIN, tests, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "replicas 2" in done.stdout
    names = {path.name for path in (tmp_path / "run" / "checkpoints").glob("*.index")}
    assert names == {"step-4.index", "step-8.index", "step-12.index", "average.index"}
