"""From a data configuration to text, vocabularies and token ids."""

import functools
import itertools
import pathlib

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.data import DatasetSplit, ParallelText, number_names
from keras_transformer.errors import InputError
from keras_transformer.tasks import TranslationTask
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.prepare import (
    make_vocabularies,
    read_test_text,
    read_validation_texts,
    tokenize,
    training_corpus,
)

TEXT = ParallelText(["ein Haus", "ein Baum"], ["a house", "a tree"])
NUMBERS = DataConfig(dataset="number_names/en-de")


@pytest.fixture
def few_numbers(tmp_path, monkeypatch):
    """Makes `number_names` a data set of the ten digits, kept in the test's own folder."""
    digits = {1: number_names._Share(train=7, validation=1, test=2)}
    monkeypatch.setattr(number_names, "_SHARES", digits)
    split = functools.partial(DatasetSplit, data_dir=tmp_path)
    monkeypatch.setattr("keras_transformer.data.DatasetSplit", split)


@pytest.fixture
def two_lines(tmp_path):
    """Gives the configuration of a corpus of the two sentences of `TEXT`."""
    paths = {}
    for name, sentences in zip(("train_source", "train_target"), TEXT, strict=True):
        paths[name] = str(tmp_path / f"text.{name}")
        pathlib.Path(paths[name]).write_text("".join(f"{line}\n" for line in sentences))
    return DataConfig(vocabulary_kind="char", vocabulary_size=50, **paths)


def read_training_text(data):
    return ParallelText.from_pairs(
        itertools.chain.from_iterable(TranslationTask().pair_sources(data, "train"))
    )


# Text


def test_each_split_reads_its_files(two_lines, tmp_path):
    assert read_training_text(two_lines) == TEXT
    assert read_validation_texts(two_lines) == []
    with pytest.raises(InputError, match="names no test files"):
        read_test_text(two_lines)
    paths = {side: str(tmp_path / side) for side in ("source", "target")}
    (tmp_path / "source").write_text("drei\n")
    (tmp_path / "target").write_text("three\n")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("vier\tfour\n")
    first, second = (["drei"], ["three"]), (["vier"], ["four"])
    dev = {f"dev_{side}": path for side, path in paths.items()}
    data = two_lines.replace(**dev, test_file=str(pairs))
    assert (read_validation_texts(data), read_test_text(data)) == ([first], second)
    test = {f"test_{side}": path for side, path in paths.items()}
    data = two_lines.replace(**test, dev_file=str(pairs))
    assert (read_validation_texts(data), read_test_text(data)) == ([second], first)
    several = {f"dev_{side}": f"{path},{path}" for side, path in paths.items()}
    assert read_validation_texts(two_lines.replace(**several)) == [first, first]


def test_data_set_has_splits(few_numbers, monkeypatch):
    (dev,) = read_validation_texts(NUMBERS)
    texts = train, _, _ = read_training_text(NUMBERS), dev, read_test_text(NUMBERS)
    assert [len(text.source) for text in texts] == [7, 1, 2]
    pairs = {pair for text in texts for pair in zip(*text, strict=True)}
    assert len(pairs) == 10
    assert ("three", "drei") in pairs
    assert read_training_text(NUMBERS.replace(reverse=True)) == (train.target, train.source)
    both = NUMBERS.replace(dataset="number_names/en-de,number_names/en-fr")
    assert read_validation_texts(both)[0] == dev
    monkeypatch.setattr(DatasetSplit, "has_split", lambda split: split.split == "train")
    assert read_validation_texts(NUMBERS) == []


def test_order_of_training_sources():
    files = dict(train_source="/a.de,/b.de", train_target="/a.en,/b.en", train_file="/a.tsv,/b.tsv")
    data = DataConfig(**files, dataset="number_names/en-de, number_names/en-fr", reverse=True)
    sources = TranslationTask().pair_sources(data, "train")
    assert list(map(str, sources)) == [
        *("/a.de and /a.en", "/b.de and /b.en", "/a.tsv", "/b.tsv"),
        "data set number_names/en-de, split train",
        "data set number_names/en-fr, split train",
    ]
    assert [source.reverse for source in sources[4:]] == [True, True]


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
    assert not two_lines.replace(source_level="bpe").shares_vocabulary
    assert two_lines.replace(source_level="char").shares_vocabulary


