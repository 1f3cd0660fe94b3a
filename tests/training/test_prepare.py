"""From a data configuration to text, vocabularies and token ids."""

import itertools
import pathlib

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.data.corpus import ParallelText
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.prepare import (
    make_vocabularies,
    tokenize,
    training_corpus,
)

TEXT = ParallelText(["ein Haus", "ein Baum"], ["a house", "a tree"])


@pytest.fixture
def two_lines(tmp_path):
    """Gives the configuration of a corpus of the two sentences of `TEXT`."""
    paths = {}
    for name, sentences in zip(("train_source", "train_target"), TEXT, strict=True):
        paths[name] = str(tmp_path / f"text.{name}")
        pathlib.Path(paths[name]).write_text("".join(f"{line}\n" for line in sentences))
    return DataConfig(vocabulary_kind="char", vocabulary_size=50, **paths)


# Vocabularies


def test_sides_share_a_vocabulary_or_have_their_kinds_of_tokens(two_lines):
    source, target = make_vocabularies(two_lines)
    assert source is target
    for side in TEXT:
        assert source.decode(source.encode(side)) == side
    source, target = make_vocabularies(two_lines.replace(target_level="word"))
    assert source.pieces(source.encode(["ein"])[0]) == ["▁", "e", "i", "n"]
    assert target.pieces(target.encode(["a tree"])[0]) == ["▁a", "▁tree"]
    assert "r" not in source.pieces(range(source.size))


def test_default_vocabulary_takes_what_the_text_supports(two_lines):
    said = []
    data = two_lines.replace(vocabulary_kind="bpe", vocabulary_size=None)
    size = make_vocabularies(data, say=said.append)[0].size
    assert 20 < size < 100
    assert said == [f"The bpe vocabulary has {size} tokens: the text supports no more."]
    smaller, _ = make_vocabularies(data.replace(vocabulary_size=25), say=said.append)
    assert (smaller.size, len(said)) == (25, 1)


def test_learning_has_the_options_of_the_data(two_lines):
    text = f"{'a' * 200}½\né\n"
    pathlib.Path(two_lines.train_source).write_text(text, encoding="utf-8")
    data = two_lines.replace(train_target=two_lines.train_source, vocabulary_size=300)

    def decoded(**changes):
        vocabulary, _ = make_vocabularies(data.replace(**changes))
        return vocabulary.decode(vocabulary.encode(["½", "é", "木"]))

    assert decoded() == ["½", "é", "⁇"]
    assert decoded(character_coverage=0.98)[1] == "⁇"
    assert decoded(byte_fallback=True) == ["½", "é", "木"]
    assert decoded(vocabulary_normalization="nfkc") == ["1⁄2", "é", "⁇"]


def test_given_vocabularies_are_used(two_lines, tmp_path):
    one, two = (str(tmp_path / name) for name in ("one.model", "two.model"))
    for path, letters in ((one, "abc"), (two, "xyz")):
        learn_vocabulary([letters], size=50, kind="char").save(path)
    source, target = make_vocabularies(two_lines.replace(vocabulary=one))
    assert source is target
    source, target = make_vocabularies(two_lines.replace(vocabulary=one, target_vocabulary=two))
    assert source.decode(source.encode(["cab"])) == ["cab"]
    assert target.decode(target.encode(["zy"])) == ["zy"]


# Tokens


def test_each_side_is_encoded_with_its_vocabulary(two_lines, tmp_path):
    models = make_vocabularies(two_lines.replace(share_vocabulary=False))
    ids = [list(itertools.chain(*([*row, 3] for row in model.encode(side))))
           for model, side in zip(models, TEXT, strict=True)]  # fmt: skip
    for corpus in (tokenize(TEXT, models), training_corpus(two_lines, models, tmp_path / "tokens")):
        assert [corpus.source_ids.tolist(), corpus.target_ids.tolist()] == ids
