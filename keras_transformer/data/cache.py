"""Token ids on disk: text is tokenized once, and read back as long as nothing has changed.

A cache folder belongs to one run, or is shared by several. In it, tokens-<hash>/ is named by a hash
of all inputs and holds the files of `corpus_files.py`. While a large text is tokenized,
shards-<hash>/ beside it holds what is done already, see `token_shards.py`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.atomic_files import write_atomically
from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.data.corpus import PairSource
from keras_transformer.data.corpus_files import MANIFEST, open_corpus, write_corpus
from keras_transformer.data.filters import LengthFilter
from keras_transformer.data.token_shards import VOCABULARIES, ShardMaker, read_shards
from keras_transformer.data.tokenized import TokenizedCorpus
from keras_transformer.errors import InputError, writing
from keras_transformer.host import num_cores
from keras_transformer.text import Vocabulary

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
