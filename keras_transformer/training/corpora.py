"""From a `DataConfig` to vocabularies and tokenized corpora."""

import os
from collections.abc import Callable

from keras_transformer.config import DataConfig, split_list
from keras_transformer.data import (
    DatasetSplit,
    FilePair,
    PairSource,
    ParallelText,
    TokenizedCorpus,
    TsvFile,
    cached_corpus,
    learn_from_corpus,
    read_parallel,
)
from keras_transformer.errors import InputError
from keras_transformer.text import Vocabulary


def training_sources(data: DataConfig) -> list[PairSource]:
    """Returns the corpora to train on: pairs of files, then TSV files, then data sets."""
    files = zip(split_list(data.train_source), split_list(data.train_target), strict=True)
    return [
        *(FilePair(source, target) for source, target in files),
        *(TsvFile(path) for path in split_list(data.train_tsv)),
        *_data_sets(data, "train"),
    ]


def training_corpus(
    data: DataConfig,
    vocabularies: tuple[Vocabulary, Vocabulary],
    cache_folder: str | os.PathLike[str],
    progress: Callable[[int], None] = lambda num_pairs: None,
    *,
    keep_others: bool = False,
) -> TokenizedCorpus:
    """Returns the corpora to train on as ids, tokenized before or now; see `cached_corpus`."""
    return cached_corpus(
        cache_folder,
        training_sources(data),
        vocabularies,
        max_length=data.max_length,
        max_length_ratio=data.max_length_ratio,
        progress=progress,
        keep_others=keep_others,
    )


def read_validation_text(data: DataConfig) -> ParallelText | None:
    """Returns the sentence pairs to validate on, or None where the configuration names none.

    They are the dev files, or else the first data set's split "validation", if it has one.
    """
    if data.dev_source is not None and data.dev_target is not None:
        return read_parallel(data.dev_source, data.dev_target)
    data_sets = _data_sets(data, "validation")
    if not data_sets or not data_sets[0].exists():
        return None
    return ParallelText.read(data_sets[0])


def read_test_text(data: DataConfig, split: str = "test") -> ParallelText:
    """Returns the sentence pairs to score translations on.

    Args:
        data: names test files, or a data set, the first of which is taken.
        split: of the data set.

    Raises:
        InputError: the configuration names neither.
    """
    if data.test_source is not None and data.test_target is not None:
        return read_parallel(data.test_source, data.test_target)
    data_sets = _data_sets(data, split)
    if not data_sets:
        raise InputError("this run names no test files: give --source and --target of a test set")
    return ParallelText.read(data_sets[0])


def tokenize(
    text: ParallelText,
    vocabularies: tuple[Vocabulary, Vocabulary],
    max_length: int | None = None,
) -> TokenizedCorpus:
    """Returns a small text as ids, in memory.

    Raises:
        InputError: no pair is left after those with an empty or too long side are dropped.
    """
    source, target = vocabularies
    return TokenizedCorpus.from_ids(
        source.encode(text.source), target.encode(text.target), max_length=max_length
    )


def make_vocabularies(data: DataConfig) -> tuple[Vocabulary, Vocabulary]:
    """Loads or learns the vocabularies of source and target; one object where they share it.

    They are learned from the text to train on; see `learn_from_corpus`.
    """
    if data.vocabulary is not None:
        source = Vocabulary.load(data.vocabulary)
        path = data.target_vocabulary
        return source, source if path is None else Vocabulary.load(path)
    sources = training_sources(data)
    options = {
        "size": data.vocabulary_size,
        "kind": data.vocabulary_kind,
        "normalization": data.vocabulary_normalization,
        "character_coverage": data.character_coverage,
        "byte_fallback": data.byte_fallback,
    }
    if data.share_vocabulary:
        shared = learn_from_corpus(sources, (0, 1), **options)
        return shared, shared
    return learn_from_corpus(sources, (0,), **options), learn_from_corpus(sources, (1,), **options)


def _data_sets(data: DataConfig, split: str) -> list[DatasetSplit]:
    names = split_list(data.dataset)
    return [DatasetSplit(name=name, split=split, reverse=data.reverse) for name in names]
