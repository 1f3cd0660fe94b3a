"""Results from the outputs of a signature, and word alignments."""

import numpy as np
import pytest

from keras_transformer.decoding import NO_SCORE
from keras_transformer.outputs import (
    Translation,
    align_words,
    read_translations,
)


def test_empty_places_of_an_n_best_list_are_dropped():
    translations = [["a", "b", ""], ["", "", ""], ["", "c", "d"]]
    scores = [[-1.0, -2.0, NO_SCORE], [NO_SCORE] * 3, [-0.5, -1.0, -3.0]]
    assert read_translations(dict(translations=translations, scores=scores)) == [
        Translation("a", -1.0, (Translation("b", -2.0),)),
        Translation("", NO_SCORE),  # nothing was found
        Translation("", -0.5, (Translation("c", -1.0), Translation("d", -3.0))),
    ]


NONE = -1  # the number of tokens without a word, such as EOS


@pytest.mark.parametrize(
    ("attention", "source", "target", "expected"),
    [
        ([[1, 8, 1], [7, 2, 1], [0, 0, 10]], [0, 1, NONE], [0, 1, NONE], [(1, 0), (0, 1)]),
        # 6 for the sum of both tokens of word 0, though neither has more than that of word 1.
        ([[3, 3, 4, 0], [0, 0, 0, 0]], [0, 0, 1, NONE], [0, NONE], [(0, 0)]),
        # 3.5 and 6 in the mean over the target word.
        ([[3, 3, 4, 0], [0, 1, 8, 1], [0, 0, 2, 8]], [0, 0, 1, NONE], [0, 0, NONE], [(1, 0)]),
        # Words without tokens count, and get no pair.
        ([[1, 9, 0], [9, 1, 0], [0, 0, 10]], [0, 2, NONE], [1, 3, NONE], [(2, 1), (0, 3)]),
        # EOS is no word.
        ([[2, 1, 7], [0, 3, 7], [9, 1, 0]], [0, 1, NONE], [0, 1, NONE], [(0, 0), (1, 1)]),
        # Ties go to the first word.
        ([[4, 4, 2], [0, 0, 10]], [0, 1, NONE], [0, NONE], [(0, 0)]),
        ([[5], [5]], [NONE], [0, NONE], []),
        ([[5, 5]], [0, NONE], [NONE], []),
    ],
)
@pytest.mark.parametrize("padding", [0, 2])
def test_target_words_align_to_most_attended_words(attention, source, target, expected, padding):
    words = ([*side, *[NONE] * padding] for side in (source, target))
    assert align_words(np.array(attention, float) / 10, *words) == expected
