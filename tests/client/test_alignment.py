"""Word alignments from attention that is made by hand."""

import numpy as np
import pytest

from keras_transformer.results import Alignment, align_words, in_words_of_texts

EOS = "</s>"


def test_target_words_align_to_most_attended_words():
    attention = [
        [0.1, 0.8, 0.1],  # zwei
        [0.7, 0.2, 0.1],  # Katzen
        [0.0, 0.0, 1.0],
    ]
    pairs = align_words(np.array(attention), ["▁cats", "▁two", EOS], ["▁zwei", "▁Katzen", EOS])
    assert pairs == [(1, 0), (0, 1)]


def test_attention_is_summed_over_a_words_tokens():
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


def test_lone_space_token_begins_a_word():
    source = ["▁", "a", "b", "▁", "c", EOS]
    target = ["▁", "x", "▁", "y", "z", EOS]
    attention = np.zeros([6, 6])
    attention[[0, 1], [3, 4]] = 1.0  # x reads c
    attention[[2, 3, 4], [0, 1, 2]] = 1.0  # yz reads ab
    assert align_words(attention, source, target) == [(1, 0), (0, 1)]


def test_first_token_begins_a_word():
    attention = np.array([[0.1, 0.9, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    assert align_words(attention, ["木", "▁sun", EOS], ["שמש", "▁eins", EOS]) == [(1, 0), (0, 1)]


def test_eos_is_not_aligned():
    attention = np.array([[0.2, 0.1, 0.7], [0.0, 0.3, 0.7], [0.9, 0.1, 0.0]])
    assert align_words(attention, ["▁a", "▁b", EOS], ["▁x", "▁y", EOS]) == [(0, 0), (1, 1)]


def test_padding_is_not_aligned():
    attention = np.array([[0.2, 0.8, 0.0, 0.0, 0.0], *np.zeros([3, 5])])
    pairs = align_words(attention, ["▁a", "▁b", EOS, "", ""], ["▁x", EOS, "", ""])
    assert pairs == [(1, 0)]


def test_ties_go_to_the_first_word():
    attention = np.array([[0.4, 0.4, 0.2], [0.0, 0.0, 1.0]])
    assert align_words(attention, ["▁a", "▁b", EOS], ["▁x", EOS]) == [(0, 0)]


@pytest.mark.parametrize(
    ("source", "target"),
    [([EOS], ["▁x", EOS]), (["▁a", EOS], [EOS]), ([EOS, "", ""], [EOS, ""])],
    ids=["source", "target", "both"],
)
def test_blank_sides_have_no_alignment(source, target):
    attention = np.full([len(target), len(source)], 0.5)
    assert align_words(attention, source, target) == []


def test_words_of_texts_differ_from_words_of_the_vocabulary():
    def in_words_of(source, target, count=4):
        alignment = Alignment([(index, index) for index in range(count)], count, count)
        return in_words_of_texts([alignment], [source], [target])[0]

    # NFKC puts a space before a lone accent: the vocabulary reads two words.
    pairs = [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert in_words_of("it\u00b4s a dog", "das ist ein Hund") == pairs
    pairs = [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert in_words_of("that is a dog", "c\u00b4est un chien") == pairs
    # Words that are cut off have no number.
    assert in_words_of("a dog barks", "ein Hund bellt", count=2) == [(0, 0), (1, 1)]
    # A vocabulary that reads still other words: no pairs are better than wrong ones.
    assert in_words_of("a dog", "das ist ein Hund") == []
