"""Text tokenized shard by shard: by all cores, by several machines, and resumed where it stopped.

A shard is 50,000 pairs of one corpus. Each becomes a file in a folder that stays until the corpus
is whole, so a process that is killed loses only the shards that were under way. Which process makes
a shard changes none of its bytes.
"""

import collections
import concurrent.futures
import io
import itertools
import json
import multiprocessing
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.atomic_files import write_atomically
from keras_transformer.data.corpus import PairSource, ParallelText
from keras_transformer.data.filters import LengthFilter
from keras_transformer.data.tokenized import TokenizedCorpus, id_type
from keras_transformer.errors import InputError
from keras_transformer.host import end_with_parent
from keras_transformer.text import Vocabulary

_CHUNK_PAIRS = 10_000  # tokenized at a time
_SHARD_CHUNKS = 5
VOCABULARIES = ("source.model", "target.model")  # beside the shards, for other workers

Shard = list[ParallelText]  # its text, in chunks
Progress = Callable[[int], None]


class ShardMaker(NamedTuple):
    """Tokenizes the shards of text into files.

    Attributes:
        folder: of the files; made when there are several shards.
        vocabularies: of source and target.
        length_filter: says which pairs are left out.
        processes: how many tokenize at once.
    """

    folder: pathlib.Path
    vocabularies: tuple[Vocabulary, Vocabulary]
    length_filter: LengthFilter
    processes: int = 1

    def tokenize(
        self, part: int, source: PairSource, progress: Progress, worker: tuple[int, int] = (0, 1)
    ) -> Iterator[TokenizedCorpus]:
        """Yields the ids of a corpus in order.

        Args:
            part: index of the corpus, which names its files.
            source: the corpus. One of a single shard is tokenized at once, without a file.
            progress: called with the number of pairs that have been tokenized or found.
            worker: which share of the shards to make before the missing ones of the others: its
                index and the number of workers that share the folder.
        """
        shards = read_shards(source)
        first, second = next(shards, []), next(shards, None)
        if second is None:
            sizes = itertools.accumulate(map(_size, first))
            for pairs, ids in zip(sizes, self._ids(first), strict=True):
                yield ids
                progress(pairs)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if worker[1] > 1:  # the others need them
            for name, vocabulary in zip(VOCABULARIES, self.vocabularies, strict=True):
                vocabulary.save(self.folder / name)
        shards = itertools.chain([first, second], shards)
        for share in (worker, (0, 1)):  # then what the others have not made
            count = self.make_missing(part, shards, progress, share)
            if all(self._shard_path(part, number).exists() for number in range(count)):
                break
            shards = read_shards(source)
        yield from (self._load(part, number) for number in range(count))

    def make_missing(
        self, part: int, shards: Iterable[Shard], progress: Progress, worker: tuple[int, int]
    ) -> int:
        """Makes those of a worker's shards that are missing; returns the number of all shards."""
        pending: collections.deque[concurrent.futures.Future[int]] = collections.deque()
        index, workers = worker
        number, done = -1, 0

        def collect(keep: int) -> None:
            nonlocal done
            while len(pending) > keep:
                done += pending.popleft().result()
                progress(done)

        try:
            with self._executor() as executor:
                for number, shard in enumerate(shards):
                    if number % workers == index and not self._shard_path(part, number).exists():
                        pending.append(executor.submit(self.write, part, number, shard))
                        collect(self.processes + 1)  # bounds the text in memory
                    else:
                        done += sum(map(_size, shard))
                collect(0)
        except BrokenProcessPool as error:
            raise InputError(
                "a process that tokenizes died, perhaps for lack of memory; start again, which "
                "resumes from the shards that are done, with fewer cores (taskset)"
            ) from error
        return number + 1

    def write(self, part: int, number: int, shard: Shard) -> int:
        """Tokenizes a shard into its file; returns its number of pairs."""
        chunks = list(self._ids(shard, num_threads=1))  # other processes have the other cores
        arrays: dict[str, Any] = {}
        for side, vocabulary in zip(("source", "target"), self.vocabularies, strict=True):
            ids = np.concatenate([getattr(chunk, f"{side}_ids") for chunk in chunks])
            arrays[f"{side}_ids"] = ids.astype(id_type(vocabulary.size))
            offsets = [np.diff(getattr(chunk, f"{side}_offsets")) for chunk in chunks]
            arrays[f"{side}_offsets"] = np.cumsum([0, *np.concatenate(offsets)])
        dropped: collections.Counter[str] = collections.Counter()
        for chunk in chunks:
            dropped.update(chunk.dropped)
        content = io.BytesIO()
        np.savez(content, dropped=json.dumps(dropped), **arrays)
        write_atomically(self._shard_path(part, number), content.getvalue())
        return sum(map(_size, shard))

    def _ids(self, shard: Shard, **options: Any) -> Iterator[TokenizedCorpus]:
        for text in shard:
            source, target = self.vocabularies
            source_ids = source.encode(text.source, **options)
            target_ids = target.encode(text.target, **options)
            yield TokenizedCorpus.from_ids_or_empty(source_ids, target_ids, self.length_filter)

    def _load(self, part: int, number: int) -> TokenizedCorpus:
        path = self._shard_path(part, number)
        try:
            with np.load(path) as arrays:
                values = dict(arrays)
        except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is damaged ({error}); delete it and start again") from error
        dropped = json.loads(str(values.pop("dropped")))
        parts = np.array([0, len(values["source_offsets"]) - 1])
        return TokenizedCorpus(**values, part_offsets=parts, dropped=dropped)

    def _shard_path(self, part: int, number: int) -> pathlib.Path:
        return self.folder / f"{part}-{number:06}.npz"

    def _executor(self) -> concurrent.futures.Executor:
        if self.processes == 1:
            return concurrent.futures.ThreadPoolExecutor(1)
        spawn = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
        return concurrent.futures.ProcessPoolExecutor(
            self.processes, mp_context=spawn, initializer=end_with_parent
        )


def read_shards(source: PairSource) -> Iterator[Shard]:
    """Yields the text of a corpus, a shard of 50,000 pairs at a time."""
    pairs = iter(source)
    while shard := list(itertools.islice(_chunks(pairs), _SHARD_CHUNKS)):
        yield shard


def _chunks(pairs: Iterator[tuple[str, str]]) -> Iterator[ParallelText]:
    while (text := ParallelText.from_pairs(itertools.islice(pairs, _CHUNK_PAIRS))).source:
        yield text


def _size(text: ParallelText) -> int:
    return len(text.source)
