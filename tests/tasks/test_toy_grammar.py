"""The data set of a small grammar of English."""

import functools

import pytest

from keras_transformer.data import DatasetSplit
from keras_transformer.tasks.parsing import toy_grammar
from keras_transformer.tasks.parsing.toy_grammar import sentences_of_split
from keras_transformer.tasks.parsing.trees import parse_tree, sentence_of


def count_trees(sentence):
    """Counts the derivations of a sentence, in all ways to divide it."""
    words = sentence.split()

    @functools.cache
    def of_symbol(symbol, start, end):
        if symbol in toy_grammar._WORDS:
            return end == start + 1 and words[start] in toy_grammar._WORDS[symbol].split()[1:]
        return sum(
            of_symbols(tuple(rule.symbols.split()), start, end)
            for rule in toy_grammar._RULES[symbol]
        )

    @functools.cache
    def of_symbols(symbols, start, end):
        first, *rest = symbols
        if not rest:
            return of_symbol(first, start, end)
        return sum(
            of_symbol(first, start, middle) * of_symbols(tuple(rest), middle, end)
            for middle in range(start + 1, end)
        )

    return sum(of_symbol(root, 0, len(words)) for root in ("ROOT/S", "ROOT/SQ"))


def test_sentences_have_one_tree():
    for sentence, tree in sentences_of_split("validation"):
        assert sentence_of(parse_tree(tree)) == sentence
        assert count_trees(sentence) == 1
    assert count_trees("Anna sees Paul") == 0


def test_splits_are_disjoint_and_fixed():
    test, train = sentences_of_split("test"), sentences_of_split("train")
    assert (len(test), len(train)) == (1_000, 20_000)
    assert not {sentence for sentence, _ in test} & {sentence for sentence, _ in train}
    assert test[0] == (
        "she is quiet .", "(S (NP (PRP she)) (VP (VBZ is) (ADJP (JJ quiet))) (. .))",
    )  # fmt: skip
    with pytest.raises(ValueError, match="split must be one of test, validation, train"):
        sentences_of_split("dev")


def test_toy_grammar_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(toy_grammar, "_SPLITS", {"test": 3, "validation": 2, "train": 4})
    split = DatasetSplit(name="toy_grammar", split="test", data_dir=tmp_path)
    assert sorted(split) == sorted(sentences_of_split("test"))
