"""Pairs as people type them: a parallel text and altered copies, to train on both."""

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

from keras_transformer.data.corpus import PairSource

_WEIGHTS = {"capitals": 8, "title": 1, "unpunctuated": 2, "lower": 2, "typing": 2, "item": 12}
# Items are their own translation, also in place of a name of both sides: 0 is a digit, X a word of
# the pair or a made-up one, Y a made-up name, Z has letters between two of _SCRIPTS, or emoji.
_NAME = re.compile(r"\b(?:[A-Z]\w{2,}|\d[\d.,:]*\d|\d)(?!\w)")
_ITEMS = (
    "0", "00", "000", "0000", "00000", "0000000", "0.0", "0.00", "00,0", "0,000", "00,000", "00%",
    "00:00", "0:00", "0000-00-00", "00.00.0000", "0/00/0000", "0-0", "000-0000", "000 0000", "0th",
    "02nd", "+00 00 000000", "0000s", "C0", "D00", "X.com", "X.net", "X.X.org", "X.X.com", "X.X.X",
    "www.X.org", "X.net/X-X/X", "X.com/X/X", "X.X.co.uk", "https://X.de/X", "https://www.X.net/X",
    "https://X.X.com/0000/00/00", "http://X.X.org/X/X.html", "X@X.com", "X.X@X.de", "X@X.X.org",
    "X_00@X-X.org", "<X>", "</X>", "&lt;X&gt;", "@X", "#X", "X00", "Y-000", "…", "?!", "Y", "Y",
    "Y Y", "YZX", "Z", "Z", "Z",
)  # fmt: skip
_SCRIPTS = ("Āž", "Ая", "αω", "את", "بي", "一龥", "あん", "アン", "😀🙏", "🌀🗿")


@dataclasses.dataclass(frozen=True)
class AugmentedPairs:
    """A text in which altered copies follow the pairs, always the same ones."""

    pairs: PairSource
    copies: float  # per pair, on average
    other_scripts: bool = True  # not to learn a vocabulary: models learn to copy unknown tokens

    def __str__(self) -> str:
        return str(self.pairs)

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, number of copies and the identity of the text."""
        return {"kind": "augmented", "copies": self.copies, "pairs": self.pairs.identity}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, pair in enumerate(self.pairs):
            yield pair
            draw = random.Random(number)
            for _ in range(int(self.copies + draw.random())):
                form = draw.choice(_ITEMS).replace("Z", "Z" if self.other_scripts else "Y")
                words = ["X", *re.findall("[a-z]{3,}", " ".join(pair).lower())]
                form = re.sub("X", lambda _: draw.choice(words), form)  # noqa: B023
                yield _altered(draw, *pair, "".join(_filled(draw, place) for place in form))


def _altered(draw: random.Random, source: str, target: str, item: str) -> tuple[str, str]:
    (kind,) = draw.choices([*_WEIGHTS], [*_WEIGHTS.values()])
    if kind == "item":  # in place of a name, at the end, or alone
        shared = sorted({*_NAME.findall(source)} & {*_NAME.findall(target)})
        if shared and draw.random() < 0.8:
            name = rf"\b{re.escape(draw.choice(shared))}(?!\w)"
            return re.sub(name, lambda _: item, source), re.sub(name, lambda _: item, target)
        return (item, item) if draw.random() < 0.3 else (f"{source} {item}", f"{target} {item}")
    if kind == "typing":  # a letter swapped, lost or doubled; other apostrophes
        place = draw.randrange(max(len(source) - 1, 1))
        two = source[place : place + 2]
        two = draw.choice((two[::-1], two[:1], two[:1] + two)) if two.isalpha() else two
        typed = source[:place] + two + source[place + 2 :]
        return typed.replace("'", draw.choice("'`’´")), target
    if kind == "title":
        titles = [re.sub(r"(?<!\S)\w", lambda c: c[0].upper(), text) for text in (source, target)]
        return titles[0], titles[1]
    if kind != "capitals" or draw.random() < 0.5:
        source, target = source.rstrip(" .!?…"), target.rstrip(" .!?…")
    if kind == "capitals":
        return source.upper(), target.upper()
    return source.lower() if kind == "lower" else source, target


def _filled(draw: random.Random, place: str) -> str:
    if place not in "0XYZ":
        return place
    first, last = map(ord, {"0": "09", "Z": draw.choice(_SCRIPTS)}.get(place, "az"))
    count = 1 if place == "0" else draw.randint(1, 8)
    word = "".join(chr(draw.randint(first, last)) for _ in range(count))
    return word.title() if place == "Y" else word
