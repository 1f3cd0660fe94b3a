"""Processes that measure: one for each engine, so that their threads do not disturb each other.

The parent tells a process how many steps to make, and it answers how long they took and how many
real target symbols they had. In between it sleeps, so that engines can take turns.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

from benchmarks.batches import BatchKind

_HERE = pathlib.Path(__file__).resolve().parent
# The C library gives large blocks of memory back to the system when they are free, and the system
# clears every page that it hands out again; keeping them made PyTorch a quarter faster.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}
# Threads of OpenMP wait in a loop for each other, which is right where they have the cores to
# themselves; beside other programs PyTorch was twice as fast with threads that sleep.
_SLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}

# The module of this folder that an engine runs, and the environment that it needs from the start.
# Ours runs as scripts/train.py does.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "ours": ("ours", {}),
    "pytorch": ("pytorch", _KEEP_MEMORY),
    "pytorch_sleep": ("pytorch", _KEEP_MEMORY | _SLEEP),
    "input_pipeline": ("input_pipeline", {}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What an engine is to run.

    Attributes:
        engine: one of `ENGINES`.
        preset, precision: of the model.
        batch: text that `BatchKind.parse` reads.
        vocabulary_size: symbols, V.
        corpus: file of the tokenized corpus; None where all batches are of random ids.
        threads: cores that the engine may use.
    """

    engine: str
    preset: str
    precision: str
    batch: str
    vocabulary_size: int
    corpus: str | None
    threads: int

    @property
    def kind(self) -> BatchKind:
        return BatchKind.parse(self.batch)


class Round(NamedTuple):
    """Some steps: how many, how long they took and the real target symbols that they had."""

    steps: int
    seconds: float
    tokens: int


class Engine:
    """A process that runs a job, in rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        module, environment = ENGINES[job.engine]
        paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / f"{module}.py"), json.dumps(dataclasses.asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables | environment,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this process
        )
        self.version = self._answer()["version"]

    def run(self, steps: int) -> Round:
        """Makes some steps."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        return Round(steps, **self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self.job} ended without an answer; see the error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Channel:
    """The measuring process's end of the pipes."""

    def __init__(self, version: str) -> None:
        """Says that the process is ready, and which version of its libraries it has."""
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever else is printed
        self._send(version=version)

    def steps_wanted(self) -> int:
        """Waits for the parent; 0 means that it has gone."""
        return int(sys.stdin.readline() or 0)

    def report(self, seconds: float, tokens: int) -> None:
        self._send(seconds=seconds, tokens=tokens)

    def _send(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


def job_of_process() -> Job:
    """Returns what the parent gave this process to do."""
    return Job(**json.loads(sys.argv[1]))
