"""From attention between symbols to an alignment of words.

Shapes: S source symbols, T target symbols, both with END.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WORD_START = "▁"  # which SentencePiece puts in place of a space


def read_alignments(answer: Mapping[str, Any]) -> list[list[tuple[int, int]]]:
    """Returns the alignment of each sentence from the outputs of the signature `attention`.

    Raises:
        KeyError, TypeError, ValueError: these are not its outputs.
    """
    columns = (answer["attention"], answer["source_pieces"], answer["target_pieces"])
    return [
        align_words(np.asarray(attention, np.float32), source, target)
        for attention, source, target in zip(*columns, strict=True)
    ]


def align_words(
    attention: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> list[tuple[int, int]]:
    """Returns for each target word the source word that it looked at most.

    The attention of a word is the mean of that of its symbols, and goes to the sum of a source
    word's symbols. END is no word, and nothing is aligned to it.

    Args:
        attention: float [T, S].
        source_pieces: symbols of the source as text, END and then "" at the end.
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
    """Returns the places of each word's symbols."""
    words: list[list[int]] = []
    for place, piece in enumerate([piece for piece in pieces if piece][:-1]):  # without END
        if piece.startswith(WORD_START) or not words:
            words.append([])
        words[-1].append(place)
    return words
