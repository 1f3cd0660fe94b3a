"""Token ids on disk: text is tokenized once, and read back as long as nothing has changed.

A cache folder belongs to one run, or is shared by several. In it, tokens-<hash>/ is named by a hash
of all inputs and holds the files of `corpus_files.py`. While a large text is tokenized,
shards-<hash>/ beside it holds what is done already, see `token_shards.py`.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
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
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.data.length_clusters import LengthHistogram, length_histogram
from keras_transformer.data.sources import LengthFilter, PairSource, ParallelText
from keras_transformer.data.windows import SentenceLengths, count_windows
from keras_transformer.errors import InputError, writing
from keras_transformer.files import atomic_folder, write_atomically
from keras_transformer.host import end_with_parent, num_cores
from keras_transformer.text import Vocabulary

# A parallel corpus as token ids, in four flat arrays.
#
# Flat arrays with offsets hold half a billion tokens in 1 GB, are sliced without a Python object
# for each sentence, and can be memory-mapped files (see `cache.py`).
#
# Shapes: N pairs of sentences from P corpora.


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedCorpus:
    """Pairs of token sequences: pair n has source_ids[source_offsets[n]:source_offsets[n + 1]].

    Attributes:
        source_ids: int32, or uint16 in files; all source sentences concatenated, each ended by
            EOS_ID.
        source_offsets: int64 [N + 1], where each begins.
        target_ids: int32, or uint16 in files; all target sentences concatenated, without BOS and
            EOS, which batches add.
        target_offsets: int64 [N + 1], where each begins.
        part_offsets: int64 [P + 1]: pairs part_offsets[p]:part_offsets[p + 1] are of corpus p.
        histogram: of the lengths, where it is kept with the ids.
        dropped: number of pairs left out, by reason.

    Example:
        >>> corpus = TokenizedCorpus.from_ids([[5, 6], []], [[7], [8]])
        >>> len(corpus), corpus.dropped["empty"]
        (1, 1)
    """

    source_ids: npt.NDArray[np.integer]
    source_offsets: npt.NDArray[np.int64]
    target_ids: npt.NDArray[np.integer]
    target_offsets: npt.NDArray[np.int64]
    part_offsets: npt.NDArray[np.int64]
    histogram: LengthHistogram | None = None
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_ids(
        cls,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        max_length_ratio: float | None = None,
    ) -> "TokenizedCorpus":
        """Packs sentences, without the pairs that cannot be trained on.

        Args:
            source: token ids of each sentence, without BOS and EOS.
            target: the same for the translations, in the same order.
            max_length: see `LengthFilter`.
            max_length_ratio: see `LengthFilter`.

        Raises:
            InputError: the sides differ in length, or no pair is left.
        """
        length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
        corpus = cls.from_ids_or_empty(source, target, length_filter)
        if not len(corpus):
            raise length_filter.nothing_left(corpus.dropped)
        return corpus

    @classmethod
    def from_ids_or_empty(
        cls,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        length_filter: LengthFilter,
    ) -> "TokenizedCorpus":
        """Does what `from_ids` does, and allows that no pair is left."""
        if len(source) != len(target):
            raise InputError(
                f"source and target must pair up, got {len(source)} and {len(target)} sentences"
            )
        source_lengths, target_lengths = _lengths(source), _lengths(target)
        keep, dropped = length_filter(source_lengths, target_lengths)
        source_offsets = _offsets(source_lengths[keep] + 1)
        ends = source_offsets[1:] - 1
        tokens = np.ones(source_offsets[-1], bool)
        tokens[ends] = False
        source_ids = np.full(source_offsets[-1], EOS_ID, np.int32)
        source_ids[tokens] = _flatten(itertools.compress(source, keep), len(tokens) - len(ends))
        target_offsets = _offsets(target_lengths[keep])
        return cls(
            source_ids=source_ids,
            source_offsets=source_offsets,
            target_ids=_flatten(itertools.compress(target, keep), target_offsets[-1]),
            target_offsets=target_offsets,
            part_offsets=np.array([0, len(ends)]),
            dropped=dropped,
        )

    def __len__(self) -> int:
        """Returns the number of pairs, N."""
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Source tokens of each pair, int64 [N], EOS included."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Target tokens of each pair, int64 [N], EOS included."""
        return np.diff(self.target_offsets) + 1


