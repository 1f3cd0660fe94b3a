"""Pairs as people type them: a parallel text and altered copies, to train on both."""

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

from keras_transformer.data.corpus import PairSource

_WEIGHTS = {"capitals": 14, "title": 1, "unpunctuated": 2, "lower": 2, "typing": 2, "item": 12}
_WORD = re.compile("[a-z]{3,}")
_NAME = re.compile(r"\b(?:[A-Z]\w{2,}|\d[\d.,:]*\d|\d)(?!\w)")
# Items are their own translation, also in place of a name of both sides: 0 is a digit, K a capital,
# X a word of the text or a made-up one, Y a made-up name, Z has letters between two of _SCRIPTS, or
# emoji.
_ITEMS = (
    "0", "00", "000", "0000", "00000", "0000000", "0.0", "0.00", "00,0", "0,000", "00,000", "00%",
    "00:00", "0:00", "0000-00-00", "00.00.0000", "0/00/0000", "0-0", "000-0000", "000 0000", "0th",
    "01st", "02nd", "03rd", "+00 00 000000", "0000s", "K0", "K00", "X.com", "X.net", "X.X.org",
    "X.X.com", "X.X.X", "www.X.org", "X.net/X-X/X", "X.com/X/X", "X.X.co.uk", "https://X.de/X",
    "https://www.X.net/X", "https://X.X.com/0000/00/00", "http://X.X.org/X/X.html", "X@X.com",
    "X.X@X.de", "X@X.X.org", "X_00@X-X.org", "<X>", "</X>", "&lt;X&gt;", "@X", "#X", "X00", "Y-000",
    "…", "?!", "Y", "Y", "Y Y", "YZX", "Z", "Z", "Z",
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
        words: list[str] = []  # each word of the text so far once: rare ones are copied as often
        known: set[str] = set()
        for number, pair in enumerate(self.pairs):
            yield pair
            new = [word for word in _WORD.findall(" ".join(pair).lower()) if word not in known]
            words += dict.fromkeys(new)
            known.update(new)
            draw = random.Random(number)
            for _ in range(int(self.copies + draw.random())):
                form = draw.choice(_ITEMS).replace("Z", "Z" if self.other_scripts else "Y")
                item = "".join(_filled(draw, place, words) for place in form)
                yield _altered(draw, *pair, item)


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


def _filled(draw: random.Random, place: str, words: list[str]) -> str:
    if place not in "0KXYZ":
        return place
    if place == "X" and words and draw.random() < 0.8:
        return draw.choice(words)
    first, last = map(ord, {"0": "09", "K": "AZ", "Z": draw.choice(_SCRIPTS)}.get(place, "az"))
    count = 1 if place in "0K" else draw.randint(1, 8)
    word = "".join(chr(draw.randint(first, last)) for _ in range(count))
    return word.title() if place == "Y" else word
