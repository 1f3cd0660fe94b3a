"""From a data configuration to text, vocabularies and token ids."""

import functools
import gzip

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.data import ParallelText, load_parallel, number_names
from keras_transformer.errors import InputError
from keras_transformer.text import learn_vocabulary
from keras_transformer.training import corpora
from keras_transformer.training.corpora import (
    make_vocabularies,
    read_test_text,
    read_training_text,
    read_validation_text,
    tokenize,
)

TEXT = ParallelText(["ein Haus", "ein Baum"], ["a house", "a tree"])
NUMBERS = DataConfig(dataset="number_names/en-de")


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Gives the paths of a training, a validation and a test corpus, by their field's name."""
    contents = {
        "train_source": "eins\nzwei\n",
        "train_target": "one\ntwo\n",
        "dev_source": "drei\n",
        "dev_target": "three\n",
        "test_source": "vier\n",
        "test_target": "four\n",
    }
    paths = {}
    for name, content in contents.items():
        path = tmp_path / f"{name}.gz" if name.endswith("target") else tmp_path / name
        data = content.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        paths[name] = str(path)
    return paths


@pytest.fixture
def few_numbers(tmp_path, monkeypatch):
    """Makes `number_names` a data set of the ten digits, kept in the test's own folder."""
    digits = {1: number_names._Share(train=7, validation=1, test=2)}
    monkeypatch.setattr(number_names, "_SHARES", digits)
    load = functools.partial(load_parallel, data_dir=tmp_path)
    monkeypatch.setattr(corpora, "load_parallel", load)


# Text


def test_text_comes_from_the_files_of_each_split(files):
    data = DataConfig(**files)
    assert read_training_text(data) == (["eins", "zwei"], ["one", "two"])
    assert read_validation_text(data) == (["drei"], ["three"])
    assert read_test_text(data) == (["vier"], ["four"])


def test_without_validation_files_there_is_no_validation(files):
    data = DataConfig(train_source=files["train_source"], train_target=files["train_target"])
    assert read_validation_text(data) is None
    with pytest.raises(InputError, match="names no test files"):
        read_test_text(data)


def test_a_data_set_gives_its_own_splits(few_numbers):
    texts = [read_training_text(NUMBERS), read_validation_text(NUMBERS), read_test_text(NUMBERS)]
    assert [len(text.source) for text in texts] == [7, 1, 2]
    pairs = {pair for text in texts for pair in zip(*text, strict=True)}
    assert len(pairs) == 10
    assert ("three", "drei") in pairs


def test_a_data_set_can_be_read_the_other_way_round(few_numbers):
    text = read_training_text(NUMBERS)
    assert read_training_text(NUMBERS.replace(reverse=True)) == (text.target, text.source)


def test_the_split_to_score_on_can_be_chosen(few_numbers):
    assert read_test_text(NUMBERS, "validation") == read_validation_text(NUMBERS)


# Vocabularies


def learned(**changes):
    data = NUMBERS.replace(vocabulary_kind="char", vocabulary_size=50, **changes)
    return make_vocabularies(data, TEXT)


def test_a_shared_vocabulary_is_one_object_that_knows_both_sides():
    source, target = learned()
    assert source is target
    for side in TEXT:
        assert source.decode(source.encode(side)) == side


def test_vocabularies_of_their_own_know_one_side_each():
    source, target = learned(share_vocabulary=False)
    assert source.decode(source.encode(TEXT.source)) == TEXT.source
    assert target.decode(target.encode(TEXT.target)) == TEXT.target
    assert "B" not in target.pieces(range(target.size))
    assert "r" not in source.pieces(range(source.size))


def test_the_size_asked_for_is_the_size_learned():
    data = NUMBERS.replace(vocabulary_size=25)
    assert make_vocabularies(data, TEXT)[0].size == 25


def test_given_vocabularies_are_taken_as_they_are(tmp_path):
    paths = []
    for name, letters in (("one", "abc"), ("two", "xyz")):
        paths.append(tmp_path / f"{name}.model")
        learn_vocabulary([letters], size=50, kind="char").save(paths[-1])
    first, second = map(str, paths)
    source, target = make_vocabularies(NUMBERS.replace(vocabulary=first), TEXT)
    assert source is target
    assert source.decode(source.encode(["cab"])) == ["cab"]
    both = NUMBERS.replace(vocabulary=first, target_vocabulary=second)
    source, target = make_vocabularies(both, TEXT)
    assert source.decode(source.encode(["cab"])) == ["cab"]
    assert target.decode(target.encode(["zy"])) == ["zy"]


def test_a_missing_vocabulary_is_told(tmp_path):
    data = NUMBERS.replace(vocabulary=str(tmp_path / "none.model"))
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*none\.model"):
        make_vocabularies(data, TEXT)


# Tokens


def test_each_side_is_encoded_with_its_own_vocabulary():
    vocabularies = learned(share_vocabulary=False)
    corpus = tokenize(TEXT, vocabularies)
    source, target = (
        vocabulary.encode(side) for vocabulary, side in zip(vocabularies, TEXT, strict=True)
    )
    assert corpus.source_ids.tolist() == [*source[0], 3, *source[1], 3]
    assert corpus.target_ids.tolist() == [*target[0], *target[1]]


def test_pairs_with_an_empty_or_too_long_side_are_left_out_and_counted():
    text = ParallelText([*TEXT.source, "", "ein"], [*TEXT.target, "a", "a"])
    corpus = tokenize(text, learned(), max_length=5)
    assert len(corpus) == 1
    assert corpus.dropped == {"empty": 1, "too long": 2}


def test_a_corpus_of_which_nothing_is_left_is_refused():
    with pytest.raises(InputError, match="no pair of sentences is left of 2"):
        tokenize(TEXT, learned(), max_length=2)
