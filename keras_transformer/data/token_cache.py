"""Token ids on disk: text is tokenized once, and read back as long as nothing has changed.

In the cache folder of a run:

    tokens-<hash>/        a corpus; the hash is of all inputs: text, vocabularies and filters
        manifest.json     inputs; type, length and digest of each array; counts of dropped pairs
        source_ids, source_offsets, target_ids, target_offsets
                          the arrays of `TokenizedCorpus`, little-endian, memory-mapped to be read

Text is read as a stream, and SentencePiece's threads use all cores. A pair takes 16 bytes and 2 for
each token (4 where a vocabulary has more than 65,536).
"""

import collections
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from keras_transformer.data.corpus import PairSource, ParallelText, TokenizedCorpus, nothing_left
from keras_transformer.errors import InputError, writing
from keras_transformer.files import atomic_folder, file_identity, sha256, write_atomically
from keras_transformer.text import Vocabulary

_FORMAT = 5
_MANIFEST = "manifest.json"
_SIDES = ("source", "target")
_CHUNK_PAIRS = 500  # in memory at once


def cached_corpus(
    folder: str | os.PathLike[str],
    sources: Sequence[PairSource],
    vocabularies: tuple[Vocabulary, Vocabulary],
    *,
    max_length: int | None = None,
) -> TokenizedCorpus:
    """Opens the tokenized corpus of these inputs; tokenizes the text first if there is none.

    Standard error shows the progress: on a terminal as a bar, else at most once in ten seconds.
    For `max_length` see `TokenizedCorpus.from_ids`.

    Raises:
        InputError: a text cannot be read, changes meanwhile, or has no usable pair; or the folder
            cannot be written, for example on a full disk.

    Example:
        >>> corpus = cached_corpus("run/tokens", [TsvFile("train.tsv")], (vocabulary, vocabulary))
    """
    inputs = {
        "format": _FORMAT,
        "sources": [source.identity for source in sources],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        "max_length": max_length,
    }
    path = pathlib.Path(folder) / f"tokens-{_digest(inputs)}"
    corpus = _open(path)
    if corpus is None:
        shutil.rmtree(path, ignore_errors=True)  # a damaged one
        try:
            with writing(f"the tokenized text to {folder}"), atomic_folder(path) as aside:
                _write(aside, inputs, sources, vocabularies)
        except InputError:
            if not path.exists():  # as another process has made the same one meanwhile
                raise
        corpus = _open(path)
        if corpus is None:
            raise InputError(f"{path} cannot be read just after it was written; check that disk")
    return corpus


def _open(path: pathlib.Path) -> TokenizedCorpus | None:
    """Maps the arrays into memory; None if they are missing or not those that were written."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        arrays = {}
        for name, (dtype, digest) in manifest["arrays"].items():
            if file_identity(path / name)["sha256"] != digest:
                return None
            # As an array, since slices of np.memmap itself are slow.
            arrays[name] = np.asarray(np.memmap(path / name, dtype, "r"))
        text = _digest(manifest["inputs"]["sources"])
        return TokenizedCorpus(**arrays, dropped=manifest["dropped"], text=text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(
    folder: pathlib.Path,
    inputs: dict[str, Any],
    sources: Sequence[PairSource],
    vocabularies: Sequence[Vocabulary],
) -> None:
    """Tokenizes the text into the files of a corpus."""
    types = {f"{side}_offsets": "<i8" for side in _SIDES}
    for side, vocabulary in zip(_SIDES, vocabularies, strict=True):
        types[f"{side}_ids"] = "<u2" if vocabulary.size <= 1 << 16 else "<i4"
    ends = dict.fromkeys(_SIDES, 0)  # of the sentences so far
    total: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        seconds = 0.1 if sys.stderr.isatty() else 10
        bar = stack.enter_context(
            tqdm(desc="Tokenizing", unit=" pairs", mininterval=seconds, delay=seconds)
        )
        files = {name: stack.enter_context((folder / name).open("wb")) for name in types}

        def append(name: str, values: npt.NDArray[Any]) -> None:
            files[name].write(values.astype(types[name]).data)

        for side in _SIDES:
            append(f"{side}_offsets", np.zeros(1, np.int64))
        for source, identity in zip(sources, inputs["sources"], strict=True):
            pairs, kept = iter(source), 0
            dropped: collections.Counter[str] = collections.Counter()
            while (text := ParallelText.from_pairs(itertools.islice(pairs, _CHUNK_PAIRS))).source:
                ids = (v.encode(side) for v, side in zip(vocabularies, text, strict=True))
                corpus = TokenizedCorpus.from_ids(
                    *ids, max_length=inputs["max_length"], may_be_empty=True
                )
                for side in _SIDES:
                    append(f"{side}_ids", getattr(corpus, f"{side}_ids"))
                    offsets = getattr(corpus, f"{side}_offsets") + ends[side]
                    append(f"{side}_offsets", offsets[1:])
                    ends[side] = offsets[-1]
                dropped.update(corpus.dropped)
                kept += len(corpus)
                bar.update(len(text.source))
            # Its identity is part of the folder's name.
            if source.identity != identity:
                raise InputError(f"{source} changed while it was read; start again")
            if not kept:
                raise nothing_left(dropped, str(source))
            total.update(dropped)
    manifest = {
        "inputs": inputs,
        "arrays": {name: (types[name], sha256([folder / name])) for name in types},
        "dropped": dict(total),
    }
    write_atomically(folder / _MANIFEST, json.dumps(manifest, indent=2))


def _digest(values: Any) -> str:
    """Returns a hash of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
