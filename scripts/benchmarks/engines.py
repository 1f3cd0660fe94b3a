"""Engines that are measured side by side: their processes, their rounds and their rates.

Each engine runs in its own processes. In each round every engine takes one turn, in a random order,
so that a slow minute of the machine slows all of them. A process answers each line of JSON that it
is sent with another line, and sleeps in between.
"""

import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

_FOLDER = pathlib.Path(__file__).resolve().parent
_SEED = 1
# The benchmark itself only writes models and waits, and hides the GPUs from itself.
_GPUS = os.environ.get("CUDA_VISIBLE_DEVICES", "0")

# What an engine did in one round. "units": tokens or sentences; "seconds"; "latencies": seconds of
# each batch; "peak_megabytes".
Turn = dict[str, Any]


class Engine:
    """Processes of one engine that work at the same time.

    Args:
        module: the file of this folder that they run.
        job: what they do, as JSON has it; "device" is "cpu" or "gpu".
        environment: variables that they need from the start.
        processes: how many.
    """

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        environment: Mapping[str, str] = MappingProxyType({}),
        processes: int = 1,
    ) -> None:
        self._name = f"{module}.py"
        variables = {
            "PYTHONPATH": os.pathsep.join([str(_FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
            "CUDA_VISIBLE_DEVICES": _GPUS if job["device"] == "gpu" else "-1",
            **environment,
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(_FOLDER / self._name), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | variables,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends this process
            )
            for _ in range(processes)
        ]

    @functools.cached_property
    def version(self) -> str:
        """The engine's version; waits until all processes are ready."""
        greetings = list(map(self._read, self._processes))
        return str(greetings[0]["version"])

    def run(self, *requests: Any) -> Turn:
        """Sends a request to each of the first processes, and adds up their answers."""
        _ = self.version
        asked = self._processes[: len(requests)]
        for process, request in zip(asked, requests, strict=True):
            print(json.dumps(request), file=process.stdin, flush=True)
        answers = list(map(self._read, asked))
        turn = {
            name: sum((answer[name] for answer in answers), type(value)())
            for name, value in answers[0].items()
        }
        return turn | {"seconds": max(answer["seconds"] for answer in answers)}

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _read(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self._name} ended without an answer; see the error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Channel:
    """The measured process's end, with a clock that starts at each request."""

    def __init__(self, version: str) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever else is printed
        print(json.dumps({"version": version}), file=self._out, flush=True)

    def request(self) -> Any:
        """Waits for the parent; None means that it has ended."""
        request = json.loads(sys.stdin.readline() or "null")
        self.start()
        return request

    def start(self) -> None:
        """Starts the clock again, after work that is not measured."""
        self._start = time.perf_counter()

    def stop(self) -> float:
        """Returns the seconds since the start."""
        return time.perf_counter() - self._start

    def answer(self, **values: Any) -> None:
        values["peak_megabytes"] = peak_megabytes()
        print(json.dumps(values), file=self._out, flush=True)


def peak_megabytes() -> float:
    """Returns the largest resident memory of this process up to now."""
    # Of Linux; ru_maxrss has that of the parent, too, at the time of the fork.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def check_gpu(job: Mapping[str, Any], is_seen: bool, library: str) -> None:
    """Ends the process if a job is for a GPU and the library that does it sees none."""
    if job["device"] == "gpu" and not is_seen:
        sys.exit(f"{library} sees no GPU; install its build for CUDA, or use --device=cpu")


def take_turns(tasks: Sequence[Callable[[int], Turn]], rounds: int) -> list[list[Turn]]:
    """Calls each task once a round with the round's number, and returns the turns of each."""
    order, generator = list(range(len(tasks))), random.Random(_SEED)
    turns: list[list[Turn]] = [[] for _ in tasks]
    for number in range(rounds):
        generator.shuffle(order)
        for place in order:
            turns[place].append(tasks[place](number))
    return turns


def rates(unit: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Returns the median rate of an engine's turns, the rate of each, and the peak of memory."""
    rounds = [turn["units"] / turn["seconds"] for turn in turns]
    return {
        f"{unit}_per_second": round(statistics.median(rounds), 2),
        "peak_megabytes": max(turn["peak_megabytes"] for turn in turns),
        "rounds": rounds,
    }
