"""What it takes to lay out and plan an epoch over made-up lengths of very many pairs."""

import pathlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data import Bucketing, choose_buckets, plan_epoch
from keras_transformer.data.length_clusters import length_histogram
from keras_transformer.data.windows import SentenceLengths

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
    lengths = SentenceLengths(source), SentenceLengths(target, extra=1)
    parts = np.array([0, pairs])
    histogram, line = _timed("histogram (once, with the tokens)", length_histogram, *lengths, parts)
    yield line._replace(result=f"{len(histogram.keys):,} bins")

    def begin() -> Bucketing:
        bucketing = choose_buckets(
            *lengths, batch_tokens=_BATCH_TOKENS, part_offsets=parts, histogram=histogram
        )
        next(plan_epoch(bucketing, seed=_SEED))
        return bucketing

    bucketing, line = _timed("buckets, plan, first batch", begin)
    batches = sum(bucketing.batches)
    yield line._replace(
        result=f"{len(bucketing.windows)} windows, {len(bucketing.buckets)} shapes, "
        f"{batches:,} batches, {bucketing.real_share:.1%} real tokens"
    )
    place = int(_PLACE * batches)
    _, line = _timed(
        "place in a later epoch",
        lambda: next(plan_epoch(bucketing, epoch=2, seed=_SEED, first_batch=place)),
    )
    yield line._replace(result=f"batch {place:,} of epoch 3")
    if whole_epoch:
        times, line = _timed("whole epoch", _occurrences, bucketing, pairs)
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


def _occurrences(bucketing: Bucketing, pairs: int) -> npt.NDArray[np.uint8]:
    times = np.zeros(pairs, np.uint8)
    for batch in plan_epoch(bucketing, seed=_SEED):
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
