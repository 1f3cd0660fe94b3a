"""Unicode's normalization form C as rules for SentencePiece, which has none of its own.

A vocabulary with these rules composes characters inside an exported graph too.
"""

import functools
import itertools
import unicodedata

_ALL_CHARACTERS = itertools.chain(range(0xD800), range(0xE000, 0x110000))  # no surrogates


@functools.cache
def nfc_rules() -> str:
    """Returns lines of a spelling, a tab and its normal form, both as hexadecimal code points.

    A spelling is a character that NFC replaces, or a way to write a composed character: its base,
    composed with none or some of its marks, then the other marks in any order. Spellings with an
    intervening mark that composes with nothing are not covered; `unicodedata` normalizes them.
    """
    rules: dict[str, str] = {}
    for character in map(chr, _ALL_CHARACTERS):
        base, *marks = list(unicodedata.normalize("NFD", character))
        composed = unicodedata.normalize("NFC", character)
        if composed != character:
            rules[character] = composed
            continue
        for order in itertools.permutations(marks):
            for count in range(len(order)):
                start = unicodedata.normalize("NFC", base + "".join(order[:count]))
                spelling = start + "".join(order[count:])
                if unicodedata.normalize("NFC", spelling) == character:
                    rules[spelling] = character
    return "".join(f"{_code_points(old)}\t{_code_points(new)}\n" for old, new in rules.items())


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
