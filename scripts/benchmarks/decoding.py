"""Lets the engines that decode take turns, each in several settings of workers and threads."""

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.decoding_process import Job
from benchmarks.decoding_report import DecodingRow
from benchmarks.processes import Process
from benchmarks.sentences import Sentences

# Weights in pages of 2 MB, as far as the system has them; it does nothing for CTranslate2.
_LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# The module of this folder that an engine runs, and the environment that it needs from the start.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    # oneDNN prepares itself anew for every shape, and these change from step to step.
    "ours": ("our_decoding", {"TF_ENABLE_ONEDNN_OPTS": "0", **_LARGE_PAGES}),
    "ours_xla": (
        "our_decoding",
        {"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512", **_LARGE_PAGES},
    ),
    "ctranslate2": ("ctranslate2_decoding", {}),
}
_WORKS_AT_ONCE = "ctranslate2"  # has workers of its own; the others have a process for each

_MOST_SINGLES, _FEWEST_SINGLES = 20, 3  # sentences of a round that are translated one at a time
_REST_SECONDS = 0.25  # between turns, until threads that wait in a loop for work fall asleep


class Turn(NamedTuple):
    """Some batches: what the clock on the wall said, and how long each of them took."""

    num_sentences: int
    seconds: float
    latencies: list[float]


