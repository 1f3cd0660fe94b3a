"""From a `DataConfig`, as a task reads it, to vocabularies and tokenized corpora."""

import itertools
import os
from collections.abc import Callable, Sequence

from keras_transformer.config import DataConfig
from keras_transformer.data import (
    PairSource,
    ParallelText,
    TokenizedCorpus,
    cached_corpus,
    learn_from_corpus,
)
from keras_transformer.errors import InputError
from keras_transformer.tasks import Task, TranslationTask
from keras_transformer.text import Vocabulary

_TRANSLATION = TranslationTask()


def training_corpus(
    data: DataConfig,
    vocabularies: tuple[Vocabulary, Vocabulary],
    cache_folder: str | os.PathLike[str],
    progress: Callable[[int], None] = lambda num_pairs: None,
    *,
    keep_others: bool = False,
    task: Task = _TRANSLATION,
) -> TokenizedCorpus:
    """Returns the corpora to train on as ids, tokenized before or now; see `cached_corpus`."""
    return cached_corpus(
        cache_folder,
        task.sources(data, "train"),
        vocabularies,
        max_length=data.max_length,
        max_length_ratio=data.max_length_ratio,
        progress=progress,
        keep_others=keep_others,
    )


def read_validation_text(data: DataConfig, task: Task = _TRANSLATION) -> ParallelText | None:
    """Returns the pairs to validate on, or None where the configuration names none."""
    sources = task.sources(data, "validation")
    return _read(sources) if sources else None


def read_test_text(
    data: DataConfig, split: str = "test", task: Task = _TRANSLATION
) -> ParallelText:
    """Returns the pairs to evaluate on: those of a split, see `Task.sources`.

    Raises:
        InputError: the configuration names none.
    """
    sources = task.sources(data, split)
    if not sources:
        raise InputError("this run names no test files: give --source and --target of a test set")
    return _read(sources)


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


def make_vocabularies(data: DataConfig, task: Task = _TRANSLATION) -> tuple[Vocabulary, Vocabulary]:
    """Loads or learns the vocabularies of source and target; one object where they share it.

    They are learned from the text to train on; see `learn_from_corpus`.
    """
    if data.vocabulary is not None:
        source = Vocabulary.load(data.vocabulary)
        path = data.target_vocabulary
        return source, source if path is None else Vocabulary.load(path)
    sources = task.sources(data, "train")
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


def _read(sources: Sequence[PairSource]) -> ParallelText:
    return ParallelText.read(itertools.chain.from_iterable(sources))
