"""Token ids on disk: text is tokenized once, and read back as long as nothing has changed.

A cache folder belongs to one run, or is shared by several. In it, tokens-<hash>/ is named by a hash
of all inputs, and holds

manifest.json       those inputs, the type and length of each array, counts of what was dropped
source_ids, source_offsets, target_ids, target_offsets
                    the arrays of `TokenizedCorpus`, little-endian, mapped into memory to be read

A pair of sentences takes 16 bytes and 2 for each token (4 where a vocabulary has over 65,536).
While text is tokenized a chunk of it is in memory; afterwards the arrays are memory-mapped.
"""

import collections
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_transformer.atomic_files import write_atomically
from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.data.corpus import PairSource, ParallelText
from keras_transformer.data.filters import LengthFilter
from keras_transformer.data.tokenized import TokenizedCorpus
from keras_transformer.errors import InputError

if TYPE_CHECKING:  # needs TensorFlow, which takes long to import
    from keras_transformer.text import Vocabulary

_FORMAT = 1
_PREFIX = "tokens-"
_MANIFEST = "manifest.json"
_CHUNK_PAIRS = 10_000


def cached_corpus(
    folder: str | os.PathLike[str],
    sources: Sequence[PairSource],
    vocabularies: "tuple[Vocabulary, Vocabulary]",
    *,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
    progress: Callable[[int], None] = lambda num_pairs: None,
    keep_others: bool = False,
) -> TokenizedCorpus:
    """Opens the tokenized corpus of some inputs in a folder; makes it first if it is not there.

    Args:
        folder: where it is kept.
        sources: the corpora, which become the parts of the result in this order.
        vocabularies: of the source and of the target.
        max_length: see `LengthFilter`.
        max_length_ratio: see `LengthFilter`.
        progress: called with the number of pairs read so far, after each chunk of text.
        keep_others: whether to keep the corpora of other inputs, for a folder that runs share.

    Raises:
        InputError: a text cannot be read, or changes meanwhile; no pair of one of them is left;
            or the folder cannot be written, as on a full disk.

    Example:
        >>> corpus = cached_corpus("run/tokens", [TsvFile("train.tsv")], (vocabulary, vocabulary))
    """
    length_filter = LengthFilter(max_length=max_length, max_length_ratio=max_length_ratio)
    inputs = {
        "format": _FORMAT,
        "sources": [source.identity for source in sources],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        "max_length": max_length,
        "max_length_ratio": max_length_ratio,
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    path = pathlib.Path(folder) / f"{_PREFIX}{digest[:16]}"
    corpus = _open(path)
    if corpus is None:
        with _errors_of(folder), atomic_folder(path, lambda made: _open(made) is not None) as aside:
            manifest = _write(aside, sources, vocabularies, length_filter, progress)
            write_atomically(aside / _MANIFEST, json.dumps({"inputs": inputs} | manifest, indent=2))
        for other in [] if keep_others else path.parent.glob(f"{_PREFIX}*"):
            if other != path:
                shutil.rmtree(other, ignore_errors=True)
        corpus = _open(path)
    if corpus is None:
        raise InputError(f"{path} cannot be read just after it was written; check that disk")
    return corpus


def _open(path: pathlib.Path) -> TokenizedCorpus | None:
    """Maps the arrays into memory; None if they are missing or incomplete."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        arrays = {
            name: _map(path / name, np.dtype(array["dtype"]), array["length"])
            for name, array in manifest["arrays"].items()
        }
        return TokenizedCorpus(
            **arrays,
            part_offsets=np.array(manifest["part_offsets"], np.int64),
            dropped=manifest["dropped"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _map(path: pathlib.Path, dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    """Maps a file into memory; `ValueError` where its size is not that of the array."""
    if path.stat().st_size != length * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    return np.asarray(np.memmap(path, dtype, "r"))  # slices of np.memmap itself are slow


def _write(
    folder: pathlib.Path,
    sources: Sequence[PairSource],
    vocabularies: "tuple[Vocabulary, Vocabulary]",
    length_filter: LengthFilter,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Tokenizes the text into the arrays' files; returns all of the manifest but its inputs."""
    part_offsets = [0]
    dropped: collections.Counter[str] = collections.Counter()
    with _Writer(folder, [vocabulary.size for vocabulary in vocabularies]) as writer:
        for source in sources:
            identity = source.identity
            dropped_here: collections.Counter[str] = collections.Counter()
            for text in _chunks(source):
                source_ids, target_ids = map(_encode, vocabularies, text)
                chunk = TokenizedCorpus.pack(source_ids, target_ids, length_filter)
                writer.append(chunk)
                dropped_here.update(chunk.dropped)
                progress(writer.num_pairs + (dropped + dropped_here).total())
            if source.identity != identity:
                raise InputError(f"{source} changed while it was read; start again")
            if writer.num_pairs == part_offsets[-1]:
                raise length_filter.nothing_left(dropped_here, str(source))
            part_offsets.append(writer.num_pairs)
            dropped.update(dropped_here)
    return {"arrays": writer.arrays, "part_offsets": part_offsets, "dropped": dropped}


def _chunks(source: PairSource) -> Iterator[ParallelText]:
    pairs = iter(source)
    while (text := ParallelText.read(itertools.islice(pairs, _CHUNK_PAIRS))).source:
        yield text


def _encode(vocabulary: "Vocabulary", sentences: list[str]) -> list[list[int]]:
    return vocabulary.encode(sentences)


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
            for name, dtype in (("ids", "<u2" if size <= 1 << 16 else "<i4"), ("offsets", "<i8")):
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


@contextlib.contextmanager
def _errors_of(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turns errors while the folder is written into `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write the tokenized text to {os.fspath(folder)} ({error.strerror}); "
            "free some space on that disk, or put the run on another one"
        ) from error