def id_type(vocabulary_size: int) -> str:
    """Returns the type of token ids in files: two bytes where the vocabulary permits."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<i4"


def pad_ids(ids: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Makes a matrix of sentences, padded with PAD_ID on the right.

    Returns:
        int32 [number of sentences, length of the longest].

    Example:
        >>> pad_ids([[4, 5, 6], [7]]).tolist()
        [[4, 5, 6], [7, 0, 0]]
    """
    lengths = _lengths(ids)
    length = int(lengths.max(initial=0))
    padded = np.full((len(ids), length), PAD_ID, np.int32)
    padded[np.arange(length) < lengths[:, None]] = _flatten(ids, lengths.sum())
    return padded


def gather_rows(
    ids: npt.NDArray[np.integer],
    offsets: npt.NDArray[np.int64],
    pairs: npt.NDArray[np.int64],
    shape: tuple[int, int],
) -> npt.NDArray[np.int32]:
    """Makes a matrix of sentences from a flat array, padded with PAD_ID, int32 [rows, length]."""
    rows, length = shape
    starts = offsets[pairs, None]
    columns = np.arange(length)
    real = columns < offsets[pairs + 1, None] - starts
    padded = np.full((rows, length), PAD_ID, np.int32)
    padded[: len(pairs)][real] = ids[(starts + columns)[real]]
    return padded


def _lengths(sentences: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, sentences), np.int64, len(sentences))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])


def _flatten(sentences: Iterable[Sequence[int]], count: int) -> npt.NDArray[np.int32]:
    return np.fromiter(itertools.chain.from_iterable(sentences), np.int32, count)


# Text tokenized shard by shard: by all cores, by several machines, and resumed where it stopped.
#
# A shard is 50,000 pairs of one corpus. Each becomes a file in a folder that stays until the corpus
# is whole, so a process that is killed loses only the shards that were under way. Which process
# makes
# a shard changes none of its bytes.

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


# The files of a tokenized corpus.
#
# manifest.json       inputs, the type and length of each array, counts of what was dropped
# source_ids, source_offsets, target_ids, target_offsets
# the arrays of `TokenizedCorpus`, little-endian, mapped into memory to be read
# length_*            the arrays of its `LengthHistogram`
#
# A pair of sentences takes 16 bytes and 2 for each token (4 where a vocabulary has over 65,536).

MANIFEST = "manifest.json"


