"""Word alignments from attention that is made by hand."""

import numpy as np
import pytest

from keras_transformer.results import Alignment, align_words

EOS = "</s>"


def test_a_target_word_goes_with_the_source_word_that_it_looked_at_most():
    attention = [
        [0.1, 0.8, 0.1],  # zwei
        [0.7, 0.2, 0.1],  # Katzen
        [0.0, 0.0, 1.0],
    ]
    pairs = align_words(np.array(attention), ["▁cats", "▁two", EOS], ["▁zwei", "▁Katzen", EOS])
    assert pairs == [(1, 0), (0, 1)]


def test_the_tokens_of_a_word_count_together():
    attention = [
        # un   happy  cat   EOS
        [0.3, 0.3, 0.4, 0.0],  # un: 0.6 for "unhappy", though no token has more than "cat"
        [0.0, 0.1, 0.8, 0.1],  # froh: with "un" 0.35 and 0.6 in the mean
        [0.0, 0.0, 0.2, 0.8],
    ]
    pairs = align_words(np.array(attention[:1]), ["▁un", "happy", "▁cat", EOS], ["▁un", EOS])
    assert pairs == [(0, 0)]
    both = align_words(np.array(attention), ["▁un", "happy", "▁cat", EOS], ["▁un", "froh", EOS])
    assert both == [(1, 0)]


def test_a_space_alone_begins_a_word_as_in_vocabularies_of_characters():
    source = ["▁", "a", "b", "▁", "c", EOS]
    target = ["▁", "x", "▁", "y", "z", EOS]
    attention = np.zeros([6, 6])
    attention[[0, 1], [3, 4]] = 1.0  # x reads c
    attention[[2, 3, 4], [0, 1, 2]] = 1.0  # yz reads ab
    assert align_words(attention, source, target) == [(1, 0), (0, 1)]


def test_what_comes_first_is_a_word_though_no_space_begins_it():
    attention = np.array([[0.1, 0.9, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    assert align_words(attention, ["木", "▁sun", EOS], ["שמש", "▁eins", EOS]) == [(1, 0), (0, 1)]


def test_the_end_is_never_a_word_whatever_looks_at_it():
    attention = np.array([[0.2, 0.1, 0.7], [0.0, 0.3, 0.7], [0.9, 0.1, 0.0]])
    assert align_words(attention, ["▁a", "▁b", EOS], ["▁x", "▁y", EOS]) == [(0, 0), (1, 1)]


def test_padding_behind_the_end_is_no_word():
    attention = np.array([[0.2, 0.8, 0.0, 0.0, 0.0], *np.zeros([3, 5])])
    pairs = align_words(attention, ["▁a", "▁b", EOS, "", ""], ["▁x", EOS, "", ""])
    assert pairs == [(1, 0)]


def test_of_words_that_it_looked_at_alike_the_first_one_counts():
    attention = np.array([[0.4, 0.4, 0.2], [0.0, 0.0, 1.0]])
    assert align_words(attention, ["▁a", "▁b", EOS], ["▁x", EOS]) == [(0, 0)]


@pytest.mark.parametrize(
    ("source", "target"),
    [([EOS], ["▁x", EOS]), (["▁a", EOS], [EOS]), ([EOS, "", ""], [EOS, ""])],
    ids=["source", "target", "both"],
)
def test_nothing_is_aligned_where_a_side_is_blank(source, target):
    attention = np.full([len(target), len(source)], 0.5)
    assert align_words(attention, source, target) == []


def test_words_are_those_between_the_spaces_of_a_line_whatever_normalization_makes_of_them():
    pairs = [(0, 0), (1, 1), (2, 2), (3, 3)]
    # NFKC puts a space before a lone accent: the vocabulary reads two words.
    assert Alignment(pairs, 4, 4).in_words_of("it\u00b4s a dog", "das ist ein Hund") == [
        (0, 0), (0, 1), (1, 2), (2, 3),
    ]  # fmt: skip
    assert Alignment(pairs, 4, 4).in_words_of("that is a dog", "c\u00b4est un chien") == [
        (0, 0), (1, 0), (2, 1), (3, 2),
    ]  # fmt: skip
    # What is cut off has no number.
    assert Alignment(pairs[:2], 2, 2).in_words_of("a dog barks", "ein Hund bellt") == pairs[:2]
    # A vocabulary that reads other words still: better nothing than wrong numbers.
    assert Alignment(pairs, 4, 4).in_words_of("a dog", "das ist ein Hund") == []
