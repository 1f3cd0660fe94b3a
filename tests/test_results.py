"""Results from the outputs of a signature, word alignments, and batches by length."""

import random

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import NO_SCORE
from keras_transformer.errors import InputError
from keras_transformer.results import (
    Alignment,
    Score,
    Translation,
    align_by_attention,
    batches_by_length,
    in_row_order,
    in_words_of_texts,
    read_scores,
    read_translations,
    text_input,
    warn_about_cut,
)

EOS = "</s>"


@pytest.mark.parametrize("make", [list, np.array, tf.constant], ids=["list", "array", "tensor"])
def test_sentences_may_be_a_list_an_array_or_an_eager_tensor(make):
    assert text_input("text", make(["Ein Hund", "木"])).values == ["Ein Hund", "木"]


def test_tensor_of_a_graph_is_reported():
    def translate(texts):
        return text_input("text", texts).values

    message = "InputError: text must be a list of sentences, got a tensor of a graph: translate out"
    with pytest.raises(Exception, match=message):
        tf.function(translate)(tf.constant(["a"]))
    with pytest.raises(InputError, match="got a tensor of a graph"):
        tf.function(translate, autograph=False)(tf.constant(["a"]))


def test_empty_places_of_an_n_best_list_are_dropped():
    translations = [["a", "b", ""], ["", "", ""], ["", "c", "d"]]
    scores = [[-1.0, -2.0, NO_SCORE], [NO_SCORE] * 3, [-0.5, -1.0, -3.0]]
    assert read_translations(dict(translations=translations, scores=scores)) == [
        [Translation("a", -1.0), Translation("b", -2.0)],
        [Translation("", NO_SCORE)],  # nothing was found
        [Translation("", -0.5), Translation("c", -1.0), Translation("d", -3.0)],
    ]


def test_cut_translations_are_reported():
    answer = dict(scores=[-1.5, -2.0], token_scores=[[-1.5, 0.0], [-1.0, -1.0]], lengths=[1, 2])
    scores = read_scores(answer | dict(is_cut=[False, True]))
    assert scores == [Score(-1.5, [-1.5]), Score(-2.0, [-1.0, -1.0], is_cut=True)]
    with pytest.warns(UserWarning, match="1 of 2 translations are longer than the model can gener"):
        warn_about_cut(scores)
    warn_about_cut(read_scores(answer))  # an export that does not report it


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
    # A vocabulary that reads still other words: no pairs are better than wrong ones.
    assert in_words_of("a dog", "das ist ein Hund") == []
    # One word may be a run of unknown ones.
    assert in_words_of("x y dog", "a b", count=2, may_merge=(True, False)) == []
    assert in_words_of("x dog", "a b", count=2, may_merge=(True, True)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("lengths", "size", "most", "batches"),
    [
        ([3, 5, 0, 5, 4], 2, None, [[1, 3], [4, 0], [2]]),  # the longest come first
        ([10, 100, 30, 10, 31, 1000, 10, 0], 3, 100, [[5], [1], [4, 2, 0], [3, 6, 7]]),
        ([], 4, None, []),
    ],
)
def test_rows_of_similar_length_share_a_batch(lengths, size, most, batches):
    assert batches_by_length(lengths, size, most) == batches
    assert in_row_order(batches, [[lengths[row] for row in batch] for batch in batches]) == lengths


@pytest.mark.parametrize("most", [None, 1, 50, 10_000])
def test_each_row_is_in_one_batch_of_limited_size(most):
    generator = random.Random(1)
    lengths = [generator.randrange(80) for _ in range(500)]
    batches = batches_by_length(lengths, 16, most)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    for batch in batches:
        assert len(batch) <= 16
        padded = len(batch) * max(lengths[row] for row in batch)
        assert most is None or len(batch) == 1 or padded <= most
