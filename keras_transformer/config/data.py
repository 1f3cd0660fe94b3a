"""Where sentence pairs come from and how they become tokens."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from keras_transformer.config.base import JsonConfig
from keras_transformer.errors import InputError

VocabularyKind = Literal["bpe", "unigram", "char", "word"]
Normalization = Literal["nfkc", "nfc", "identity"]

# Fields that say what the vocabularies are.
VOCABULARY_FIELDS = (
    "vocabulary", "target_vocabulary", "vocabulary_size", "vocabulary_kind", "source_level",
    "target_level", "vocabulary_normalization", "character_coverage", "byte_fallback",
    "share_vocabulary",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(JsonConfig):
    """Where sentence pairs come from and how they become tokens.

    Attributes:
        dataset: names of TensorFlow Datasets translation sets, separated by commas, such as
            wmt14_translate/de-en, or number_names/en-de, which needs no download.
        reverse: whether to swap source and target of the data sets.
        train_source: text files to train on, a sentence a line, plain or .gz; several are
            separated by commas.
        train_target: as many files with a translation of each line of `train_source`.
        train_file: files that hold both sides in the format of the task, plain or .gz, separated
            by commas; for translation source, tab and target on each line. File pairs, such files
            and data sets can be given together.
        mix_weights: share of the sentence pairs that each corpus gives, numbers separated by
            commas, for file pairs, files of both sides and data sets in this order; None means in
            proportion to their sizes, so that an epoch has every pair once.
        dev_source: a file of source sentences; their loss and the task's metric are shown at each
            checkpoint. Of further files, separated by commas, the metric is shown too.
        dev_target: as many files with a translation of each line of `dev_source`.
        dev_file: a file that holds both, in place of `dev_source` and `dev_target`.
        test_source: a file of source sentences that the command evaluate translates.
        test_target: a file with a translation of each line of `test_source`.
        test_file: a file that holds both, in place of `test_source` and `test_target`.
        vocabulary: a SentencePiece model to use instead of learning one; the source's own where
            `target_vocabulary` is given too.
        target_vocabulary: the target's own SentencePiece model.
        vocabulary_size: tokens of each vocabulary that is learned.
        vocabulary_kind: what the tokens are: byte-pair or unigram pieces, characters, or words.
        source_level: what the source's tokens are where they are not of `vocabulary_kind`.
        target_level: the same for the target. Sides with tokens of different kinds have a
            vocabulary each.
        vocabulary_normalization: "nfkc" unifies the spellings of characters, "nfc" composes letters
            and their marks only, "identity" leaves text that is prepared already alone.
        character_coverage: share of all characters that a learned vocabulary has tokens for; the
            rarest of them become unknown.
        byte_fallback: whether a learned vocabulary spells unknown characters as UTF-8 bytes, for
            which it has 256 more tokens.
        share_vocabulary: whether one vocabulary is learned for both sides.
        max_length: pairs with more tokens on a side are left out of training and of the dev loss.
        max_length_ratio: pairs whose longer side has more than so many times the tokens of the
            shorter one are left out of training; None means no bound.
        subword_sampling: how much the segmentation of the training text varies (subword
            regularisation, Kudo 2018): the rate of merges left out of byte-pair pieces
            (Provilkov et al. 2020), the exponent of unigram probabilities; 0 does not vary it.
    """

    dataset: str | None = None
    reverse: bool = False
    train_source: str | None = None
    train_target: str | None = None
    train_file: str | None = None
    mix_weights: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    dev_file: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    test_file: str | None = None
    vocabulary: str | None = None
    target_vocabulary: str | None = None
    vocabulary_size: int = 8000
    vocabulary_kind: VocabularyKind = "bpe"
    source_level: VocabularyKind | None = None
    target_level: VocabularyKind | None = None
    vocabulary_normalization: Normalization = "nfkc"
    character_coverage: float = 1.0
    byte_fallback: bool = False
    share_vocabulary: bool = True
    max_length: int = 256
    max_length_ratio: float | None = None
    subword_sampling: float = 0.0

    def __post_init__(self) -> None:
        self._check_types()
        self._check_at_least(1, "vocabulary_size", "max_length", "max_length_ratio")
        self._check_corpora()
        self._check_vocabularies()

    def _check_corpora(self) -> None:
        self._check_same_count("train_source", "train_target")
        if not self.num_corpora:
            raise InputError(
                "no training data: give train_source and train_target, train_file or dataset"
            )
        self._check_mix_weights()
        if self.reverse and self.dataset is None:
            raise InputError(
                "reverse swaps the sides of a dataset, and none is given; "
                "swap train_source and train_target"
            )
        for split in ("dev", "test"):
            names = (f"{split}_source", f"{split}_target")
            if sum(getattr(self, name) is None for name in names) == 1:
                raise InputError(f"{' and '.join(names)} go together; one of them is missing")
            if None not in (getattr(self, names[0]), getattr(self, f"{split}_file")):
                raise InputError(f"{split}_file takes the place of {names[0]}; leave one out")
            self._check_same_count(*names)

    def _check_same_count(self, source: str, target: str) -> None:
        files = getattr(self, source), getattr(self, target)
        if len(split_list(files[0])) != len(split_list(files[1])):
            raise InputError(
                f"{source} and {target} must name as many files as each other, got {files[0]} and "
                f"{files[1]}"
            )

    def _check_vocabularies(self) -> None:
        if not 0 < self.character_coverage <= 1:
            raise InputError(
                f"character_coverage must be above 0 and at most 1, got {self.character_coverage}"
            )
        if not 0 <= self.subword_sampling < 1:
            raise InputError(
                f"subword_sampling must be at least 0 and below 1, got {self.subword_sampling}"
            )
        if self.subword_sampling and not any(self.has_subwords):
            raise InputError(
                f"subword_sampling needs vocabulary_kind bpe or unigram, got {self.vocabulary_kind}"
            )
        if self.vocabulary is None:
            if self.target_vocabulary is not None:
                raise InputError("target_vocabulary needs vocabulary, the source's, beside it")
        elif self.target_vocabulary is None and len(set(self.kinds)) > 1:
            raise InputError(
                f"vocabulary is of one kind, and source and target are to be of {self.kinds[0]} "
                f"and {self.kinds[1]}; give target_vocabulary too"
            )

    @property
    def num_corpora(self) -> int:
        """How many corpora there are to train on: pairs of files, files of both, data sets."""
        lists = (self.train_source, self.train_file, self.dataset)
        return sum(len(split_list(text)) for text in lists)

    @property
    def kinds(self) -> tuple[VocabularyKind, VocabularyKind]:
        """What the tokens of source and target are."""
        return (
            self.source_level or self.vocabulary_kind,
            self.target_level or self.vocabulary_kind,
        )

    @property
    def has_subwords(self) -> tuple[bool, bool]:
        """Whether source and target have subwords, whose segmentation can vary."""
        source, target = (kind in ("bpe", "unigram") for kind in self.kinds)
        return source, target

    @property
    def shares_vocabulary(self) -> bool:
        """Whether both sides have one vocabulary."""
        source, target = self.kinds
        return self.share_vocabulary and self.target_vocabulary is None and source == target

    @property
    def weights(self) -> tuple[float, ...] | None:
        """`mix_weights` as numbers."""
        if self.mix_weights is None:
            return None
        return tuple(float(weight) for weight in split_list(self.mix_weights))

    def _check_mix_weights(self) -> None:
        try:
            weights = self.weights
        except ValueError:
            weights = ()
        if weights is not None:
            check_mix_weights(weights, self.num_corpora, repr(self.mix_weights))


def check_mix_weights(weights: Sequence[float], num_corpora: int, given: str) -> None:
    """Raises `InputError` unless there is one positive weight for each corpus.

    Args:
        weights: of the corpora, in order.
        num_corpora: how many there are.
        given: the weights as the user wrote them.
    """
    if len(weights) != num_corpora or not all(0 < each < math.inf for each in weights):
        raise InputError(
            f"mix_weights must be {num_corpora} numbers above 0, one for each corpus, "
            f"separated by commas, got {given}"
        )


def split_list(text: str | None) -> list[str]:
    """Returns the entries of a list that is written with commas; None is the empty list."""
    return [entry.strip() for entry in text.split(",")] if text else []