def open_corpus(path: pathlib.Path) -> TokenizedCorpus | None:
    """Maps the arrays into memory; None if they are missing or incomplete."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        arrays = {
            name: _map(path / name, np.dtype(array["dtype"]), array["length"])
            for name, array in manifest["arrays"].items()
        }
        part_offsets = np.array(manifest["part_offsets"], np.int64)
        lengths = {name: arrays.pop(f"length_{name}") for name in LengthHistogram._fields}
        shape = count_windows(part_offsets), len(part_offsets) - 1, len(lengths["keys"])
        lengths["counts"] = lengths["counts"].reshape(shape)
        lengths["corners"] = lengths["corners"].reshape(-1, 2)
        return TokenizedCorpus(
            **arrays,
            part_offsets=part_offsets,
            histogram=LengthHistogram(**lengths),
            dropped=manifest["dropped"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _map(path: pathlib.Path, dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    """Maps a file into memory; `ValueError` where its size is not that of the array."""
    if path.stat().st_size != length * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    return np.asarray(np.memmap(path, dtype, "r"))  # slices of np.memmap itself are slow


def write_corpus(
    folder: pathlib.Path,
    sources: Sequence[PairSource],
    maker: ShardMaker,
    progress: Callable[[int], None],
    worker: tuple[int, int],
) -> dict[str, Any]:
    """Tokenizes the text into the arrays' files; returns all of the manifest but its inputs."""
    part_offsets = [0]
    dropped: collections.Counter[str] = collections.Counter()
    sizes = [vocabulary.size for vocabulary in maker.vocabularies]
    with _Writer(folder, sizes) as writer:
        for part, source in enumerate(sources):
            identity, before = source.identity, writer.num_pairs + dropped.total()
            dropped_here: collections.Counter[str] = collections.Counter()
            report = functools.partial(_add, progress, before)
            for chunk in maker.tokenize(part, source, report, worker):
                writer.append(chunk)
                dropped_here.update(chunk.dropped)
            if source.identity != identity:
                raise InputError(f"{source} changed while it was read; start again")
            if writer.num_pairs == part_offsets[-1]:
                raise maker.length_filter.nothing_left(dropped_here, str(source))
            part_offsets.append(writer.num_pairs)
            dropped.update(dropped_here)
    offsets = [
        _map(folder / name, np.dtype("<i8"), writer.num_pairs + 1)
        for name in ("source_offsets", "target_offsets")
    ]
    lengths = SentenceLengths(offsets[0]), SentenceLengths(offsets[1], extra=1)
    histogram = length_histogram(*lengths, np.array(part_offsets))
    for name, values in histogram._asdict().items():
        (folder / f"length_{name}").write_bytes(values.astype("<i8").tobytes())
        writer.arrays[f"length_{name}"] = {"dtype": "<i8", "length": values.size}
    return {"arrays": writer.arrays, "part_offsets": part_offsets, "dropped": dropped}


def _add(progress: Callable[[int], None], before: int, num_pairs: int) -> None:
    progress(before + num_pairs)


class _Writer:
    """Appends chunks of a corpus to the arrays' files; they are on the disk at its exit.

    Attributes:
        num_pairs: pairs written so far.
        arrays: type and length of each array so far, for the manifest.
    """

    def __init__(self, folder: pathlib.Path, vocabulary_sizes: Sequence[int]) -> None:
        self.num_pairs = 0
        self.arrays: dict[str, dict[str, Any]] = {}
        self._files: dict[str, IO[bytes]] = {}
        for side, size in zip(("source", "target"), vocabulary_sizes, strict=True):
            for name, dtype in (("ids", id_type(size)), ("offsets", "<i8")):
                self.arrays[f"{side}_{name}"] = {"dtype": dtype, "length": 0}
                self._files[f"{side}_{name}"] = (folder / f"{side}_{name}").open("wb")
            self._put(f"{side}_offsets", np.zeros(1, np.int64))

    def append(self, chunk: TokenizedCorpus) -> None:
        """Adds the pairs of a chunk."""
        for side in ("source", "target"):
            begin = self.arrays[f"{side}_ids"]["length"]
            self._put(f"{side}_ids", getattr(chunk, f"{side}_ids"))
            self._put(f"{side}_offsets", getattr(chunk, f"{side}_offsets")[1:] + begin)
        self.num_pairs += len(chunk)

    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        array = self.arrays[name]
        self._files[name].write(values.astype(array["dtype"]).data)
        array["length"] += len(values)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in self._files.values():
            with file:
                if kind is None:
                    file.flush()
                    os.fsync(file.fileno())


_FORMAT = 2
_PREFIX = "tokens-"
_SHARDS = "shards-"


