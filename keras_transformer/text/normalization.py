"""Text before it is tokenized: spaces, invisible characters, and Unicode's normalization form C.

The same rules hold in Python (`Vocabulary.visible`), in a graph (`Tokenizer`), and as far as they
go in the SentencePiece model of a learned vocabulary (`rules`), for programs that read that alone.
Python and TensorFlow may have different versions of Unicode: they agree on all characters that both
know. Letters with marks that only one of them knows may be composed by that one.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable

from keras_transformer.config import WORD_START


def any_of(characters: Iterable[str]) -> str:
    """Returns a pattern, of Python and of TensorFlow, that matches one of some characters."""
    codes = sorted(map(ord, characters))
    if not codes:
        return r"\b\B"  # which nothing matches
    runs = itertools.groupby(enumerate(codes), lambda place: place[1] - place[0])
    ranges = ([re.escape(chr(code)) for _, code in run] for _, run in runs)
    return f"[{''.join(f'{run[0]}-{run[-1]}' for run in ranges)}]"


JOINERS = "\u200c\u200d"  # between letters of Persian and Sinhala, and in emoji
CONTROLS = [c for c in map(chr, range(0x2030)) if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
SPACES = [c for c in map(chr, range(0x3001)) if unicodedata.category(c) == "Zs"] + CONTROLS
# Read as a space with "nfc", where NFKC writes a space: U+00A0 and its like get no token.
LIKE_SPACES = [c for c in SPACES if unicodedata.normalize("NFKC", c) == " "] + CONTROLS
# Characters that nobody sees: Unicode's property Default_Ignorable_Code_Point.
IGNORABLE = [
    chr(code)
    for first, last in (
        (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5),
        (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8),
        (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )
    for code in range(first, last + 1)
]  # fmt: skip
NOTHING_VISIBLE = any_of([*SPACES, *IGNORABLE, WORD_START]) + "+"
COMPOSED_NFKC = "nfc_nmt_nfkc"  # the name of SentencePiece's rules of NFKC for text in form C
_LAST_COMPOSED = 0x30000  # Unicode has no character beyond that normalization changes


def compose(text: str) -> str:
    """Returns text in Unicode's normalization form C."""
    return unicodedata.normalize("NFC", text)


def decompose(text: str) -> str:
    """Returns text in Unicode's normalization form D."""
    return unicodedata.normalize("NFD", text)


@functools.cache
def rules() -> str:
    """Returns the rules for SentencePiece's trainer, which has none for form C.

    Each line is a spelling, a tab and what it becomes, as hexadecimal code points. SentencePiece
    cannot put marks in order: text whose marks are in another order must be composed before.
    """
    becomes = {}
    for character in map(chr, itertools.chain(range(0xD800), range(0xE000, _LAST_COMPOSED))):
        if (composed := compose(character)) != character:
            becomes[character] = composed
        elif (parts := decompose(character)) != character:
            becomes[parts] = character
    becomes |= {c: "" for c in IGNORABLE if c not in JOINERS}
    becomes |= {c: " " for c in LIKE_SPACES if c not in " \0"}  # no rule can have a NUL
    return "".join(
        "\t".join(" ".join(f"{ord(c):X}" for c in text) for text in rule) + "\n"
        for rule in becomes.items()
    )
