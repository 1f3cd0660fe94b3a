"""Pairs as people type them: a parallel text and altered copies, to train on both.

Tidy text teaches nothing about capitals, missing punctuation and misspelt words, nor that numbers,
addresses and words of other scripts are copied.
"""

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

from keras_transformer.data.corpus import PairSource

# Names and numbers that occur on both sides give way to items, which are their own translation: 0
# stands for a digit, X and Y for made-up words, Z for one of another script or an emoji.
_NAME = re.compile(r"\b(?:[A-Z]\w{2,}|\d[\d.,:]*\d|\d)(?!\w)")
_ITEMS = (
    "0", "00", "00", "000", "0000", "0000", "00000", "0000000", "0.0", "0.00", "00.0", "00,0",
    "0,000", "00,000", "000,000", "00:00", "0:00", "0000-00-00", "00.00.0000", "0/00/0000",
    "00%", "0-0", "00-00", "000-0000", "000 0000", "+00 00 000000", "0x0", "0th", "0000s", "Y0",
    "X.com", "www.X.org", "X.de/X", "X.co.uk", "https://X.com", "https://www.X.net/X",
    "http://X.X.org/X/0000/00/X.html", "X.com/X-X/X", "X@X.com", "X.X@X.de", "X_00@X-X.org",
    "<X>", "</X>", "&lt;X&gt;", "@X", "#X", "X00", "Y-000", "…", "...", "?!", "-",
    "Y", "Y", "Y", "Y", "Y,Y", "Y Y", "YZX", "YZ", "Z", "Z", "Z", "Z", "Z",
)  # fmt: skip
# The first and last letters of scripts, and emoji.
_SCRIPTS = ("Āž", "Āž", "Ая", "Αω", "את", "بي", "一龥", "あん", "アン", "😀🙏", "🌀🗿")


@dataclasses.dataclass(frozen=True)
class AugmentedPairs:
    """A parallel text in which altered copies follow a share of the pairs, always the same.

    Attributes:
        pairs: the text.
        share: of the pairs, which have a copy.
        other_scripts: whether copies have words of other scripts. Not to learn a vocabulary from:
            their characters stay unknown tokens, which a model learns to copy.
    """

    pairs: PairSource
    share: float
    other_scripts: bool = True

    def __str__(self) -> str:
        return str(self.pairs)

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, share and the identity of the text."""
        return {"kind": "augmented", "share": self.share, "pairs": self.pairs.identity}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, pair in enumerate(self.pairs):
            yield pair
            draw = random.Random(number)
            if draw.random() < self.share:
                yield _altered(draw, *pair, self.other_scripts)


def _altered(draw: random.Random, source: str, target: str, other_scripts: bool) -> tuple[str, str]:
    kinds = ("capitals", "title", "unpunctuated", "lower", "typing", "items", "item alone")
    kind = draw.choices(kinds, weights=(4, 1, 2, 2, 3, 4, 2))[0]
    item = draw.choice(_ITEMS)
    item = item if other_scripts else item.replace("Z", "Y")
    item = re.sub("[0XYZ]", lambda match: _filled(draw, match[0]), item)
    if kind == "item alone":
        return item, item
    if kind == "items":
        shared = sorted(set(_NAME.findall(source)) & set(_NAME.findall(target)))
        name = re.escape(draw.choice(shared)) + r"(?!\w)" if shared else "$"
        item = item if shared else f" {item}"
        source, target = (re.sub(name, lambda _: item, text, count=1) for text in (source, target))
        return source, target
    if kind == "typing":  # a letter swapped, lost or doubled; other apostrophes
        place = draw.randrange(max(len(source) - 1, 1))
        pair = source[place : place + 2]
        if pair.isalpha():
            pair = draw.choice((pair[::-1], pair[:1], pair[1:], pair[0] + pair))
        typed = source[:place] + pair + source[place + 2 :]
        return typed.replace("'", draw.choice("'`’´")), target
    if kind == "title":
        return _titled(source), _titled(target)
    if kind != "capitals" or draw.random() < 0.5:
        source, target = source.rstrip(" .!?…"), target.rstrip(" .!?…")
    if kind == "capitals":
        return source.upper(), target.upper()
    return (source.lower() if kind == "lower" else source), target


def _titled(text: str) -> str:
    return re.sub(r"(?<!\S)\w", lambda match: match[0].upper(), text)


def _filled(draw: random.Random, place: str) -> str:
    if place == "0":
        return draw.choice("0123456789")
    if place == "Z":
        first, last = map(ord, draw.choice(_SCRIPTS))
        return "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 8)))
    word = "".join(
        draw.choice("bcdfghjklmnprstvwz") + draw.choice("aeiou") for _ in range(draw.randint(1, 4))
    )
    return word.title() if place == "Y" else word
