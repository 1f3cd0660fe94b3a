"""Token ids on disk: text is tokenized once, and read back as long as nothing has changed.

A cache folder belongs to one run, or is shared by several. In it:

    tokens-<hash>/        a corpus; the hash is of all inputs: text, vocabularies and filters
        manifest.json     inputs, type and length of each array, counts of dropped pairs
        source_ids, source_offsets, target_ids, target_offsets
                          the arrays of `TokenizedCorpus`, little-endian, memory-mapped to be read
    shards-<hash>/        while a large text is tokenized: finished shards
        0-000001.npz      shard 1 of corpus 0: the ids of 50,000 pairs

A process that is killed loses only the shards that it was working on. A shard has the same bytes
whichever process makes it, so cores and the workers of a cluster (`ApacheBeamShards`) can share the
work. A pair takes 16 bytes and 2 for each token (4 where a
vocabulary has more than 65,536).
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpus import LengthFilter, PairSource, ParallelText, TokenizedCorpus
from keras_transformer.errors import InputError, needs_extra, writing
from keras_transformer.files import atomic_folder, write_atomically
from keras_transformer.host import end_with_parent, num_cores, without_ctrl_c
from keras_transformer.text import Vocabulary

ReportPairs = Callable[[int], None]  # called with the number of pairs so far

_FORMAT = 4
_TOKENS, _SHARDS = "tokens-", "shards-"
_MANIFEST = "manifest.json"
_SIDES = ("source", "target")
_SHARD_PAIRS = 50_000


def cached_corpus(
    folder: str | os.PathLike[str],
    sources: Sequence[PairSource],
    vocabularies: tuple[Vocabulary, Vocabulary],
    *,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
    progress: ReportPairs = lambda num_pairs: None,
    keep_others: bool = True,
    processes: int | None = None,
    make_shards: "Callable[[ShardMaker, Sequence[PairSource]], None] | None" = None,
) -> TokenizedCorpus:
    """Opens the tokenized corpus of these inputs; tokenizes the text first if there is none.

    Args:
        folder: the cache folder.
        sources: the corpora, which become the parts of the result in this order.
        vocabularies: of the source and of the target.
        max_length: see `LengthFilter`.
        max_length_ratio: see `LengthFilter`.
        progress: called with the number of pairs tokenized so far, after each shard of text.
        keep_others: whether to keep the corpora of other inputs in the folder.
        processes: how many tokenize a large text; None means one for each core. As with all spawned
            processes, a script must then call this under `if __name__ == "__main__"`.
        make_shards: makes shards elsewhere first, as `ApacheBeamShards` does; missing ones are made
            here.

    Raises:
        InputError: a text cannot be read, changes meanwhile, or has no usable pair; or the folder
            cannot be written, for example on a full disk. Finished shards stay.

    Example:
        >>> corpus = cached_corpus("run/tokens", [TsvFile("train.tsv")], (vocabulary, vocabulary))
    """
    length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
    inputs, name = _inputs(sources, vocabularies, length_filter)
    path = pathlib.Path(folder) / f"{_TOKENS}{name}"
    shards = path.with_name(f"{_SHARDS}{name}")
    if (corpus := open_corpus(path)) is not None:
        return corpus
    maker = ShardMaker(shards, vocabularies, length_filter, processes or num_cores())
    shutil.rmtree(path, ignore_errors=True)  # a damaged one
    try:
        with (
            writing(f"the tokenized text to {os.fspath(folder)}"),
            atomic_folder(path) as aside,
        ):
            if make_shards is not None:
                shards.mkdir(parents=True, exist_ok=True)
                make_shards(maker._replace(processes=1), sources)
            write_corpus(aside, inputs, sources, maker, progress)
    except InputError:
        # Another run may have made the same one meanwhile, and removed the shards.
        if open_corpus(path) is None:
            raise
    unneeded = {shards}
    if not keep_others:
        unneeded.update(path.parent.glob(f"{_TOKENS}*"), path.parent.glob(f"{_SHARDS}*"))
    for other in unneeded - {path}:
        shutil.rmtree(other, ignore_errors=True)
    if (corpus := open_corpus(path)) is None:
        raise InputError(f"{path} cannot be read just after it was written; check that disk")
    return corpus


@dataclasses.dataclass(frozen=True)
class ApacheBeamShards:
    """Makes shards for `cached_corpus` in an Apache Beam pipeline; needs the extra `beam`.

    All workers of the pipeline read the text from, and write the shards to, a file system that they
    share, and have this package installed. Each of them reads all text and tokenizes its shares.

    Args:
        options: of the pipeline, such as ["--runner=FlinkRunner", "--flink_master=host:8081"].
        shares: number of parts of the work, a few for each worker.

    Raises:
        InputError: Apache Beam is not installed, or `shares` is below 1.

    Example:
        >>> make_shards = ApacheBeamShards(["--runner=DirectRunner"])
        >>> corpus = cached_corpus(
        ...     "tokens", sources, vocabularies, make_shards=make_shards
        ... )  # doctest: +SKIP
    """

    options: Sequence[str] = ()
    shares: int = 100

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise InputError(f"shares must be at least 1, got {self.shares}")

    def __call__(self, maker: "ShardMaker", sources: Sequence[PairSource]) -> None:
        with needs_extra("beam"):
            import apache_beam
            from apache_beam.options.pipeline_options import PipelineOptions
        shares = self.shares

        def make(share: int) -> None:
            for part, source in enumerate(sources):
                maker.make_missing(part, cut_into_shards(source), share=(share, shares))

        with apache_beam.Pipeline(options=PipelineOptions(list(self.options))) as pipeline:
            created = pipeline | apache_beam.Create(range(shares))
            _ = created | apache_beam.Reshuffle() | apache_beam.Map(make)


class ShardMaker(NamedTuple):
    """Tokenizes the shards of text into files.

    Attributes:
        folder: of the files; made when there are several shards.
        vocabularies: of source and target.
        length_filter: which pairs to drop.
        processes: number of processes that tokenize at once.
    """

    folder: pathlib.Path
    vocabularies: tuple[Vocabulary, Vocabulary]
    length_filter: LengthFilter
    processes: int = 1

    def tokenize(
        self, part: int, source: PairSource, progress: ReportPairs
    ) -> Iterator[TokenizedCorpus]:
        """Yields the ids of a corpus in order.

        Args:
            part: index of the corpus, which names its files.
            source: the corpus. One of a single shard is tokenized at once, without a file.
            progress: called with the number of pairs that have been tokenized or found.
        """
        shards = cut_into_shards(source)
        first = list(itertools.islice(shards, 2))
        if len(first) < 2:
            for shard in first:
                yield self._ids(shard)
                progress(len(shard.source))
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        count = self.make_missing(part, itertools.chain(first, shards), progress)
        yield from (self._load(part, number) for number in range(count))

    def make_missing(
        self,
        part: int,
        shards: Iterable[ParallelText],
        progress: ReportPairs = lambda num_pairs: None,
        share: tuple[int, int] = (0, 1),
    ) -> int:
        """Makes the missing shards of a share; returns the number of all shards.

        Args:
            part, progress: as in `tokenize`.
            shards: the text.
            share: index of the share, and number of shares.
        """
        pending: collections.deque[concurrent.futures.Future[int]] = collections.deque()
        index, shares = share
        number, done = -1, 0

        def collect(keep: int) -> None:
            nonlocal done
            while len(pending) > keep:
                done += pending.popleft().result()
                progress(done)

        executor: concurrent.futures.Executor
        if self.processes == 1:
            executor = concurrent.futures.ThreadPoolExecutor(1)
        else:
            executor = concurrent.futures.ProcessPoolExecutor(
                self.processes,
                mp_context=multiprocessing.get_context("spawn"),  # TensorFlow's threads cannot fork
                initializer=end_with_parent,
            )
        try:
            with executor:
                for number, shard in enumerate(shards):
                    if number % shares == index and not self._shard_path(part, number).exists():
                        with without_ctrl_c():  # this may start a process
                            pending.append(executor.submit(self.write, part, number, shard))
                        collect(self.processes + 1)  # bounds the text in memory
                    else:
                        done += len(shard.source)
                collect(0)
        except BrokenProcessPool as error:
            raise InputError(
                "a process that tokenizes died: if a script of yours started it, put the call "
                'under `if __name__ == "__main__":`; if memory was short, start again with fewer '
                "cores (taskset): finished shards are kept"
            ) from error
        return number + 1

    def write(self, part: int, number: int, shard: ParallelText) -> int:
        """Tokenizes a shard into its file; returns its number of pairs."""
        corpus = self._ids(shard, num_threads=1)  # other processes have the other cores
        arrays: dict[str, Any] = {}
        for side, vocabulary in zip(_SIDES, self.vocabularies, strict=True):
            arrays[f"{side}_ids"] = getattr(corpus, f"{side}_ids").astype(_id_type(vocabulary))
            arrays[f"{side}_offsets"] = getattr(corpus, f"{side}_offsets")
        content = io.BytesIO()
        np.savez(content, dropped=json.dumps(corpus.dropped), **arrays)
        write_atomically(self._shard_path(part, number), content.getvalue())
        return len(shard.source)

    def _ids(self, shard: ParallelText, **options: Any) -> TokenizedCorpus:
        source, target = (
            vocabulary.encode(sentences, **options)
            for vocabulary, sentences in zip(self.vocabularies, shard, strict=True)
        )
        limits = dataclasses.asdict(self.length_filter)
        return TokenizedCorpus.from_ids(source, target, **limits, may_be_empty=True)

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


def cut_into_shards(source: PairSource) -> Iterator[ParallelText]:
    """Yields the text of a corpus, a shard of 50,000 pairs at a time."""
    pairs = iter(source)
    while (shard := ParallelText.from_pairs(itertools.islice(pairs, _SHARD_PAIRS))).source:
        yield shard


def open_corpus(path: pathlib.Path) -> TokenizedCorpus | None:
    """Maps the arrays into memory; None if they are missing or incomplete."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        arrays = {name: _map(path / name, *array) for name, array in manifest["arrays"].items()}
        part_offsets = np.array(manifest["part_offsets"], np.int64)
        return TokenizedCorpus(
            **arrays,
            part_offsets=part_offsets,
            dropped=manifest["dropped"],
            text=_digest(manifest["inputs"]["sources"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_corpus(
    folder: pathlib.Path,
    inputs: dict[str, Any],
    sources: Sequence[PairSource],
    maker: ShardMaker,
    progress: ReportPairs,
) -> None:
    """Tokenizes the text into the files of a corpus."""
    types = {f"{side}_offsets": "<i8" for side in _SIDES} | {
        f"{side}_ids": _id_type(vocabulary)
        for side, vocabulary in zip(_SIDES, maker.vocabularies, strict=True)
    }
    lengths = dict.fromkeys(types, 0)
    part_offsets = [0]
    all_dropped: list[dict[str, int]] = []
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in types}

        def append(name: str, values: npt.NDArray[Any]) -> None:
            files[name].write(values.astype(types[name]).data)
            lengths[name] += len(values)

        for side in _SIDES:
            append(f"{side}_offsets", np.zeros(1, np.int64))
        for part, source in enumerate(sources):
            dropped: list[dict[str, int]] = []
            before = part_offsets[-1] + sum(sum(counts.values()) for counts in all_dropped)
            report = lambda pairs, before=before: progress(before + pairs)  # noqa: E731
            for chunk in maker.tokenize(part, source, report):
                for side in _SIDES:
                    begin = lengths[f"{side}_ids"]
                    append(f"{side}_ids", getattr(chunk, f"{side}_ids"))
                    append(f"{side}_offsets", getattr(chunk, f"{side}_offsets")[1:] + begin)
                dropped.append(chunk.dropped)
            # By what the name of the folder was made of: text may change before it is read, too.
            if source.identity != inputs["sources"][part]:
                shutil.rmtree(maker.folder, ignore_errors=True)  # shards of other text
                raise InputError(f"{source} changed while it was read; start again")
            part_offsets.append(lengths["source_offsets"] - 1)
            if part_offsets[-1] == part_offsets[-2]:
                raise maker.length_filter.nothing_left(_sum_counts(dropped), str(source))
            all_dropped += dropped
    manifest = {
        "inputs": inputs,
        "arrays": {name: (types[name], lengths[name]) for name in types},
        "part_offsets": part_offsets,
        "dropped": _sum_counts(all_dropped),
    }
    write_atomically(folder / _MANIFEST, json.dumps(manifest, indent=2))


def _map(path: pathlib.Path, dtype: str, length: int) -> npt.NDArray[Any]:
    """Maps a file into memory; `ValueError` where its size is not that of the array."""
    if path.stat().st_size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path} is damaged")
    return np.asarray(np.memmap(path, dtype, "r"))  # slices of np.memmap itself are slow


def _id_type(vocabulary: Vocabulary) -> str:
    return "<u2" if vocabulary.size <= 1 << 16 else "<i4"


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for part in counts:
        total.update(part)
    return dict(total)


def _inputs(
    sources: Sequence[PairSource], vocabularies: Sequence[Vocabulary], length_filter: LengthFilter
) -> tuple[dict[str, Any], str]:
    """Returns the inputs of a corpus as JSON values, and a hash of them."""
    inputs = {
        "format": _FORMAT,
        "sources": [source.identity for source in sources],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        **dataclasses.asdict(length_filter),
    }
    return inputs, _digest(inputs)


def _digest(values: Any) -> str:
    """Returns a hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
