"""Morphological inflection: the characters of a lemma and its features in, an inflected form out.

The task of SIGMORPHON-UniMorph 2022 (Kodner et al. 2022), with a character-level Transformer as in
Wu, Cotterell and Hulden 2021. A model reads "Hund ;N ;GEN ;SG", in which each feature is one token,
and generates "Hundes"; a user may also write "Hund", a tab and "N;GEN;SG", as the files do.
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.config import (
    NUM_RESERVED,
    DataConfig,
    ModelConfig,
    TransformerConfig,
    option,
)
from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, iterate_lines
from keras_transformer.tasks.task import ExactMatchTask, register_task

if TYPE_CHECKING:  # tasks load without TensorFlow
    from keras_transformer.data import PairSource
    from keras_transformer.text import Vocabulary


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class InflectionTask(ExactMatchTask):
    """Inflection, measured by exact match."""

    overlap_with: str | None = option(
        None,
        "Training file: also report exact match by what of a test pair occurs there: both the "
        "lemma and the set of features, only one of them, or neither (unseen).",
    )

    feature_positions: bool = option(
        False,
        "Give features positions, like characters. Otherwise they have none, and their order "
        "does not matter (Wu et al. 2021), if the model adds positions to embeddings.",
    )

    name = "inflection"
    learned_options = ("feature_positions",)
    default_search = {"beam_size": 1}  # noqa: RUF012
    default_data = {"vocabulary_kind": "char", "vocabulary_normalization": "identity"}  # noqa: RUF012

    def check_data(self, data: DataConfig) -> None:
        if not data.shares_vocabulary:
            raise InputError(
                "inflection needs one vocabulary for both sides, in which each feature is a token: "
                "give source_level and target_level the same value, and no target_vocabulary or "
                "noshare_vocabulary"
            )

    def read_file(self, path: Path) -> "PairSource":
        """Returns the pairs of a file of lemmas, forms and features."""
        return InflectionFile(path)

    def symbols(self, sources: "Sequence[PairSource]") -> list[str]:
        """Returns the features, which are tokens."""
        texts = (source_text for source in sources for source_text, _ in source)
        return sorted({word for text in texts for word in text.split()[1:] if word[0] == ";"})

    def model_config(self, config: ModelConfig, source: "Vocabulary") -> ModelConfig:
        """Returns a configuration of a Transformer in which features have no position."""
        if self.feature_positions or not isinstance(config, TransformerConfig):
            return config
        if config.attention_positions is not None:
            return config
        pieces = source.pieces(range(NUM_RESERVED, source.size))
        features = itertools.takewhile(lambda piece: piece.startswith("▁;"), pieces)
        return config.replace(unpositioned_tokens=len(list(features)))

    def read_text(self, sources: Any) -> Any:
        """Returns texts in the form that the model reads."""
        import tensorflow as tf

        texts = tf.strings.regex_replace(sources, r"[\s;]*[\t;][\s;]*", " ;")
        return tf.strings.regex_replace(texts, r"[\s;]+$", "")

    def normalize(self, text: str) -> str:
        """Returns the text in Unicode's form C, as the script of the shared task compares it."""
        return unicodedata.normalize("NFC", text.strip())

    def read_answers(self, path: Path) -> list[str]:
        """Returns the forms of a file: one a line, or beside lemma and features as in its data."""
        rows = [line.split("\t") for line in super().read_answers(path)]
        return [row[1] if len(row) == 3 else "\t".join(row) for row in rows]

    def categories(self, sources: Sequence[str]) -> list[str]:
        """Returns "both", "lemma", "feats" or "unseen", by overlap with the training file.

        As the script of the shared task does, which compares lemmas and sets of features.
        """
        if self.overlap_with is None:
            return []
        pairs = [split_source(source) for source, _ in InflectionFile(self.overlap_with)]
        lemmas, features = ({pair[side] for pair in pairs} for side in (0, 1))
        names = {
            (True, True): "both", (True, False): "lemma",
            (False, True): "feats", (False, False): "unseen",
        }  # fmt: skip
        return [
            names[lemma in lemmas, some in features] for lemma, some in map(split_source, sources)
        ]


def split_source(source: str) -> tuple[str, str]:
    """Returns the lemma and the features of what a model or a user writes.

    Example:
        >>> split_source("Hund ;N ;GEN ;SG")
        ('Hund', 'N;GEN;SG')
        >>> split_source("Hund\\tN;GEN;SG")
        ('Hund', 'N;GEN;SG')
    """
    lemma, *features = [*filter(None, re.split(r"\s*[\t;]\s*", source.strip()))] or [""]
    return lemma, ";".join(features)


class InflectionFile(PairFile):
    """A file with a lemma, its form and the form's features on each line, separated by tabs.

    Features are separated by semicolons: "Hund TAB Hundes TAB N;GEN;SG". Iteration yields what a
    model reads and the form, and raises `InputError` for a line that has another format.
    """

    kind = "inflection"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(iterate_lines(self.path), start=1):
            if not line.strip():
                continue
            columns = map(str.strip, line.split("\t"))
            lemma, form, features = [*columns, "", ""][:3]
            is_form_last = ";" in form and ";" not in features  # as in the files of 2023
            if (
                not (lemma and form and features)
                or line.count("\t") != 2
                or ";" in lemma
                or is_form_last
            ):
                raise InputError(
                    f"{self.path}, line {number}: expected lemma, tab, form, tab and features "
                    f"with semicolons between them, got {line[:60]!r}"
                )
            yield " ;".join([lemma, *filter(None, re.split(r"\s*;\s*", features))]), form
