"""Training compiled by XLA, in a process of its own: its flags are read when it starts."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_run

from keras_transformer.training import num_shapes

ROOT = pathlib.Path(__file__).resolve().parents[2]

_TRAIN = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import tiny_run
from keras_transformer.training import RunDirectory, train
train(RunDirectory(sys.argv[2]), tiny_run.corpus(), jit_compile=sys.argv[3] == "xla")
"""


def train(run: pathlib.Path, way: str, **environment: str) -> str:
    command = [sys.executable, "-c", _TRAIN, str(pathlib.Path(__file__).parent), str(run), way]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_each_shape_is_compiled_once_and_the_weights_are_those_of_the_plain_step(tmp_path):
    dump = tmp_path / "dump"
    runs = {}
    for way in ("plain", "xla"):
        runs[way] = tiny_run.create(tmp_path / way, num_layers=1, dropout=0.0)
        train(
            tmp_path / way,
            way,
            XLA_FLAGS=f"--xla_dump_to={dump} --xla_dump_hlo_as_text" if way == "xla" else "",
        )
    programs = [
        path.name
        for path in dump.iterdir()
        if re.search(r"forward_and_backward.*before_optimizations\.txt$", path.name)
    ]
    assert len(programs) == num_shapes(runs["xla"], tiny_run.corpus()) > 1
    plain, compiled = (runs[way].load_model("step-12").get_weights() for way in runs)
    for expected, found in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