def cached_corpus(
    folder: str | os.PathLike[str],
    sources: Sequence[PairSource],
    vocabularies: tuple[Vocabulary, Vocabulary],
    *,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
    progress: Callable[[int], None] = lambda num_pairs: None,
    keep_others: bool = True,
    processes: int | None = None,
    worker: tuple[int, int] = (0, 1),
    make_shards: Callable[[ShardMaker, Sequence[PairSource]], None] | None = None,
) -> TokenizedCorpus:
    """Opens the tokenized corpus of some inputs in a folder; makes it first if it is not there.

    Args:
        folder: where it is kept.
        sources: the corpora, which become the parts of the result in this order.
        vocabularies: of the source and of the target.
        max_length: see `LengthFilter`.
        max_length_ratio: see `LengthFilter`.
        progress: called with the number of pairs tokenized so far, after each chunk of text.
        keep_others: whether to keep the corpora of other inputs in the folder.
        processes: how many tokenize a large text; None means one for each core. As with all spawned
            processes, a script must then call this under `if __name__ == "__main__"`.
        worker: the index of this worker, and the number of them: the others may make their share
            of the shards with `tokenize_share` meanwhile.
        make_shards: makes shards elsewhere first, as `ApacheBeamShards` does; others are made here.

    Raises:
        InputError: a text cannot be read, or changes meanwhile; no pair of one of them is left;
            or the folder cannot be written, as on a full disk. Shards that are done stay.

    Example:
        >>> corpus = cached_corpus("run/tokens", [TsvFile("train.tsv")], (vocabulary, vocabulary))
    """
    length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
    inputs, name = _inputs(sources, vocabularies, length_filter)
    path = pathlib.Path(folder) / f"{_PREFIX}{name}"
    shards = path.with_name(f"{_SHARDS}{name}")
    corpus = open_corpus(path)
    if corpus is None:
        maker = ShardMaker(shards, vocabularies, length_filter, processes or num_cores())
        try:
            with (
                writing(f"the tokenized text to {os.fspath(folder)}"),
                atomic_folder(path, lambda made: open_corpus(made) is not None) as aside,
            ):
                if make_shards is not None:
                    shards.mkdir(parents=True, exist_ok=True)
                    make_shards(maker._replace(processes=1), sources)
                manifest = write_corpus(aside, sources, maker, progress, worker)
                content = json.dumps({"inputs": inputs} | manifest, indent=2)
                write_atomically(aside / MANIFEST, content)
        except InputError:
            # Another run may have made the same one meanwhile, and removed the shards.
            if open_corpus(path) is None:
                raise
        others = [*path.parent.glob(f"{_PREFIX}*"), *path.parent.glob(f"{_SHARDS}*")]
        for other in [shards] if keep_others else others:
            if other != path:
                shutil.rmtree(other, ignore_errors=True)
        corpus = open_corpus(path)
    if corpus is None:
        raise InputError(f"{path} cannot be read just after it was written; check that disk")
    return corpus


def tokenize_share(
    folder: str | os.PathLike[str],
    sources: Sequence[PairSource],
    *,
    worker: tuple[int, int],
    max_length: int | None = None,
    max_length_ratio: float | None = None,
) -> bool:
    """Makes a worker's share of the shards of a corpus that `cached_corpus` is making elsewhere.

    Returns:
        Whether it was under way; arguments as there.
    """
    length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
    for shards in pathlib.Path(folder).glob(f"{_SHARDS}*"):
        with contextlib.suppress(FileNotFoundError):  # all is done by now
            models = [shards / side for side in VOCABULARIES]
            source, target = (Vocabulary(model.read_bytes()) for model in models)
            vocabularies = source, target
            if shards.name == _SHARDS + _inputs(sources, vocabularies, length_filter)[1]:
                maker = ShardMaker(shards, vocabularies, length_filter, num_cores())
                for part, text in enumerate(sources):
                    maker.make_missing(part, read_shards(text), lambda num_pairs: None, worker)
                return True
    return False


def _inputs(
    sources: Sequence[PairSource],
    vocabularies: Sequence[Vocabulary],
    length_filter: LengthFilter,
) -> tuple[dict[str, Any], str]:
    """Returns what a corpus depends on, and a hash of it."""
    inputs = {
        "format": _FORMAT,
        "sources": [source.identity for source in sources],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        **dataclasses.asdict(length_filter),
    }
    return inputs, hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
