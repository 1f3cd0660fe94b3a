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
    all_or_none,
    make_strategy,
    worker_of,
)
from keras_transformer.training.run import RunDirectory  # noqa: E402
from keras_transformer.training.trainer import train  # noqa: E402

strategy = make_strategy("multi_worker")
with all_or_none(strategy):
    if worker_of(strategy).is_chief:
        tiny_run.create(folder / "whole", dropout=0.0)
DEV = tiny_run.text(50, seed=1)
train(RunDirectory(folder / "whole"), tiny_run.corpus(), DEV, strategy=strategy, show=False)
with all_or_none(strategy):
    if worker_of(strategy).is_chief:
        tiny_run.copy_of(RunDirectory(folder / "whole"), folder / "resumed", until_step=8)
train(RunDirectory(folder / "resumed"), tiny_run.corpus(), DEV, strategy=strategy, show=False)
