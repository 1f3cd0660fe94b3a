"""The measuring end of decoding: what engines have in common."""

import dataclasses
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from benchmarks.processes import Channel, given_job
from benchmarks.sentences import Sentences

BEAM_SIZE = 4
# Translations are ranked by their log-probability: each engine has another length penalty.
LENGTH_PENALTY = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What a process is to run.

    Attributes:
        model: folder of the model in the engine's format.
        sentences: file that `Sentences.save` wrote.
        at_once: batches that it is to translate at the same time.
        threads: cores for each of them.
    """

    model: str
    sentences: str
    at_once: int
    threads: int


class Translates(Protocol):
    """An engine with a model."""

    version: str

    def prepare(self, sentences: list[list[int]]) -> Any:
        """Returns what `translate` takes for the ids of some sentences; not timed."""

    def translate(self, inputs: Any) -> Any:
        """Translates a batch; this is what is timed."""

    def ids(self, inputs: Any, outputs: Any) -> list[list[int]]:
        """Returns the symbols of each best translation, without END; not timed."""


def job_of_process() -> tuple[Job, Sentences]:
    """Returns what the parent gave this process to do."""
    job = Job(**given_job())
    return job, Sentences.load(pathlib.Path(job.sentences))


def answer_requests(engine: Translates, sentences: Sentences, load_seconds: float) -> None:
    """Translates what the parent asks for until it has gone.

    A request has "batches", each a list of numbers of sentences; "at_once", how many of them to
    translate at the same time; "with_ids", whether to send the translations back. The answer has
    "latencies", the seconds that each batch took; "peak_bytes", the most memory that the process
    has had; "ids" of the translations, in the order of the batches' sentences.
    """
    channel = Channel(engine.version, load_seconds=load_seconds)
    while request := channel.request():
        inputs = [
            engine.prepare([sentences.ids[number] for number in batch])
            for batch in request["batches"]
        ]
        with ThreadPoolExecutor(request["at_once"]) as pool:
            timed = list(pool.map(lambda batch: _timed(engine, batch), inputs))
        ids: list[list[int]] = []
        if request["with_ids"]:
            for batch, (_, outputs) in zip(inputs, timed, strict=True):
                ids += engine.ids(batch, outputs)
        latencies = [seconds for seconds, _ in timed]
        channel.answer(latencies=latencies, peak_bytes=_peak_bytes(), ids=ids)


def _timed(engine: Translates, inputs: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    outputs = engine.translate(inputs)
    return time.perf_counter() - start, outputs


def _peak_bytes() -> int | None:
    """Returns the largest resident memory up to now; None where the system does not tell."""
    status = pathlib.Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
