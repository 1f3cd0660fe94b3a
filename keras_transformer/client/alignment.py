"""From attention between tokens to an alignment of words.

Shapes: S source tokens, T target tokens, both with EOS.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.client.outputs import checked_text

WORD_START = "▁"  # which SentencePiece puts in place of a space


class Alignment(NamedTuple):
    """The source word that each target word attends to most.

    Attributes:
        pairs: indices of a source and a target word, in the words that the vocabulary makes of the
            texts.
        num_source: number of these words in the source.
        num_target: number of these words in the target.
    """

    pairs: list[tuple[int, int]]
    num_source: int
    num_target: int

    def in_words_of(self, source: str, target: str) -> list[tuple[int, int]]:
        """Returns the pairs with the indices of words between the spaces of the texts.

        Where a vocabulary makes two words of one, as in "it´s", into which NFKC puts a space, that
        one gets the pairs of both. The list is empty where the words cannot be matched up.
        """
        sources, targets = (
            _word_indices(source, self.num_source),
            _word_indices(target, self.num_target),
        )
        if not sources or not targets:
            return []
        return list(dict.fromkeys((sources[left], targets[right]) for left, right in self.pairs))


def read_alignments(answer: Mapping[str, Any]) -> list[Alignment]:
    """Returns the alignment of each sentence from the outputs of the signature `attention`.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: these are not its outputs.
    """
    sides = [
        [[checked_text(piece) for piece in pieces] for pieces in answer[name]]
        for name in ("source_pieces", "target_pieces")
    ]
    return [
        Alignment(
            align_words(np.asarray(attention, np.float32), source, target),
            len(_words(source)),
            len(_words(target)),
        )
        for attention, source, target in zip(answer["attention"], *sides, strict=True)
    ]


def in_words_of_texts(
    alignments: Sequence[Alignment], sources: Sequence[str], targets: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Returns the pairs of each alignment in the words of its texts."""
    texts = zip(sources, targets, strict=True)
    return [each.in_words_of(*pair) for each, pair in zip(alignments, texts, strict=True)]


def align_words(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> list[tuple[int, int]]:
    """Returns for each target word the source word that it attends to most.

    The attention between words is the mean over the target word's tokens of the sum over the source
    word's tokens. EOS is not a word, and nothing is aligned to it.

    Args:
        attention: float [T, S].
        source_pieces: tokens of the source as text, EOS and then "" at the end.
        target_pieces: the same of the target.

    Returns:
        Pairs (source word, target word), counted from 0, in the target's order; none where either
        side is blank.
    """
    sources, targets = _words(source_pieces), _words(target_pieces)
    if not sources:
        return []
    attended = np.stack([attention[:, word].sum(axis=1) for word in sources], axis=1)
    return [
        (int(attended[word].mean(axis=0).argmax()), number) for number, word in enumerate(targets)
    ]


def _words(pieces: Sequence[str]) -> list[list[int]]:
    """Returns the indices of each word's tokens."""
    words: list[list[int]] = []
    for index, piece in enumerate([piece for piece in pieces if piece][:-1]):  # without EOS
        if piece.startswith(WORD_START) or not words:
            words.append([])
        words[-1].append(index)
    return words


def _word_indices(text: str, count: int) -> list[int]:
    """Returns the index in a text of each of `count` words that a vocabulary makes of it.

    They are fewer than the text's where it is truncated. Where they are more, the list is empty.
    """
    words = text.split()
    if len(words) == count:
        return list(range(count))
    parts = [len(unicodedata.normalize("NFKC", word).split()) for word in words]
    indices = [index for index, number in enumerate(parts) for _ in range(number)]
    return indices[:count] if len(indices) >= count else []
