"""One worker of a run that several workers train, each with several devices.

    TF_CONFIG=... python train_on_grid.py DEVICES FOLDER

makes the run FOLDER/whole of 12 steps, and resumes a copy of it, FOLDER/resumed, from step 8.
"""

import pathlib
import sys

import tensorflow as tf

devices, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)

import tiny_run  # noqa: E402  # loads TensorFlow's devices

from keras_transformer.training.distribution import (  # noqa: E402
    make_strategy,
    wait_for_workers,
    worker_index,
)
from keras_transformer.training.run import RunDirectory  # noqa: E402
from keras_transformer.training.trainer import train  # noqa: E402

strategy = make_strategy("multi_worker")
if worker_index(strategy) == 0:
    tiny_run.create(folder / "whole", dropout=0.0)
wait_for_workers(strategy)
DEV = tiny_run.text(50, seed=1)
DEV.source.append("abcdef" * 7)  # searched alone: nothing is left for a second device
DEV.target.append("fedcba" * 7)
train(RunDirectory(folder / "whole"), tiny_run.corpus(), DEV, strategy=strategy, show=False)
wait_for_workers(strategy)  # for the average
if worker_index(strategy) == 0:
    tiny_run.copy_of(RunDirectory(folder / "whole"), folder / "resumed", until_step=8)
wait_for_workers(strategy)
train(RunDirectory(folder / "resumed"), tiny_run.corpus(), DEV, strategy=strategy, show=False)
