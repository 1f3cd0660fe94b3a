"""Engines that are measured side by side: their processes, their turns and the table.

Each engine runs in a process of its own. The engines take turns in a random order, so that a slow
minute of the machine slows all of them. A process answers each line of JSON that it is sent with
another line; in between it sleeps.
"""

import functools
import json
import math
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.errors import InputError

_HERE = pathlib.Path(__file__).resolve().parent
_SEED = 1
# What an engine sees of the machine's GPUs: none, or those that this process sees, by default the
# first. This process, which only writes models and waits, hides them from itself.
_VISIBLE = {"cpu": "-1", "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}

# What a process did in a turn. "units": tokens or sentences; "count": steps or sentences;
# "latencies": seconds of each batch; and what `Channel.stop` returns.
Turn = dict[str, Any]


class Engine:
    """Processes of one engine that work at the same time.

    Args:
        module: the file of this folder that they run.
        job: what they do, as JSON has it; on which "device", the CPU by default.
        environment: variables that they need from the start.
        processes: how many.
    """

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        processes: int = 1,
    ) -> None:
        self._name = f"{module}.py"
        paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "CUDA_VISIBLE_DEVICES": _VISIBLE[job.get("device", "cpu")],
            **environment,
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(_HERE / self._name), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | variables,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends this process
            )
            for _ in range(processes)
        ]

    @functools.cached_property
    def greetings(self) -> list[dict[str, Any]]:
        """What each process says when it is ready; waits until they are."""
        return list(map(self._answer, self._processes))

    def run(self, *requests: Any) -> Turn:
        """Sends each of the first processes a request, and adds up what they answer."""
        _ = self.greetings  # each process says it before its first answer
        asked = self._processes[: len(requests)]
        for process, request in zip(asked, requests, strict=True):
            print(json.dumps(request), file=process.stdin, flush=True)
        answers = list(map(self._answer, asked))
        turn = {
            name: sum((answer[name] for answer in answers), type(value)())
            for name, value in answers[0].items()
        }
        turn["seconds"] = max(answer["seconds"] for answer in answers)
        return turn

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self._name} ended without an answer; see the error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Channel:
    """The measured process's end, with a clock that starts at each request."""

    def __init__(self, version: str, **greeting: Any) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever else is printed
        self.answer(version=version, **greeting)

    def request(self) -> Any:
        """Waits for the parent; None means that it has ended."""
        request = json.loads(sys.stdin.readline() or "null")
        self.start()
        return request

    def start(self) -> None:
        """Starts the clock again, after work that is not measured."""
        self._usage, self._start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Returns the time and minor page faults since the start, and the peak of memory."""
        seconds, usage = time.perf_counter() - self._start, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "seconds": seconds,
            "faults": usage.ru_minflt - self._usage.ru_minflt,
            "system_seconds": usage.ru_stime - self._usage.ru_stime,
            "peak_megabytes": peak_megabytes(),
        }

    def answer(self, **values: Any) -> None:
        print(json.dumps(values), file=self._out, flush=True)


def peak_megabytes() -> float:
    """Returns the largest resident memory of this process up to now."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # Linux's ru_maxrss has that of the parent, too, at the time of the fork
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def check_gpu(job: Mapping[str, Any], is_seen: bool, library: str) -> None:
    """Raises `InputError` if a job is for a GPU and the library that does it sees none."""
    if job["device"] == "gpu" and not is_seen:
        raise InputError(
            f"{library} sees no GPU; install its build for CUDA, or measure with --device=cpu"
        )


def take_turns(tasks: Sequence[Callable[[int], Turn]], rounds: int) -> list[tuple[Turn, ...]]:
    """Calls each task once a round, in an order that is random in each, and returns its turns.

    Args:
        tasks: are called with the round's number.
        rounds: turns of each task.
    """
    order, generator = list(range(len(tasks))), random.Random(_SEED)
    turns: list[list[Turn]] = [[] for _ in tasks]
    for number in range(rounds):
        generator.shuffle(order)
        for place in order:
            turns[place].append(tasks[place](number))
    return list(map(tuple, turns))


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the 95 % confidence interval of the median; None for fewer than six values.

    It lies between two of the sorted values, whatever their distribution: the median exceeds the
    k smallest of n with the probability that n fair coins show fewer than k heads.
    """
    n, outside = len(values), 0.0
    for k in range(n // 2 + 1):
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 0.05:
            ordered = sorted(values)
            return (ordered[k - 1], ordered[-k]) if k else None
    return None


def make_row(
    unit: str, case: Mapping[str, Any], turns: Sequence[Turn], **values: Any
) -> dict[str, Any]:
    """Returns a row of the table: the median rate of an engine's turns and what else was measured.

    Args:
        unit: "tokens" or "sentences".
        case: what was measured: engine, preset, batch, ...
        turns: of the engine.
        values: other figures.

    Returns:
        Also the 95 % confidence interval of the rate, from "low" to "high", and the rate of each
        turn, "rounds". Page faults and system time are of a step or sentence.
    """
    rates = [turn["units"] / turn["seconds"] for turn in turns]
    low, high = confidence_interval(rates) or (None, None)
    count = sum(turn["count"] for turn in turns)
    return {
        **case,
        f"{unit}_per_second": round(statistics.median(rates), 2),
        "low": low,
        "high": high,
        "faults": sum(turn["faults"] for turn in turns) / count,
        "system_seconds": sum(turn["system_seconds"] for turn in turns) / count,
        "peak_megabytes": max(turn["peak_megabytes"] for turn in turns),
        **values,
        "rounds": rates,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as an aligned table: text left, numbers right, "-" for what a row lacks."""
    columns = {name: value for row in rows for name, value in row.items()}
    names = [name for name, value in columns.items() if not isinstance(value, list)]
    lines = [[name.replace("_", " ") for name in names]]
    lines += [[_format(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_text = [isinstance(rows[0].get(name), str) for name in names]
    return "\n".join(
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, is_text, strict=True)
        )
        for line in lines
    )


def _format(value: Any) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
