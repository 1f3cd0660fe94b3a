"""A data set that needs no download: the names of numbers, from one language to another.

Importing this module registers it with TensorFlow Datasets, where it looks like
`wmt14_translate`: `tfds.load("number_names/en-de", split="train")` gives examples such as
{"en": "one hundred and two thousand and five", "de": "einhundertzweitausendfünf"}.

Numbers run from 0 to 999,999. Those of train, validation and test differ and are the same for all
languages and machines: a hash orders the numbers of each length. num2words names them.
"""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import num2words
import tensorflow_datasets as tfds

LANGUAGES = ("en", "de", "fr")


class _Share(NamedTuple):
    """How many numbers of one length go to each split."""

    train: int
    validation: int
    test: int


# Nearly all of the 10 + 90 + 900 small numbers are used; long ones need more examples.
_SHARES = {
    1: _Share(train=7, validation=1, test=2),
    2: _Share(train=60, validation=10, test=20),
    3: _Share(train=600, validation=100, test=200),
    4: _Share(train=4_500, validation=250, test=500),
    5: _Share(train=12_000, validation=300, test=600),
    6: _Share(train=20_000, validation=339, test=678),
}


class NumberNames(tfds.core.GeneratorBasedBuilder):
    """Names of whole numbers below a million in two languages, one config for each direction."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "English, German and French."}  # noqa: RUF012 (name set by TFDS)
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(
            name=f"{source}-{target}", description=f"Number names from {source} to {target}."
        )
        for source, target in itertools.permutations(LANGUAGES, 2)
    ]

    def _info(self) -> Any:
        languages = tuple(self.builder_config.name.split("-"))
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.Translation(languages=languages),
            supervised_keys=languages,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in _Share._fields}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        languages = self.builder_config.name.split("-")
        for number in numbers_of_split(split):
            yield number, {language: number_name(number, language) for language in languages}


def number_name(number: int, language: str) -> str:
    """Returns a number in words.

    Example:
        >>> number_name(81, "fr")
        'quatre-vingt-un'
    """
    name = str(num2words.num2words(number, lang=language))
    if language == "de":  # num2words 0.5.14 writes 101,000 "einhunderteinstausend"
        name = name.replace("einstausend", "eintausend")
    return name


def numbers_of_split(split: str) -> list[int]:
    """Returns the numbers of "train", "validation" or "test", in a fixed order."""
    position = _Share._fields.index(split)
    numbers = []
    for digits, share in _SHARES.items():
        start = sum(share[position + 1 :])  # test comes first, then validation, then train
        numbers += _hash_order(digits, sum(share))[start : start + share[position]]
    return numbers


def _hash_order(digits: int, count: int) -> list[int]:
    """Returns distinct numbers of that many digits in the order of a hash."""
    low, high = 10 ** (digits - 1), 10**digits
    # No other name holds the word for zero, so it goes where train's numbers are: to the end.
    drawn: dict[int, None] = {}
    for draw in itertools.count():
        if len(drawn) == count - (digits == 1):
            break
        digest = hashlib.sha256(f"{digits} {draw}".encode()).digest()
        drawn[low + int.from_bytes(digest[:8], "big") % (high - low)] = None
    return [*drawn, 0] if digits == 1 else list(drawn)
