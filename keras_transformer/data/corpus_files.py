"""The files of a tokenized corpus.

manifest.json       inputs, the type and length of each array, counts of what was dropped
source_ids, source_offsets, target_ids, target_offsets
                    the arrays of `TokenizedCorpus`, little-endian, mapped into memory to be read
length_*            the arrays of its `LengthHistogram`

A pair of sentences takes 16 bytes and 2 for each token (4 where a vocabulary has over 65,536).
"""

import collections
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpus import PairSource
from keras_transformer.data.length_clusters import LengthHistogram, length_histogram
from keras_transformer.data.token_shards import ShardMaker
from keras_transformer.data.tokenized import TokenizedCorpus, id_type
from keras_transformer.data.windows import SentenceLengths, count_windows
from keras_transformer.errors import InputError

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
