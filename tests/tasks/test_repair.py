"""Repair in the graph, compared with a plain loop in Python."""

import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.files import read_lines
from keras_transformer.tasks.parsing import trees
from keras_transformer.tasks.parsing.constraint import word_kinds
from keras_transformer.tasks.parsing.repair import drop_words, repair_trees
from keras_transformer.text import Vocabulary, learn_vocabulary

DATA = pathlib.Path(__file__).parents[1] / "data" / "trees"


def repaired(texts, sentences):
    found = repair_trees(tf.constant(texts)[:, None], tf.constant(sentences))
    return [text.decode() for text in found[:, 0].numpy()]


def plain_repair(text, sentence):
    """Does what `repair_trees` does for one text of whole tokens."""
    tokens, words = text.split(), sentence.split()
    if not tokens or not tokens[0].startswith("("):
        tokens = ["(TOP", *tokens]
    stack = []  # of lists: a label, then what is in the bracket

    def close():
        label, *content = stack.pop()
        if content:
            stack[-1].append(f"({label} {' '.join(content)})")

    stack.append([""])
    for token in tokens:
        if token.startswith("("):
            stack.append([token[1:]])
        elif not token.startswith(")"):
            if words:
                stack[-1].append(f"({token} {words.pop(0)})")
        elif token[1:] in [label for label, *_ in stack[2:]]:
            while stack[-1][0] != token[1:]:
                close()
            close()
    stack[-1] += [f"(XX {word})" for word in words]
    while len(stack) > 1:
        close()
    return " ".join(stack[0][1:])


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("(S (NP DT NN )NP (VP XX )VP )S", "(S (NP (DT a) (NN b)) (VP (XX c)))"),
        ("(S (NP DT (VP NN )NP XX )S", "(S (NP (DT a) (VP (NN b))) (XX c))"),  # crossing
        ("(S DT )NP NN XX XX XX )S", "(S (DT a) (NN b) (XX c))"),  # unmatched, too many words
        ("(S (NP DT )NP )S", "(S (NP (DT a)) (XX b) (XX c))"),  # too few
        ("(S (NP DT", "(S (NP (DT a) (XX b) (XX c)))"),
        ("(S (NP (VP )VP )NP XX XX XX", "(S (XX a) (XX b) (XX c))"),  # empty brackets
        ("(S XX )S (X XX XX )X", "(S (XX a) (X (XX b) (XX c)))"),  # two trees
        ("", "(TOP (XX a) (XX b) (XX c))"),
        ("( ) (( )) A(B)C D", "(TOP (ABC a) (D b) (XX c))"),
    ],
)
def test_repair_makes_a_tree_of_any_text(text, tree):
    assert repaired([text], ["a b c"]) == [tree]
    if "A(" not in text:
        assert plain_repair(text, "a b c") == tree


def test_repair_escapes_parentheses():
    texts = ["(S A B C )S", "(S A )S"]
    assert repaired(texts, ["( a▁)", " "]) == ["(S (A -LRB-) (B a) (C -RRB-))", ""]


def test_repair_of_random_texts_equals_plain_python():
    generator = random.Random(1)
    tokens = ["(A", ")A", "(B", ")B", "(CÉ", ")CÉ", "X", "Y"]
    texts = [" ".join(generator.choices(tokens, k=generator.randrange(30))) for _ in range(10_000)]
    sentences = [" ".join("abcdefgh"[: generator.randrange(1, 9)]) for _ in texts]
    found = repaired(texts, sentences)
    assert found == list(map(plain_repair, texts, sentences))
    for tree, sentence in zip(found, sentences, strict=True):
        assert trees.sentence_of(trees.parse_tree(tree)) == sentence


def test_repair_restores_linearized_treebank():
    lines = read_lines(DATA / "gum_test.mrg.gz")
    all_trees = sorted((trees.clean(tree) for _, tree in trees.read_trees(lines, "GUM")), key=len)
    for start in range(0, len(all_trees), 500):
        some = all_trees[start : start + 500]
        texts = [trees.linearize(tree, pos_tags=True) for tree in some]
        found = repaired(texts, [trees.sentence_of(tree) for tree in some])
        assert found == list(map(trees.to_text, some))


def test_drop_words_keeps_labels_and_tags():
    texts = ["⟨S a ∕DT (NP ∕NN ⟨VP b∕c ⟩ ∕VB ⟩VP ⟩S", "", "a b", " ∕X"]
    plain = [b"(S DT NN (VP ) VB )VP )S", b"", b"", b"X"]
    assert drop_words(tf.constant(texts)).numpy().tolist() == plain


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_word_kinds_counts_words(kind):
    size = {"bpe": 30, "unigram": 23, "char": 30}[kind]
    vocabulary: Vocabulary = learn_vocabulary(
        ["the dog ( barks ) at 3 cats ."] * 3, size=size, kind=kind, normalization="identity"
    )
    sentences = ["the dog", "  a  strange 木木 木  word▁x ", "", "½ ´ ("]
    for sentence in sentences:
        ids = tf.constant([[*vocabulary.encode([sentence])[0], 3, 0, 0]])
        kinds = word_kinds(ids, vocabulary).numpy()
        assert np.count_nonzero(kinds) == len(sentence.replace("▁", " ").split())


def test_word_kinds_by_characters():
    vocabulary = learn_vocabulary(
        ["the dog ( barks ) at 3 cats . , .", 'a. - ." 4'], size=30, kind="bpe",
        normalization="identity",
    )  # fmt: skip
    rows = vocabulary.encode(['the . 3 ." ( a. 木 -', "", ","])
    ids = tf.ragged.constant([[*row, 3] for row in rows]).to_tensor(0)
    found = word_kinds(ids, vocabulary).numpy()
    assert [row[row > 0].tolist() for row in found] == [[2, 3, 2, 3, 1, 2, 1, 1], [], [3]]
