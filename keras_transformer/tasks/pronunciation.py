"""Pronunciation of words (grapheme to phoneme): characters in, phones out.

Measured by the share of words and of phones that are wrong, against the nearest of the
pronunciations that the dictionary gives.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError, check_choice
from keras_transformer.tasks.base import Task
from keras_transformer.tasks.metric import Metric
from keras_transformer.text_files import Path

if TYPE_CHECKING:  # needs TensorFlow, which takes long to import
    from keras_transformer.data import PairSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class PronunciationTask(Task):
    """Pronunciation of words, learned from dictionaries.

    Attributes:
        keep_stress: whether phones keep the digits at their ends, which mark stress in CMUdict.
        held_out: share of the words of the training dictionaries that the dev set gets, and as many
            the test set, where no dev set is named: each with all its pronunciations.
    """

    keep_stress: bool = True
    held_out: float = 0.05

    name = "pronunciation"
    metric = Metric("wer", "WER", higher_is_better=False)

    default_data = {  # noqa: RUF012
        "source_level": "char",
        "target_level": "word",
        "vocabulary_normalization": "nfc",
    }
    learned_options = ("keep_stress", "held_out")
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out < 0.5:
            raise InputError(f"held_out must be above 0 and below 0.5, got {self.held_out}")

    def check_data(self, data: DataConfig) -> None:
        if data.train_source and not self._has_dev_set(data):
            raise InputError(
                "without a dev set words are held out of dictionaries only: give --dev_file, or "
                "--train_file in place of --train_source and --train_target"
            )

    def pair_sources(self, data: DataConfig, split: str) -> "list[PairSource]":
        """Returns the dictionaries of a split, or its part of those to train on."""
        from keras_transformer.data import PronunciationDictionary

        found = super().pair_sources(data, split)
        if self._has_dev_set(data):
            return found
        if split != "train" and found:
            return found  # a test set of its own
        share = self.held_out
        parts = {"train": (2 * share, 1.0), "validation": (0.0, share), "test": (share, 2 * share)}
        check_choice("split", split, tuple(parts))
        return [
            dataclasses.replace(each, part=parts[split])
            for each in super().pair_sources(data, "train")
            if isinstance(each, PronunciationDictionary)
        ]

    @staticmethod
    def _has_dev_set(data: DataConfig) -> bool:
        return (data.dev_file, data.dev_source, data.dataset) != (None, None, None)

    def read_answers(self, path: Path) -> list[str]:
        """Returns the pronunciations of a file, written as those of a dictionary are read."""
        from keras_transformer.data.dictionary import normalize_phones

        return [normalize_phones(line, self.keep_stress) for line in super().read_answers(path)]

    def read_file(self, path: Path) -> "PairSource":
        """Returns the words and phones of a dictionary."""
        from keras_transformer.data import PronunciationDictionary

        return PronunciationDictionary(path=path, keep_stress=self.keep_stress)

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns error rates in percent, see `Task.evaluate`.

        "wer": words with another answer than each of their references. "per": insertions, deletions
        and substitutions of phones that make each answer its nearest reference, over the phones of
        these references. A source that occurs several times is one word with several references.
        """
        return self.evaluate_n_best([[output] for output in outputs], references, sources)

    def evaluate_n_best(
        self, n_best: Sequence[Sequence[str]], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the error rates of the best answer for each word among several."""
        answers = dict(zip(sources, n_best, strict=True))
        variants: dict[str, list[str]] = {}
        for word, reference in zip(sources, references, strict=True):
            variants.setdefault(word, []).append(reference)
        nearest = [_nearest(answers[word], variants[word]) for word in variants]
        edits, phones = zip(*nearest, strict=True)
        return {
            "wer": 100 * sum(map(bool, edits)) / len(variants),
            "per": 100 * sum(edits) / sum(phones),
            "words": len(variants),
        }

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the error rates by label."""
        return {
            "words": f"{results['words']:,}",
            "word error rate": f"{results['wer']:.2f} %",
            "phone error rate": f"{results['per']:.2f} %",
        }


def _nearest(answers: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Returns the least edits between an answer and a reference, and the latter's phones.

    Of references that are as near, the longest counts.
    """
    pairs = [(answer.split(), reference.split()) for answer in answers for reference in references]
    edits, negative_length = min((count_edits(*pair), -len(pair[1])) for pair in pairs)
    return edits, -negative_length


def count_edits(answer: Sequence[str], reference: Sequence[str]) -> int:
    """Returns the least insertions, deletions and substitutions between two sequences.

    Example:
        >>> count_edits("s IH t".split(), "s IH t IH N".split())
        2
    """
    row = list(range(len(reference) + 1))  # of the answer so far, to each prefix of the reference
    for deleted, token in enumerate(answer, start=1):
        above, row = row, [deleted]
        for place, expected in enumerate(reference):
            row.append(
                min(above[place] + (token != expected), above[place + 1] + 1, row[place] + 1)
            )
    return row[-1]
