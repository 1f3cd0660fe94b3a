"""Lets the engines that train take turns with one model and batch."""

import contextlib
import itertools
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.engines import Engine, Job, Round
from benchmarks.report import Row

_WARM_UP_STEPS = 3


def measure(jobs: Sequence[Job], *, rounds: int, round_seconds: float) -> Iterator[Row]:
    """Lets engines take turns and yields the row of each.

    Args:
        jobs: what they are to run.
        rounds: turns of each.
        round_seconds: about how long a turn of the slowest takes.
    """
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(contextlib.closing(Engine(job))) for job in jobs]
        steps = _warm_up(engines, round_seconds)
        turns = [
            [engine.run(count) for engine, count in zip(engines, steps, strict=True)]
            for _ in range(rounds)
        ]
    for engine, rounds_of_engine in zip(engines, zip(*turns, strict=True), strict=True):
        yield _row(engine, rounds_of_engine)


def _warm_up(engines: Sequence[Engine], round_seconds: float) -> list[int]:
    """Returns how many steps each engine is to make in a round.

    Those that train make as many as each other, so that they see the same batches.
    """
    for engine in engines:
        engine.run(_WARM_UP_STEPS)
    seconds = [engine.run(_WARM_UP_STEPS).seconds / _WARM_UP_STEPS for engine in engines]
    trains = [engine.job.engine != "input_pipeline" for engine in engines]
    slowest = max(itertools.compress(seconds, trains))
    return [
        max(1, round(round_seconds / (slowest if training else own)))
        for own, training in zip(seconds, trains, strict=True)
    ]


def _row(engine: Engine, rounds: Sequence[Round]) -> Row:
    return Row(
        engine=engine.job.engine,
        preset=engine.job.preset,
        precision=engine.job.precision,
        batch=engine.job.batch,
        rounds=tuple(round_.tokens / round_.seconds for round_ in rounds),
        seconds_per_step=statistics.median(round_.seconds / round_.steps for round_ in rounds),
        steps=rounds[0].steps,
        threads=engine.job.threads,
        version=engine.version,
    )
