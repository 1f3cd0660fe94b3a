"""From a `DataConfig` to vocabularies and tokenized corpora."""

import itertools
from collections.abc import Iterable

from keras_transformer.config import DataConfig
from keras_transformer.data import ParallelText, TokenizedCorpus, load_parallel, read_parallel
from keras_transformer.errors import InputError
from keras_transformer.text import Vocabulary, learn_vocabulary


def read_training_text(data: DataConfig) -> ParallelText:
    """Returns the sentence pairs to train on."""
    if data.train_source is not None and data.train_target is not None:
        return read_parallel(data.train_source, data.train_target)
    return load_parallel(str(data.dataset), "train", reverse=data.reverse)


def read_validation_text(data: DataConfig) -> ParallelText | None:
    """Returns the sentence pairs to validate on, or None where the configuration names none."""
    if data.dev_source is not None and data.dev_target is not None:
        return read_parallel(data.dev_source, data.dev_target)
    if data.dataset is not None:
        return load_parallel(data.dataset, "validation", reverse=data.reverse)
    return None


def read_test_text(data: DataConfig, split: str = "test") -> ParallelText:
    """Returns the sentence pairs to score translations on.

    Args:
        data: names test files, or a data set.
        split: of the data set.

    Raises:
        InputError: the configuration names neither.
    """
    if data.test_source is not None and data.test_target is not None:
        return read_parallel(data.test_source, data.test_target)
    if data.dataset is not None:
        return load_parallel(data.dataset, split, reverse=data.reverse)
    raise InputError("this run names no test files: give --source and --target of a test set")


def make_vocabularies(data: DataConfig, text: ParallelText) -> tuple[Vocabulary, Vocabulary]:
    """Loads or learns the vocabularies of source and target; one object where they share it."""
    if data.vocabulary is not None:
        source = Vocabulary.load(data.vocabulary)
        path = data.target_vocabulary
        return source, source if path is None else Vocabulary.load(path)

    def learn(sentences: Iterable[str]) -> Vocabulary:
        return learn_vocabulary(sentences, size=data.vocabulary_size, kind=data.vocabulary_kind)

    if data.share_vocabulary:
        shared = learn(itertools.chain(text.source, text.target))
        return shared, shared
    return learn(text.source), learn(text.target)


def tokenize(
    text: ParallelText,
    vocabularies: tuple[Vocabulary, Vocabulary],
    max_length: int | None = None,
) -> TokenizedCorpus:
    """Returns the corpus as ids.

    Raises:
        InputError: no pair is left after those with an empty or too long side are dropped.
    """
    source, target = vocabularies
    return TokenizedCorpus.from_ids(
        source.encode(text.source), target.encode(text.target), max_length=max_length
    )
