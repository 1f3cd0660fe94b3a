"""The data set of a small grammar of English."""

import pytest

from keras_transformer.data import DatasetSplit
from keras_transformer.tasks.parsing import toy_grammar
from keras_transformer.tasks.parsing.toy_grammar import sentences_of_split
from keras_transformer.tasks.parsing.trees import parse_tree, sentence_of


def test_splits_are_disjoint_and_fixed():
    test, train = sentences_of_split("test"), sentences_of_split("train")
    assert (len(test), len(train)) == (1_000, 20_000)
    assert not {sentence for sentence, _ in test} & {sentence for sentence, _ in train}
    assert all(sentence_of(parse_tree(tree)) == sentence for sentence, tree in test)
    assert test[0] == (
        "she is quiet .", "(S (NP (PRP she)) (VP (VBZ is) (ADJP (JJ quiet))) (. .))",
    )  # fmt: skip
    with pytest.raises(ValueError, match="split must be one of test, validation, train"):
        sentences_of_split("dev")


def test_toy_grammar_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(toy_grammar, "_SPLITS", {"test": 3, "validation": 2, "train": 4})
    split = DatasetSplit(name="toy_grammar", split="test", data_dir=tmp_path)
    assert sorted(split) == sorted(sentences_of_split("test"))
