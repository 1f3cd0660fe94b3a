"""What it takes to import a model of the size of the paper's base."""

import json
import os
import pathlib
import subprocess
import sys

import import_base
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_60_million_parameters_take_at_most_three_times_their_size_of_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, import_base.__file__, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert 240 < found["weights_mb"] < 260
    assert found["peak_mb"] < 3 * found["weights_mb"]