def test_default_vocabulary_takes_what_the_text_supports(two_lines):
    said = []
    data = two_lines.replace(vocabulary_kind="bpe", vocabulary_size=None)
    size = make_vocabularies(data, say=said.append)[0].size
    assert 20 < size < 100
    assert said == [f"The bpe vocabulary has {size} tokens: the text supports no more."]
    make_vocabularies(data.replace(vocabulary_kind="char"), say=said.append)
    smaller, _ = make_vocabularies(data.replace(vocabulary_size=25), say=said.append)
    assert (smaller.size, len(said)) == (25, 1)
    with pytest.raises(InputError, match="a bpe vocabulary of size 999 was asked for, but"):
        make_vocabularies(data.replace(vocabulary_size=999))


def test_learning_has_the_options_of_the_data(two_lines):
    text = f"{'a' * 200}½\né\n"
    pathlib.Path(two_lines.train_source).write_text(text, encoding="utf-8")
    data = two_lines.replace(train_target=two_lines.train_source, vocabulary_size=300)
    said = []

    def decoded(**changes):
        vocabulary, _ = make_vocabularies(data.replace(**changes), say=said.append)
        return vocabulary.decode(vocabulary.encode(["½", "é", "木"]))

    assert decoded() == ["½", "é", "⁇"]
    assert decoded(character_coverage=0.98)[1] == "⁇"
    assert decoded(byte_fallback=True) == ["½", "é", "木"]
    assert said == []
    assert decoded(vocabulary_normalization="nfkc") == ["1⁄2", "é", "⁇"]
    assert said[0].startswith("Normalization changes 50.0% of the source lines: '½' becomes '1⁄2'.")


def test_characters_that_look_alike_are_shown_by_their_codes(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("cafe\u0301 noir\n" * 50)
    data = DataConfig(train_source=str(lines), train_target=str(lines))
    said = []
    make_vocabularies(data, say=said.append)
    assert said[1].startswith(
        "Normalization changes 100.0% of the source lines: 'cafe\\u0301' becom"
    )


def test_vocabulary_is_learned_from_a_sample_of_a_large_text(two_lines, monkeypatch):
    monkeypatch.setattr("keras_transformer.data.corpus.MAX_SENTENCES", 1)
    whole = learn_vocabulary(itertools.chain(*TEXT), size=50, kind="char")
    assert make_vocabularies(two_lines)[0].size < whole.size


def test_given_vocabularies_are_used(two_lines, tmp_path):
    one, two = (str(tmp_path / name) for name in ("one.model", "two.model"))
    for path, letters in ((one, "abc"), (two, "xyz")):
        learn_vocabulary([letters], size=50, kind="char").save(path)
    source, target = make_vocabularies(two_lines.replace(vocabulary=one))
    assert source is target
    source, target = make_vocabularies(two_lines.replace(vocabulary=one, target_vocabulary=two))
    assert source.decode(source.encode(["cab"])) == ["cab"]
    assert target.decode(target.encode(["zy"])) == ["zy"]
    with pytest.raises(InputError, match=r"cannot read the vocabulary .*none\.model"):
        make_vocabularies(two_lines.replace(vocabulary=str(tmp_path / "none.model")))


# Tokens


def test_each_side_is_encoded_with_its_vocabulary(two_lines, tmp_path):
    models = make_vocabularies(two_lines.replace(share_vocabulary=False))
    source, target = (model.encode(side) for model, side in zip(models, TEXT, strict=True))
    for corpus in (tokenize(TEXT, models), training_corpus(two_lines, models, tmp_path / "tokens")):
        assert corpus.source_ids.tolist() == [*source[0], 3, *source[1], 3]
        assert corpus.target_ids.tolist() == [*target[0], 3, *target[1], 3]


def test_subword_sampling_of_a_file_of_words_is_reported_before_tokenization(two_lines, tmp_path):
    words = make_vocabularies(two_lines.replace(vocabulary_kind="word", vocabulary_size=None))
    words[0].save(tmp_path / "words.model")
    data = two_lines.replace(vocabulary=str(tmp_path / "words.model"), subword_sampling=0.1)
    with pytest.raises(InputError, match=r"subword_sampling needs .* pieces, got word; remove it"):
        training_corpus(data, make_vocabularies(data), tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_training_corpus_applies_both_length_limits(two_lines, tmp_path):
    pathlib.Path(two_lines.train_source).write_text("Haus\nein Haus\n\nHaus\n")
    pathlib.Path(two_lines.train_target).write_text("a\na house\na\nhouse\n")
    models = make_vocabularies(two_lines)
    limits = two_lines.replace(max_length=7, max_length_ratio=2.0)
    corpus = training_corpus(limits, models, tmp_path / "tokens")
    assert len(corpus) == 1
    assert corpus.dropped == {"empty": 1, "too long": 1, "length ratio": 1}
    with pytest.raises(InputError, match=r"no pair of sentences is left of 4 in .*train_source"):
        training_corpus(two_lines.replace(max_length=2), models, tmp_path)
