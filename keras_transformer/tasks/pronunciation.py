"""Pronunciation of words (grapheme to phoneme): characters in, phones out.

Measured by word and phone error rate, against the nearest of the pronunciations that the
dictionary gives.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError
from keras_transformer.files import PairFile, Path, iterate_lines
from keras_transformer.tasks.task import Metric, Task, register_task

if TYPE_CHECKING:  # tasks load without TensorFlow
    from keras_transformer.data.corpus import PairSource


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class PronunciationTask(Task):
    """Pronunciation of words, learned from dictionaries."""

    name = "pronunciation"
    metric = Metric("wer", "WER", higher_is_better=False)

    default_search = {"replace_unknowns": False}  # noqa: RUF012 (letters are no phones)
    default_data = {  # noqa: RUF012
        "source_level": "char",
        "target_level": "word",
        "vocabulary_normalization": "nfc",
    }
    # Large batches, as Wu et al. 2021 found best for characters.
    default_model = {"dropout": 0.2}  # noqa: RUF012
    default_training = {  # noqa: RUF012
        "train_steps": 2000,
        "batch_tokens": 4096,
        "learning_rate": 0.003,
        "warmup_steps": 300,
        "checkpoint_steps": 100,
        "average_last": 10,
        "precision": "auto",
    }

    def read_answers(self, path: Path) -> list[str]:
        """Returns the pronunciations of a file, normalized like those of a dictionary."""
        return [normalize_phones(line) for line in super().read_answers(path)]

    def read_file(self, path: Path) -> "PairSource":
        """Returns the words and phones of a dictionary."""
        return PronunciationDictionary(path)

    def target_text(self, reference: str) -> str:
        """Returns the phones as a dictionary has them; parallel files can have others."""
        return normalize_phones(reference)

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns error rates in percent, see `Task.evaluate`.

        "wer": words whose answer is none of their references. "per": insertions, deletions and
        substitutions of phones between each answer and its nearest reference, over the phones of
        these references. A source that occurs several times is one word with several references.
        """
        answers = dict(zip(sources, outputs, strict=True))
        variants: dict[str, list[str]] = {}
        for word, reference in zip(sources, references, strict=True):
            variants.setdefault(word, []).append(reference)
        nearest = [self._compare(answers[word], variants[word]) for word in variants]
        edits, phones = zip(*nearest, strict=True)
        return {
            "wer": 100 * sum(map(bool, edits)) / len(variants),
            "per": 100 * sum(edits) / sum(phones) if any(phones) else None,
            "words": len(variants),
        }

    def _compare(self, answer: str, references: Sequence[str]) -> tuple[int, int]:
        """Returns the fewest edits between an answer and a reference, and this reference's phones.

        Of several nearest references the longest counts.
        """
        from rapidfuzz.distance import Levenshtein

        output = normalize_phones(answer).split()
        edits, negative_length = min(
            (Levenshtein.distance(output, phones), -len(phones))
            for phones in (normalize_phones(text).split() for text in references)
        )
        return edits, -negative_length

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the error rates by label."""
        phones = "undefined: the references have no phones"
        if results["per"] is not None:
            phones = f"{results['per']:.2f} %"
        return {
            "words": f"{results['words']:,}",
            "word error rate": f"{results['wer']:.2f} %",
            "phone error rate": phones,
        }


_COMMENT = ";;;"
_VARIANT_NUMBER = re.compile(r"\(\d+\)$")


@dataclasses.dataclass(frozen=True)
class PronunciationDictionary(PairFile):
    """A file with a word and one of its pronunciations on each line: phones between spaces.

    A tab stands between the two, and the word may contain spaces; or else spaces, as in CMUdict,
    whose conventions hold: lines that begin with ";;;" are comments, and so is, on lines without a
    tab, what follows " #"; WORD(1) is another pronunciation of WORD. Blank lines are skipped.

    Iteration yields a word and its phones, both in Unicode's form C, and raises `InputError` if the
    file cannot be read, or a line lacks a word or phones.

    Attributes:
        path: the file, plain or .gz.
    """

    kind = "pronunciation dictionary"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(iterate_lines(self.path), start=1):
            if not line.strip() or line.startswith(_COMMENT):
                continue
            word, phones = self._split(unicodedata.normalize("NFC", line))
            if not word or not phones or line.count("\t") > 1:
                raise InputError(
                    f"{self.path}, line {number}: expected a word, a tab or spaces, and its "
                    f"phones between spaces, got {line[:60]!r}; fix the line"
                )
            yield word, phones

    def _split(self, line: str) -> tuple[str, str]:
        word, tab, text = line.partition("\t")
        if not tab:
            word, text = [*line.split(maxsplit=1), ""][:2]
            text = f" {text}".partition(" #")[0]
        return _VARIANT_NUMBER.sub("", word.strip()), normalize_phones(text)


def normalize_phones(text: str) -> str:
    """Returns phones with one space between them, in Unicode's form C."""
    return " ".join(unicodedata.normalize("NFC", text).split())