class Team:
    """The workers of one engine in one setting, which work at the same time.

    Args:
        engine: one of `ENGINES`.
        model: its folder.
        sentences: the file of the sentences.
        workers: batches that are translated at the same time.
        threads: cores for each of them.

    Attributes:
        load_seconds: how long the slowest worker took to load the model.
        first_seconds: how long its first batch took, compilation included.
        translations: of the batches that it warmed up with.
        peak_bytes: most memory of all workers together; None where the system does not tell.
    """

    def __init__(
        self, engine: str, model: str, sentences: pathlib.Path, workers: int, threads: int
    ) -> None:
        self.engine, self.workers, self.threads = engine, workers, threads
        self._at_once = workers if engine == _WORKS_AT_ONCE else 1
        job = Job(model=model, sentences=str(sentences), at_once=self._at_once, threads=threads)
        module, environment = ENGINES[engine]
        self._processes: list[Process] = []
        try:
            for _ in range(workers // self._at_once):
                self._processes.append(Process(module, dataclasses.asdict(job), environment))
        except BaseException:
            self.close()
            raise
        greetings = [process.greeting for process in self._processes]
        self.version: str = greetings[0]["version"]
        self.load_seconds: float = max(greeting["load_seconds"] for greeting in greetings)
        self.first_seconds = 0.0
        self.translations: list[list[int]] = []
        self.peak_bytes: int | None = None

    def warm_up(self, sentences: Sentences) -> None:
        """Translates every shape of batch once in every worker."""
        batches = sentences.batches()
        if sentences.forced_length is not None:
            batches = batches[:1]
        singles = sentences.one_of_each_length()
        for process in self._processes:
            answer = _ask(process, batches, with_ids=True)
            self.translations = answer["ids"]
            self.first_seconds = max(self.first_seconds, answer["latencies"][0])
            _ask(process, batches * self._at_once, self._at_once)
            _ask(process, singles)

    def translate(self, batches: Sequence[list[int]]) -> Turn:
        """Translates batches, as many at the same time as there are workers."""
        shares = [batches[first :: len(self._processes)] for first in range(len(self._processes))]
        start = time.perf_counter()
        for process, share in zip(self._processes, shares, strict=True):
            process.send(_request(share, self._at_once))
        answers = [process.answer() for process in self._processes]
        seconds = time.perf_counter() - start
        return self._turn(batches, seconds, answers)

    def translate_one_by_one(self, batches: Sequence[list[int]]) -> Turn:
        """Translates batches one after the other in the first worker."""
        answer = _ask(self._processes[0], batches)
        return self._turn(batches, sum(answer["latencies"]), [answer])

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.close()

    def _turn(
        self, batches: Sequence[list[int]], seconds: float, answers: Sequence[dict[str, Any]]
    ) -> Turn:
        peaks = [answer["peak_bytes"] for answer in answers]
        if None not in peaks:
            self.peak_bytes = max(self.peak_bytes or 0, sum(peaks))
        latencies = [latency for answer in answers for latency in answer["latencies"]]
        return Turn(sum(map(len, batches)), seconds, latencies)


def measure(
    preset: str,
    sentences: Sentences,
    models: Mapping[str, str],
    *,
    cores: int,
    rounds: int,
    round_seconds: float,
) -> Iterator[DecodingRow]:
    """Yields two rows for each engine and setting: in batches, and one sentence at a time.

    Args:
        preset: the model's name, for the rows.
        sentences: what to translate.
        models: the model's folder for each engine.
        cores: that an engine may use, as one worker with all or as workers with one each.
        rounds: turns of each engine and setting.
        round_seconds: about how long a turn of the slowest takes.
    """
    path = pathlib.Path(next(iter(models.values()))).with_name("sentences.json")
    sentences.save(path)
    settings = sorted({(1, cores), (cores, 1)})
    with contextlib.ExitStack() as stack:
        teams = []
        for (workers, threads), engine in itertools.product(settings, models):
            team = Team(engine, models[engine], path, workers, threads)
            teams.append(stack.enter_context(contextlib.closing(team)))
            team.warm_up(sentences)
            _check_lengths(team, sentences)
        turns = _take_turns(teams, sentences, rounds, round_seconds)
    for team, (many, singles) in zip(teams, turns, strict=True):
        for turns_of_row, batch in ((many, sentences.batch_size), (singles, 1)):
            yield _row(team, preset, sentences, batch, turns_of_row, _expected(teams))


def _take_turns(
    teams: Sequence[Team], sentences: Sentences, rounds: int, round_seconds: float
) -> list[tuple[list[Turn], list[Turn]]]:
    """Returns for each team its rounds, in batches and one sentence at a time."""
    most_workers = max(team.workers for team in teams)
    trial, single = sentences.batches()[:most_workers], [[0]]
    slowest = max(team.translate(trial).seconds for team in teams)
    count = most_workers * max(1, round(round_seconds / slowest))
    slowest = max(team.translate_one_by_one(single).seconds for team in teams)
    num_singles = min(max(round(round_seconds / slowest), _FEWEST_SINGLES), _MOST_SINGLES)
    batches = sentences.batches_of_round(count)
    results: list[tuple[list[Turn], list[Turn]]] = [([], []) for _ in teams]
    for number in range(rounds):
        singles = sentences.singles_of_round(number, num_singles)
        for team, (many, one_by_one) in zip(teams, results, strict=True):
            time.sleep(_REST_SECONDS)
            many.append(team.translate(batches))
            one_by_one.append(team.translate_one_by_one(singles))
    return results


def _check_lengths(team: Team, sentences: Sentences) -> None:
    lengths = set(map(len, team.translations))
    if sentences.forced_length is not None and lengths != {sentences.forced_length}:
        raise RuntimeError(
            f"{team.engine} was to give {sentences.forced_length} symbols, but gave {lengths}"
        )


def _expected(teams: Sequence[Team]) -> list[list[int]] | None:
    """Returns CTranslate2's translations, if it is there."""
    rivals = [team.translations for team in teams if team.engine == "ctranslate2"]
    return rivals[0] if rivals else None


def _row(
    team: Team,
    preset: str,
    sentences: Sentences,
    batch: int,
    turns: Sequence[Turn],
    expected: list[list[int]] | None,
) -> DecodingRow:
    latencies = [latency for turn in turns for latency in turn.latencies]
    p50, p99 = (1000 * float(np.percentile(latencies, rank)) for rank in (50, 99))
    equal = None
    if expected is not None:
        pairs = zip(team.translations, expected, strict=True)
        equal = sum(ours == theirs for ours, theirs in pairs)
    return DecodingRow(
        engine=team.engine,
        preset=preset,
        sentences=sentences.name,
        batch=batch,
        workers=team.workers,
        threads=team.threads,
        rounds=tuple(turn.num_sentences / turn.seconds for turn in turns),
        latency_rounds_ms=tuple(1000 * float(np.median(turn.latencies)) for turn in turns),
        num_latencies=len(latencies),
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        load_seconds=team.load_seconds,
        first_seconds=team.first_seconds,
        peak_megabytes=None if team.peak_bytes is None else team.peak_bytes / 2**20,
        equal=equal,
        compared=len(team.translations),
        version=team.version,
    )


def _ask(
    process: Process, batches: Sequence[list[int]], at_once: int = 1, *, with_ids: bool = False
) -> dict[str, Any]:
    process.send(_request(batches, at_once, with_ids))
    return process.answer()


def _request(batches: Sequence[list[int]], at_once: int, with_ids: bool = False) -> dict[str, Any]:
    return {"batches": batches, "at_once": at_once, "with_ids": with_ids}
