"""Results from the outputs of a signature, and word alignments."""

import numpy as np
import pytest

from keras_transformer.decoding import NO_SCORE
from keras_transformer.results import (
    Alignment,
    Score,
    Translation,
    align_by_attention,
    in_words_of_texts,
    read_scores,
    read_translations,
)

EOS = "</s>"


def test_empty_places_of_an_n_best_list_are_dropped():
    translations = [["a", "b", ""], ["", "", ""], ["", "c", "d"]]
    scores = [[-1.0, -2.0, NO_SCORE], [NO_SCORE] * 3, [-0.5, -1.0, -3.0]]
    assert read_translations(dict(translations=translations, scores=scores)) == [
        Translation("a", -1.0, (Translation("b", -2.0),)),
        Translation("", NO_SCORE),  # nothing was found
        Translation("", -0.5, (Translation("c", -1.0), Translation("d", -3.0))),
    ]


def test_scores_say_which_translations_were_cut():
    answer = dict(scores=[-1.5, -2.0], token_scores=[[-1.5, 0.0], [-1.0, -1.0]], lengths=[1, 2])
    scores = read_scores(answer | dict(is_cut=[False, True]))
    assert scores == [Score(-1.5, [-1.5]), Score(-2.0, [-1.0, -1.0], is_cut=True)]
    assert not any(each.is_cut for each in read_scores(answer))  # exports that do not report it


@pytest.mark.parametrize(
    ("attention", "source", "target", "expected"),
    [
        ([[1, 8, 1], [7, 2, 1], [0, 0, 10]], "▁cats ▁two", "▁zwei ▁Katzen", [(1, 0), (0, 1)]),
        # 6 for the sum of "unhappy", though no token has more than "cat".
        ([[3, 3, 4, 0], [0, 0, 0, 0]], "▁un happy ▁cat", "▁un", [(0, 0)]),
        # 3.5 and 6 in the mean over the target word.
        ([[3, 3, 4, 0], [0, 1, 8, 1], [0, 0, 2, 8]], "▁un happy ▁cat", "▁un froh", [(1, 0)]),
        # Lone spaces begin words: x reads c, yz reads ab.
        (10 * np.eye(6)[[3, 4, 0, 1, 2, 5]], "▁ a b ▁ c", "▁ x ▁ y z", [(1, 0), (0, 1)]),
        # The first token begins a word.
        ([[1, 9, 0], [9, 1, 0], [0, 0, 10]], "木 ▁sun", "שמש ▁eins", [(1, 0), (0, 1)]),
        # EOS is no word.
        ([[2, 1, 7], [0, 3, 7], [9, 1, 0]], "▁a ▁b", "▁x ▁y", [(0, 0), (1, 1)]),
        # Ties go to the first word.
        ([[4, 4, 2], [0, 0, 10]], "▁a ▁b", "▁x", [(0, 0)]),
        ([[5], [5]], "", "▁x", []),
        ([[5, 5]], "▁a", "", []),
    ],
)
@pytest.mark.parametrize("padding", [0, 2])
def test_target_words_align_to_most_attended_words(attention, source, target, expected, padding):
    padded = np.pad(np.array(attention, float) / 10, (0, padding))
    pieces = ([*text.split(), EOS, *[""] * padding] for text in (source, target))
    assert align_by_attention(padded, *pieces) == expected


def test_words_of_texts_differ_from_words_of_the_vocabulary():
    def in_words_of(source, target, count=4, may_merge=(False, False)):
        pairs = [(index, index) for index in range(count)]
        alignment = Alignment(pairs, (count, count), may_merge)
        return in_words_of_texts([alignment], [source], [target])[0]

    # NFKC puts a space before a lone accent: the vocabulary reads two words.
    pairs = [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert in_words_of("it\u00b4s a dog", "das ist ein Hund") == pairs
    pairs = [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert in_words_of("that is a dog", "c\u00b4est un chien") == pairs
    # Words that are cut off have no number.
    assert in_words_of("a dog barks", "ein Hund bellt", count=2) == [(0, 0), (1, 1)]
    # One that is not normalized by NFKC keeps a no-break space in its word.
    pairs = [(0, 0), (2, 1), (3, 2)]
    assert in_words_of("100\u00a0km weit weg", "a b c", count=3) == pairs
    assert in_words_of("a b c", "voil\u00e0\u00a0! ici l\u00e0", count=3) == [
        (left, right) for right, left in pairs
    ]
    # Characters that nobody sees are no words.
    pairs = [(0, 0), (2, 1)]
    assert in_words_of("a \u200b b", "x y", count=2) == pairs
    assert in_words_of("a \u00ad\ufeff b\u00adc", "x y", count=2) == pairs
    assert in_words_of("a\u200bb c", "x y z", count=3) == [(0, 0), (0, 1), (1, 2)]
    # A vocabulary that reads still other words: no pairs are better than wrong ones.
    assert in_words_of("a dog", "das ist ein Hund") == []
    # One word may be a run of unknown ones.
    assert in_words_of("x y dog", "a b", count=2, may_merge=(True, False)) == []
    assert in_words_of("x dog", "a b", count=2, may_merge=(True, True)) == [(0, 0), (1, 1)]
