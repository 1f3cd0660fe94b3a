"""Pronunciation dictionaries, read as streams of words and their phones."""

import dataclasses
import hashlib
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from keras_transformer.data.corpus import file_identity
from keras_transformer.errors import InputError
from keras_transformer.text_files import Path, iterate_lines

_COMMENT = ";;;"
_VARIANT_NUMBER = re.compile(r"\(\d+\)$")
_STRESS = re.compile(r"\d+$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PronunciationDictionary:
    """A file with a word and one pronunciation of it on each line: phones between spaces.

    A tab stands between the two, and the word may then have spaces in it; or else spaces, as in
    CMUdict. Its conventions are understood: lines that begin with ";;;" are comments, and so is, on
    lines without a tab, what follows " #"; WORD(1) is one more pronunciation of WORD. Blank lines
    are skipped.

    Iteration yields a word and its phones, both in Unicode's form C, and raises `InputError` if the
    file cannot be read, or a line lacks a word or phones.

    Attributes:
        path: the file, plain or .gz.
        keep_stress: whether phones keep the digits at their ends, such as 1 in AH1.
        part: which words to read, all pronunciations of each: those whose place in [0, 1), a hash,
            is at least the first number and below the second.
    """

    path: Path
    keep_stress: bool = True
    part: tuple[float, float] = (0.0, 1.0)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, what `file_identity` gives, and how the file is read."""
        return {
            "kind": "pronunciation dictionary",
            "files": [file_identity(self.path)],
            "keep_stress": self.keep_stress,
            "part": list(self.part),
        }

    def __iter__(self) -> Iterator[tuple[str, str]]:
        first, end = self.part
        for number, line in enumerate(iterate_lines(self.path), start=1):
            if not line.strip() or line.startswith(_COMMENT):
                continue
            word, phones = self._split(unicodedata.normalize("NFC", line))
            if not word or not phones:
                raise InputError(
                    f"{self.path}, line {number}: expected a word, a tab or spaces, and its "
                    f"phones between spaces, got {line[:60]!r}; fix the line"
                )
            if first <= _place(word) < end:
                yield word, phones

    def _split(self, line: str) -> tuple[str, str]:
        word, tab, text = line.partition("\t")
        if not tab:
            word, text = [*line.split(maxsplit=1), ""][:2]
            text = f" {text}".partition(" #")[0]
        return _VARIANT_NUMBER.sub("", word.strip()), normalize_phones(text, self.keep_stress)


def normalize_phones(text: str, keep_stress: bool) -> str:
    """Returns phones with one space between them, in Unicode's form C."""
    phones = unicodedata.normalize("NFC", text).split()
    return " ".join(phones if keep_stress else (_STRESS.sub("", phone) for phone in phones))


def _place(word: str) -> float:
    """Returns a number in [0, 1) that depends on the word alone."""
    digest = hashlib.blake2b(word.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
