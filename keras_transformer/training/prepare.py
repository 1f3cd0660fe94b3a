"""From text to vocabularies and token ids, as a task reads the files that a `DataConfig` names."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer.config import DEFAULT_VOCABULARY_SIZE, WORD_START, DataConfig
from keras_transformer.config.search import MAX_TOKENS
from keras_transformer.data.augmentation import AugmentedPairs
from keras_transformer.data.corpus import PairSource, ParallelText, TokenizedCorpus
from keras_transformer.data.token_cache import cached_corpus
from keras_transformer.errors import InputError
from keras_transformer.files import Path
from keras_transformer.tasks import Task, TranslationTask
from keras_transformer.text import Vocabulary, learn_vocabulary
from keras_transformer.training.settings import RunConfigs

Say = Callable[[str], None]  # called with lines about the progress

_TRANSLATION = TranslationTask()
# A sample of this size gives nearly the tokens that all sentences would, in about 1 GB.
_MAX_SENTENCES = 1_000_000
_MEASURED_PAIRS = 1_000_000  # to find how long outputs must be
_BEYOND_SHARE = 0.001  # of the training pairs may be longer: many corpora have some that are wrong


def training_corpus(
    data: DataConfig,
    vocabularies: tuple[Vocabulary, Vocabulary],
    folder: Path,
    *,
    task: Task = _TRANSLATION,
    say: Say = lambda line: None,
) -> TokenizedCorpus:
    """Returns the corpora to train on as ids, tokenized before or now; see `cached_corpus`.

    `say` receives a line for each reason that pairs were dropped for.
    """
    sources = task.train_sources(data)
    if data.augment:
        sources = [AugmentedPairs(source, data.augment) for source in sources]
    corpus = cached_corpus(folder, sources, vocabularies, max_length=data.max_length)
    for reason, count in corpus.dropped.items():
        if count:
            say(f"Dropped {count:,} pairs: {reason}.")
    return corpus


def read_dev_text(data: DataConfig, task: Task = _TRANSLATION) -> ParallelText | None:
    """Returns the pairs of the dev set, see `Task.pair_sources`; None if the run has none."""
    sources = task.pair_sources(data, "validation")
    return _read(sources) if sources else None


def read_test_text(data: DataConfig, task: Task = _TRANSLATION) -> ParallelText:
    """Returns the pairs of the test set; `InputError` if the configuration names none."""
    sources = task.pair_sources(data, "test")
    if not sources:
        raise InputError("this run names no test files: give --source and --target of a test set")
    return _read(sources)


def tokenize(
    text: ParallelText, vocabularies: tuple[Vocabulary, Vocabulary], **options: Any
) -> TokenizedCorpus:
    """Returns a small text as ids in memory; `options` and errors of `TokenizedCorpus.from_ids`."""
    ids = [vocabulary.encode(side) for vocabulary, side in zip(vocabularies, text, strict=True)]
    return TokenizedCorpus.from_ids(*ids, **options)


def with_room_for_targets(configs: RunConfigs, corpus: TokenizedCorpus) -> RunConfigs:
    """Returns settings whose search takes all but the longest thousandth of the training pairs.

    A target of characters, for example, has far more tokens than its source of words.
    """
    search, limits = configs.search_config(), dict(configs.search)
    source, target = corpus.lengths(slice(None, None, -(-len(corpus) // _MEASURED_PAIRS)))

    def room(name: str, tokens: npt.NDArray[np.int64]) -> int:
        """Returns the limit of that name, raised where it is too low."""
        limit: int = getattr(search, name)
        longest = int(np.quantile(tokens, 1 - _BEYOND_SHARE, method="higher"))
        if longest > limit:
            limits[name] = limit = min(-(-longest // 10) * 10, MAX_TOKENS)
        return limit

    longest_source = room("max_source_length", source - 1) + 1  # and EOS
    room("max_extra_length", target - np.minimum(source, longest_source))
    return configs._replace(search=limits)


def make_vocabularies(
    data: DataConfig, task: Task = _TRANSLATION, say: Say = lambda line: None
) -> tuple[Vocabulary, Vocabulary]:
    """Loads or learns the vocabularies of source and target; one object if they share it.

    They are learned from the text to train on, at most a million sentences, and from the altered
    copies of its pairs, if it has any: capitals need subwords too. `say` receives whether that
    supports fewer tokens than the default.
    """
    if data.vocabulary is not None:
        source = Vocabulary.load(data.vocabulary)
        path = data.target_vocabulary
        vocabularies = source, source if path is None else Vocabulary.load(path)
        check_symbols(data, task, vocabularies)
        return vocabularies
    sources = task.train_sources(data)
    if data.augment:
        sources = [AugmentedPairs(source, data.augment, other_scripts=False) for source in sources]
    options: dict[str, Any] = {
        "size": data.vocabulary_size,
        "normalization": data.vocabulary_normalization,
        "character_coverage": data.character_coverage,
        "byte_fallback": data.byte_fallback,
    }
    kinds = data.kinds
    if data.shares_vocabulary:
        symbols = task.symbols(sources)
        source = _learn(sources, (0, 1), kind=kinds[0], symbols=symbols, **options)
        target = source
    else:
        source, target = (_learn(sources, (side,), kind=kinds[side], **options) for side in (0, 1))
    for kind, size in sorted({(kinds[0], source.size), (kinds[1], target.size)}):
        is_short = kind in ("bpe", "unigram") and size < DEFAULT_VOCABULARY_SIZE
        if data.vocabulary_size is None and is_short:
            say(f"The {kind} vocabulary has {size:,} tokens: the text supports no more.")
    return source, target


def _learn(sources: Sequence[PairSource], sides: Sequence[int], **options: Any) -> Vocabulary:
    """Learns one vocabulary from sources (side 0), from targets (1), or from both."""
    for source in sources:
        _ = source.identity  # raises for a pipe, which cannot be read twice
    sentences = (pair[side] for source in sources for pair in source for side in sides)
    return learn_vocabulary(sentences, max_sentences=_MAX_SENTENCES, **options)


def check_symbols(
    data: DataConfig, task: Task, vocabularies: tuple[Vocabulary, Vocabulary]
) -> None:
    """Raises `InputError` if a shared vocabulary was learned without a symbol of the task."""
    source, target = vocabularies
    if source.fingerprint != target.fingerprint:
        return
    known = set(source.pieces(range(source.size)))
    symbols = task.symbols(task.train_sources(data))
    if missing := [symbol for symbol in symbols if WORD_START + symbol not in known]:
        raise InputError(
            f"{len(missing):,} symbols of this text, such as {missing[0]!r}, are not tokens of the "
            "vocabulary, which was learned for something else; let train learn one"
        )


def _read(sources: Sequence[PairSource]) -> ParallelText:
    text = ParallelText.from_pairs(itertools.chain.from_iterable(sources))
    if not text.source:
        names = ", ".join(map(str, sources))
        raise InputError(f"there is no sentence to evaluate on in {names}; give a larger text")
    return text
