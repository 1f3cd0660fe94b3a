"""A task in one file: the characters of a lemma and its features in, an inflected form out.

    python scripts/train.py --run_dir=runs/kat --user_module=examples/inflection.py \
        --task=inflection --train_file=kat_large.train --dev_file=kat.dev --test_file=kat.test
    python scripts/evaluate.py --run_dir=runs/kat --user_module=examples/inflection.py \
        --overlap_with=kat_large.train

The task of SIGMORPHON-UniMorph 2022 (Kodner et al. 2022), with a character-level Transformer as in
Wu, Cotterell and Hulden 2021. A model reads "Hund ;N ;GEN ;SG", in which each feature is one token,
and writes "Hundes"; a user may also write "Hund", a tab and "N;GEN;SG", as the files do.
"""

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer import Metric, Task, register_task
from keras_transformer.config import DataConfig, option
from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, iterate_lines


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class Inflection(Task):
    """Inflection, measured by exact match."""

    overlap_with: str | None = option(
        None,
        "Training file: also report exact match by what of a test pair occurs there: both the "
        "lemma and the features, only one of them, or neither (unseen).",
        is_path=True,
    )

    name = "inflection"
    metric = Metric("exact_match", "exact match")
    default_search = {"beam_size": 1}  # noqa: RUF012
    default_data = {"vocabulary_kind": "char", "vocabulary_normalization": "identity"}  # noqa: RUF012

    def check_data(self, data: DataConfig) -> None:
        if not data.shares_vocabulary:
            raise InputError(
                "inflection needs one vocabulary for both sides, in which each feature is a token: "
                "give source_level and target_level the same value, and no target_vocabulary or "
                "noshare_vocabulary"
            )

    def read_file(self, path: Path) -> "InflectionFile":
        return InflectionFile(path)

    def symbols(self, sources: Sequence[Any]) -> list[str]:
        """Returns the features, which are tokens."""
        texts = (source_text for source in sources for source_text, _ in source)
        return sorted({word for text in texts for word in text.split()[1:] if word[0] == ";"})

    def read_text(self, sources: Any) -> Any:
        """Returns the columns of a user's file in the form that the model reads."""
        import tensorflow as tf

        texts = tf.strings.regex_replace(sources, r"[\s;]*[\t;][\s;]*", " ;")
        return tf.strings.regex_replace(texts, r"[\s;]+$", "")

    def read_answers(self, path: Path) -> list[str]:
        """Returns the forms of a file: one a line, or beside lemma and features as in its data."""
        rows = [line.split("\t") for line in super().read_answers(path)]
        return [row[1] if len(row) == 3 else "\t".join(row) for row in rows]

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the share of right answers, of all and by overlap with the training file."""
        categories = self.overlap_with and overlaps(self.overlap_with, sources)
        is_right = collections.defaultdict(list)  # by category; "" for all
        for index, (output, reference) in enumerate(zip(outputs, references, strict=True)):
            for name in {"", categories[index] if categories else ""}:
                is_right[name].append(_normalized(output) == _normalized(reference))
        shares = {name: sum(some) / len(some) for name, some in sorted(is_right.items())}
        return {"exact_match": shares.pop(""), "categories": shares}

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        shares = {"exact match": results["exact_match"], **results["categories"]}
        return {name: f"{100 * share:.2f} %" for name, share in shares.items()}


def _normalized(form: str) -> str:
    """Returns a form as the script of the shared task compares it."""
    return unicodedata.normalize("NFC", form.strip())


def overlaps(path: Path, sources: Sequence[str]) -> list[str]:
    """Returns what of each source a training file has: "both", "lemma", "feats" or "unseen".

    As the script of the shared task does, which compares lemmas and features.
    """
    pairs = [_lemma_and_features(source) for source, _ in InflectionFile(path)]
    lemmas, features = ({pair[side] for pair in pairs} for side in (0, 1))
    names = {
        (True, True): "both", (True, False): "lemma",
        (False, True): "feats", (False, False): "unseen",
    }  # fmt: skip
    return [
        names[lemma in lemmas, some in features]
        for lemma, some in map(_lemma_and_features, sources)
    ]


def _lemma_and_features(source: str) -> tuple[str, str]:
    """Returns ("Hund", "N;GEN;SG") for "Hund ;N ;GEN ;SG", and with a tab after the lemma."""
    lemma, *features = [*filter(None, re.split(r"\s*[\t;]\s*", source.strip()))] or [""]
    return lemma, ";".join(features)


class InflectionFile(PairFile):
    """A file with lemma, tab, form, tab and features on each line: "Hund Hundes N;GEN;SG".

    Iteration yields what a model reads and the form.
    """

    kind = "inflection"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(iterate_lines(self.path), start=1):
            if not line.strip():
                continue
            lemma, form, features = [*map(str.strip, line.split("\t")), "", ""][:3]
            is_form_last = ";" in form and ";" not in features  # as in the files of 2023
            is_complete = lemma and form and features and line.count("\t") == 2
            if not is_complete or ";" in lemma or is_form_last:
                raise InputError(
                    f"{self.path}, line {number}: expected lemma, tab, form, tab and features "
                    f"with semicolons between them, got {line[:60]!r}"
                )
            yield " ;".join([lemma, *filter(None, re.split(r"\s*;\s*", features))]), form
