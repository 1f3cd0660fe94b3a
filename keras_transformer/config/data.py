"""Where sentence pairs come from, and how they are tokenized."""

import dataclasses
from typing import Literal

from keras_transformer.config.options import JsonConfig, learned_option, option
from keras_transformer.errors import InputError

VocabularyKind = Literal["bpe", "unigram", "char", "word"]
Normalization = Literal["nfc", "nfkc", "identity"]
DEFAULT_VOCABULARY_SIZE = 8000
MIN_COVERAGE = 0.98  # of SentencePiece


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(JsonConfig):
    """Where sentence pairs come from, and how they are tokenized."""

    dataset: str | None = option(
        None,
        "Translation sets of TensorFlow Datasets, separated by commas, for example "
        "wmt14_translate/de-en; number_names/en-de needs no download.",
    )
    reverse: bool = option(False, "Swap source and target of the data sets.", needs={"dataset": ()})
    train_source: str | None = option(
        None,
        "Training text, one sentence a line, plain or compressed (.gz, .bz2, .xz). Separate "
        "several files by commas.",
        is_path=True,
    )
    train_target: str | None = option(
        None, "The translations of train_source, line by line; as many files.", is_path=True
    )
    train_file: str | None = option(
        None,
        "Files that hold both sides in the format of the task, separated by commas; for "
        'translation "source TAB target" on each line. Can be combined with file pairs and '
        "data sets.",
        is_path=True,
    )
    dev_source: str | None = option(
        None,
        "Source side of the dev set, on which loss and metric are measured at each checkpoint; one "
        "file, or several separated by commas.",
        is_path=True,
    )
    dev_target: str | None = option(
        None, "The translations of dev_source, line by line; as many files.", is_path=True
    )
    dev_file: str | None = option(
        None, "One file with both sides, instead of dev_source and dev_target.", is_path=True
    )
    test_source: str | None = option(
        None,
        "Source side of the test set, which evaluate translates.",
        is_path=True,
        may_change=True,
    )
    test_target: str | None = option(
        None, "The translations of test_source, line by line.", is_path=True, may_change=True
    )
    test_file: str | None = option(
        None,
        "One file with both sides, instead of test_source and test_target.",
        is_path=True,
        may_change=True,
    )
    vocabulary: str | None = option(
        None,
        "SentencePiece model to use instead of learning one; of the source only if "
        "target_vocabulary is given.",
        is_path=True,
        for_vocabulary=True,
    )
    target_vocabulary: str | None = option(
        None,
        "SentencePiece model of the target.",
        is_path=True,
        for_vocabulary=True,
        needs={"vocabulary": ()},
    )
    vocabulary_size: int | None = learned_option(
        None,
        "Tokens of each learned vocabulary. Default: 8,000, or fewer if the text supports no more.",
        minimum=1,
    )
    vocabulary_kind: VocabularyKind = learned_option(
        "bpe", "Kind of tokens: byte-pair or unigram pieces, characters, or words."
    )
    source_level: VocabularyKind | None = learned_option(
        None, "Kind of tokens of the source. Default: vocabulary_kind."
    )
    target_level: VocabularyKind | None = learned_option(
        None,
        "Kind of tokens of the target. Sides that differ get one vocabulary each. Default: "
        "vocabulary_kind.",
    )
    vocabulary_normalization: Normalization = learned_option(
        "nfc",
        'Unicode normalization of both sides: "nfc" composes letters and marks and turns no-break '
        'spaces into spaces; "nfkc" also replaces full-width, superscript and other compatible '
        'characters and Persian\'s non-joiner, which the model can then never write; "identity" '
        "does neither. All drop invisible characters but joiners, make spaces of tabs, and strip "
        "extra spaces.",
    )
    character_coverage: float = learned_option(
        1.0,
        "Share of all characters that a learned vocabulary covers, at least 0.98; the rarest "
        "become unknown.",
        minimum=MIN_COVERAGE,
        maximum=1,
    )
    byte_fallback: bool = learned_option(
        False, "Spell unknown characters as UTF-8 bytes; adds 256 tokens to a learned vocabulary."
    )
    share_vocabulary: bool = option(
        True, "Learn one vocabulary for both sides.", for_vocabulary=True
    )
    max_length: int = option(
        256,
        "Drop pairs with more tokens on either side from training and from the dev loss.",
        minimum=1,
    )
    augment: float = option(
        0.0,
        "Altered copies per training pair, on average, that are trained on as well: in other case, "
        "without punctuation, with typing errors, with numbers, addresses and words of other "
        "scripts that are copied.",
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in ("train", "dev", "test"):
            names = f"{split}_source", f"{split}_target", f"{split}_file"
            source, target, file = (getattr(self, name) for name in names)
            if len(split_list(source)) != len(split_list(target)):
                raise InputError(
                    f"{names[0]} and {names[1]} must name the same number of files, got {source} "
                    f"and {target}"
                )
            if split != "train" and source and file:
                raise InputError(f"{names[2]} cannot be combined with {names[0]}; remove one")
        if not self.num_corpora:
            raise InputError(
                "no training data: give train_source and train_target, train_file or dataset"
            )

    @property
    def num_corpora(self) -> int:
        """Number of corpora to train on: pairs of files, files of both sides, data sets."""
        lists = (self.train_source, self.train_file, self.dataset)
        return sum(len(split_list(text)) for text in lists)

    @property
    def kinds(self) -> tuple[VocabularyKind, VocabularyKind]:
        """The kinds of the vocabularies of source and target."""
        levels = self.source_level, self.target_level
        source, target = (level or self.vocabulary_kind for level in levels)
        return source, target

    @property
    def shares_vocabulary(self) -> bool:
        """Whether both sides have one vocabulary."""
        source, target = self.kinds
        return self.share_vocabulary and self.target_vocabulary is None and source == target


def split_list(text: str | None) -> list[str]:
    """Returns the entries of a comma-separated list; "a.en*3" stands for three times "a.en"."""
    entries = []
    for entry in map(str.strip, text.split(",") if text else ()):
        name, _, times = entry.rpartition("*")
        is_count = name and times.isdecimal() and int(times)  # "a.en*0" is a name
        entries += [name] * int(times) if is_count else [entry]
    return entries
