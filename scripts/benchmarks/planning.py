"""What it takes to lay out and plan an epoch over made-up lengths of very many pairs."""

import dataclasses
import pathlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data import BatchPlan, TokenizedCorpus
from keras_transformer.data.batches import count_lengths

_BATCH_TOKENS = 25_000  # the paper's
_CHUNK = 1 << 22
_PLACE = 0.77  # of the third epoch, where a run resumes
_SEED = 1


class Measurement(NamedTuple):
    """One line of the table: what was done, its seconds and the most memory that it allocated."""

    action: str
    seconds: float
    megabytes: float
    result: str

    def __str__(self) -> str:
        return f"{self.action:<34} {self.seconds:>9.2f} s {self.megabytes:>9.0f} MB   {self.result}"


def measure(folder: pathlib.Path, pairs: int, whole_epoch: bool) -> Iterator[Measurement]:
    """Yields what each part of planning takes.

    Args:
        folder: for the lengths, in files of 16 bytes a pair that are mapped into memory.
        pairs: how many.
        whole_epoch: whether to go through all batches too, to see that each pair occurs once.
    """
    source, target = _offsets(folder, pairs)
    no_ids = np.zeros(0, np.uint16)
    corpus = TokenizedCorpus(
        source_ids=no_ids,
        source_offsets=source,
        target_ids=no_ids,
        target_offsets=target,
        part_offsets=np.array([0, pairs]),
    )
    counts, line = _timed("length counts (once, with the tokens)", count_lengths, corpus)
    yield line._replace(result=f"{np.count_nonzero(counts.pairs.sum((0, 1))):,} cells")
    corpus = dataclasses.replace(corpus, length_counts=counts)

    def begin() -> BatchPlan:
        plan = BatchPlan(corpus, batch_tokens=_BATCH_TOKENS)
        next(plan.epoch(seed=_SEED))
        return plan

    plan, line = _timed("shapes, plan, first batch", begin)
    batches = plan.batches_per_epoch
    yield line._replace(
        result=f"{len(counts.pairs)} windows, {len(plan.shapes)} shapes, "
        f"{batches:,} batches, {plan.real_share:.1%} real tokens"
    )
    place = int(_PLACE * batches)
    _, line = _timed(
        "place in a later epoch", lambda: next(plan.epoch(2, seed=_SEED, first_batch=place))
    )
    yield line._replace(result=f"batch {place:,} of epoch 3")
    if whole_epoch:
        times, line = _timed("whole epoch", _occurrences, plan, pairs)
        once = bool((times == 1).all())
        yield line._replace(result="every pair once" if once else "NOT every pair once")


def _offsets(folder: pathlib.Path, pairs: int) -> list[npt.NDArray[np.int64]]:
    """Writes log-normal lengths, correlated like those of sentences and their translations."""
    random = np.random.default_rng(0)
    paths = [folder / "source", folder / "target"]
    files = [np.memmap(path, np.int64, "w+", shape=(pairs + 1,)) for path in paths]
    ends = [0, 0]
    for first in range(0, pairs, _CHUNK):
        count = min(_CHUNK, pairs - first)
        source = np.exp(random.normal(3, 0.6, count))
        target = source * np.exp(random.normal(0.05, 0.2, count))
        for side, lengths in enumerate((source, target)):
            offsets = ends[side] + np.cumsum(np.clip(lengths, 1, 250).astype(np.int64))
            files[side][first + 1 : first + 1 + count] = offsets
            ends[side] = int(offsets[-1])
    return [np.asarray(np.memmap(path, np.int64, "r")) for path in paths]


def _occurrences(plan: BatchPlan, pairs: int) -> npt.NDArray[np.uint8]:
    times = np.zeros(pairs, np.uint8)
    for batch in plan.epoch(seed=_SEED):
        times[batch.pairs] += 1
    return times


def _timed(action: str, call: Callable[..., Any], *arguments: Any) -> tuple[Any, Measurement]:
    tracemalloc.start()
    start = time.perf_counter()
    try:
        result = call(*arguments)
        seconds = time.perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, Measurement(action, seconds, peak / 1e6, "")
