"""The data set of a small grammar of English."""

import sys

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.data import DatasetSplit
from keras_transformer.errors import InputError
from keras_transformer.tasks import parsing
from keras_transformer.tasks.parsing import ParsingTask, toy_grammar
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


def test_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, toy_grammar.__name__)
    monkeypatch.delattr(parsing, "toy_grammar")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"package tensorflow_datasets; .*\.\[datasets\]"):
        ParsingTask().pair_sources(DataConfig(dataset="toy_grammar"), "train")
