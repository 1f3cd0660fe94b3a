"""From attention between tokens to an alignment of words.

Shapes: S source tokens, T target tokens, both with EOS.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

WORD_START = "▁"  # which SentencePiece puts in place of a space


class Alignment(NamedTuple):
    """Which word of the source each word of the target looked at most.

    Attributes:
        pairs: numbers of a source and a target word, counted as the vocabulary reads the texts.
        num_source: words of the source, counted so.
        num_target: words of the target, counted so.
    """

    pairs: list[tuple[int, int]]
    num_source: int
    num_target: int

    def in_words_of(self, source: str, target: str) -> list[tuple[int, int]]:
        """Returns the pairs with words counted as they stand between the spaces of the texts.

        A vocabulary reads "it´s" as two words, where NFKC puts a space: such a word has the pairs
        of both. There are none where it cannot be told which words belong together.
        """
        sources, targets = _places(source, self.num_source), _places(target, self.num_target)
        if not sources or not targets:
            return []
        return list(dict.fromkeys((sources[left], targets[right]) for left, right in self.pairs))


def read_alignments(answer: Mapping[str, Any]) -> list[Alignment]:
    """Returns the alignment of each sentence from the outputs of the signature `attention`.

    Raises:
        KeyError, TypeError, ValueError: these are not its outputs.
    """
    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    return [
        Alignment(
            align_words(np.asarray(attention, np.float32), source, target),
            len(_words(source)),
            len(_words(target)),
        )
        for attention, source, target in zip(*columns, strict=True)
    ]


def in_words_of_texts(
    alignments: Sequence[Alignment], sources: Sequence[str], targets: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each alignment in the words of its texts, see `in_words_of`."""
    texts = zip(sources, targets, strict=True)
    return [each.in_words_of(*pair) for each, pair in zip(alignments, texts, strict=True)]


def align_words(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> list[tuple[int, int]]:
    """Returns for each target word the source word that it looked at most.

    The attention of a word is the mean of that of its tokens, and goes to the sum of a source
    word's tokens. EOS is no word, and nothing is aligned to it.

    Args:
        attention: float [T, S].
        source_pieces: tokens of the source as text, EOS and then "" at the end.
        target_pieces: the same of the target.

    Returns:
        Pairs (source word, target word), numbered from 0, in the target's order; none where a
        side is blank.
    """
    sources, targets = _words(source_pieces), _words(target_pieces)
    if not sources:
        return []
    looked = np.stack([attention[:, word].sum(axis=1) for word in sources], axis=1)
    return [
        (int(looked[word].mean(axis=0).argmax()), number) for number, word in enumerate(targets)
    ]


def _words(pieces: Sequence[str]) -> list[list[int]]:
    """Returns the places of each word's tokens."""
    words: list[list[int]] = []
    for place, piece in enumerate([piece for piece in pieces if piece][:-1]):  # without EOS
        if piece.startswith(WORD_START) or not words:
            words.append([])
        words[-1].append(place)
    return words


def _places(text: str, count: int) -> list[int]:
    """Returns which word of a text each of `count` words is that a vocabulary reads of it.

    They are fewer than the text's where it is cut off. Where they are more, the list is empty.
    """
    words = text.split()
    if len(words) == count:
        return list(range(count))
    parts = [len(unicodedata.normalize("NFKC", word).split()) for word in words]
    places = [place for place, number in enumerate(parts) for _ in range(number)]
    return places[:count] if len(places) >= count else []
