"""The engines that train, each in a process of its own.

The parent tells a process how many steps to make, and it answers how long they took and how many
real target symbols they had.
"""

import dataclasses
from typing import NamedTuple

from benchmarks import processes
from benchmarks.batches import BatchKind

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
        self._process = processes.Process(module, dataclasses.asdict(job), environment)
        self.version: str = self._process.greeting["version"]

    def run(self, steps: int) -> Round:
        """Makes some steps."""
        self._process.send(steps)
        return Round(steps, **self._process.answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


class Channel(processes.Channel):
    """The measuring process's end of the pipes."""

    def steps_wanted(self) -> int:
        """Waits for the parent; 0 means that it has gone."""
        return int(self.request() or 0)

    def report(self, seconds: float, tokens: int) -> None:
        self.answer(seconds=seconds, tokens=tokens)


def job_of_process() -> Job:
    """Returns what the parent gave this process to do."""
    return Job(**processes.given_job())
