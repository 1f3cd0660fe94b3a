"""Commands, run through scripts/: in a process of their own or, faster, in this one (`call`)."""

import functools
import os
import pathlib
import subprocess
import sys

import pytest
from helpers import Result

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TINY = (
    "--preset=tiny", "--num_layers=1", "--model_dim=16", "--num_heads=2", "--feed_forward_dim=16",
    "--dropout=0", "--vocabulary_kind=word", "--vocabulary_size=20", "--train_steps=4",
    "--checkpoint_steps=2", "--batch_tokens=200", "--precision=float32",
)  # fmt: skip


@pytest.fixture(scope="session")
def start():
    """Starts a script, given by name or path, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}

    def start(script, *arguments, **options):
        command = [sys.executable, str(_ROOT / "scripts" / script), *map(str, arguments)]
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        environment = inherited | {"PYTHONPATH": str(_ROOT)} | options.pop("env", {})
        return subprocess.Popen(command, text=True, env=environment, **(pipes | options))

    return start


@pytest.fixture(scope="session")
def run(start):
    def run(script, *arguments, **options):
        process = start(script, *arguments, **options)
        out, err = process.communicate(timeout=600)
        return Result(process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def train_flags(texts):
    """The flags of train for two checkpoints of a very small model, which learns nothing."""
    files = [
        f"--{split}_{side}={texts}/{split}.{ending}"
        for split in ("train", "dev", "test")
        for side, ending in (("source", "en"), ("target", "xx"))
    ]
    return [*_TINY, *files]


@pytest.fixture
def translate(call, run_dir, share_translators):
    return functools.partial(call, "translate.py", f"--run_dir={run_dir}")


@pytest.fixture
def evaluate(call, run_dir, share_translators):
    return functools.partial(call, "evaluate.py", f"--run_dir={run_dir}")


@pytest.fixture(scope="session")
def refused():
    """Checks that a command said in one line what is wrong."""

    def check(result, *parts):
        assert result.code == 1, result
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        name, _, message = lines[0].partition(": ")
        assert name.endswith(".py")
        for part in parts:
            assert str(part) in message

    return check
