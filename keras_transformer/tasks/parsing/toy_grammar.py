"""A data set for parsing without a download: sentences of a small probabilistic English grammar.

Importing this module registers it with TensorFlow Datasets: `tfds.load("toy_grammar")` gives
examples such as {"sentence": "he sleeps .", "tree": "(S (NP (PRP he)) (VP (VBZ sleeps)) (. .))"}.

Each sentence has one tree: "of" attaches to the noun before it, other prepositions to the innermost
verb. All sentences differ, and a split is the same on every machine.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow_datasets as tfds

_SPLITS = {"test": 1_000, "validation": 500, "train": 20_000}
_MAX_DEPTH = 8  # deeper labels expand by their first rule, which ends soon


class _Rule(NamedTuple):
    """One way to expand a label, with its weight among all ways."""

    weight: int
    symbols: str


# "X/Y" is a bracket Y of the kind X: an object before a preposition has no relative clause, to
# which the preposition could attach.
_RULES = {
    "ROOT/S": [_Rule(8, "NP VP ."), _Rule(1, "THERE/NP BE/VP ."), _Rule(1, "ADV/ADVP , NP VP .")],
    "ROOT/SQ": [_Rule(1, "DOES NP BARE/VP ?")],
    "NP": [
        _Rule(5, "DT NN"), _Rule(3, "PRP"), _Rule(3, "NNP"), _Rule(3, "DT JJ NN"),
        _Rule(2, "BASE/NP OF/PP"), _Rule(2, "BASE/NP WHO/SBAR"), _Rule(1, "BASE/NP CC BASE/NP"),
    ],
    "BASE/NP": [_Rule(3, "DT NN"), _Rule(2, "DT JJ NN"), _Rule(1, "NNP")],
    "OF/PP": [_Rule(1, "OF SHORT/NP")],
    "SHORT/NP": [
        _Rule(4, "DT NN"), _Rule(2, "NNP"), _Rule(1, "DT JJ NN"), _Rule(1, "BASE/NP OF/PP"),
    ],
    "WHO/SBAR": [_Rule(1, "WHO/WHNP FINITE/S")],
    "WHO/WHNP": [_Rule(1, "WP")],
    "FINITE/S": [_Rule(1, "RELATIVE/VP")],
    "RELATIVE/VP": [_Rule(2, "SLEEPS"), _Rule(3, "SEES SHORT/NP")],
    "VP": [
        _Rule(3, "SLEEPS"), _Rule(4, "SEES NP"), _Rule(2, "SEES SHORT/NP NEAR/PP"),
        _Rule(2, "SLEEPS NEAR/PP"), _Rule(2, "SAYS THAT/SBAR"), _Rule(2, "MD BARE/VP"),
        _Rule(1, "IS ADJ/ADJP"),
    ],
    "BARE/VP": [_Rule(2, "SLEEP"), _Rule(3, "SEE NP"), _Rule(1, "SEE SHORT/NP NEAR/PP")],
    "NEAR/PP": [_Rule(1, "NEAR SHORT/NP")],
    "THAT/SBAR": [_Rule(1, "THAT THAT/S")],
    "THAT/S": [_Rule(1, "NP VP")],
    "THERE/NP": [_Rule(1, "EX")],
    "BE/VP": [_Rule(1, "IS SHORT/NP"), _Rule(1, "IS SHORT/NP NEAR/PP")],
    "ADV/ADVP": [_Rule(1, "RB")],
    "ADJ/ADJP": [_Rule(3, "JJ"), _Rule(1, "VERY JJ")],
}  # fmt: skip
# Each category: its tag, then its words.
_WORDS = {
    "DT": "DT the a this every", "JJ": "JJ old red small happy tired strange quiet",
    "NN": "NN dog cat king house tree boat teacher river watch saw song garden",
    "NNP": "NNP Anna Paul Berlin Oslo", "PRP": "PRP he she it", "WP": "WP who", "EX": "EX there",
    "SLEEPS": "VBZ sleeps barks waits sings", "SLEEP": "VB sleep bark wait sing",
    "SEES": "VBZ sees likes paints follows", "SEE": "VB see like paint follow watch",
    "SAYS": "VBZ says thinks knows", "IS": "VBZ is", "DOES": "VBZ does", "MD": "MD can will must",
    "NEAR": "IN near behind with", "OF": "IN of", "THAT": "IN that", "CC": "CC and or",
    "RB": "RB today often here", "VERY": "RB very quite", ".": ". .", "?": ". ?", ",": ", ,",
}  # fmt: skip


class ToyGrammar(tfds.core.GeneratorBasedBuilder):
    """Sentences of a small grammar of English, and their trees in brackets."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        sides = ("sentence", "tree")
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.Translation(languages=sides),
            supervised_keys=sides,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in _SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for number, (sentence, tree) in enumerate(sentences_of_split(split)):
            yield number, {"sentence": sentence, "tree": tree}


def sentences_of_split(split: str) -> list[tuple[str, str]]:
    """Returns the sentences of "train", "validation" or "test", each with its tree."""
    generator = random.Random(0)
    trees: dict[str, str] = {}
    for name, count in _SPLITS.items():
        earlier = len(trees)
        while len(trees) < earlier + count:
            root = "ROOT/SQ" if generator.random() < 0.1 else "ROOT/S"
            words: list[str] = []
            tree = _expand(root, generator, words, 0)
            trees.setdefault(" ".join(words), tree)
        if name == split:
            return list(trees.items())[earlier:]
    raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")


def _expand(symbol: str, generator: random.Random, words: list[str], depth: int) -> str:
    """Returns a bracket of a symbol, and appends its words."""
    if symbol in _WORDS:
        tag, *choices = _WORDS[symbol].split()
        words.append(generator.choice(choices))
        return f"({tag} {words[-1]})"
    rules = _RULES[symbol][: 1 if depth > _MAX_DEPTH else None]
    (rule,) = generator.choices(rules, [rule.weight for rule in rules])
    inside = [_expand(symbol, generator, words, depth + 1) for symbol in rule.symbols.split()]
    return f"({symbol.rpartition('/')[2]} {' '.join(inside)})"
