"""Reading parallel text through TensorFlow Datasets."""

import re
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from keras_transformer.data.corpus import ParallelText
from keras_transformer.data.datasets import DatasetSplit
from keras_transformer.errors import InputError

tfds.disable_progress_bar()


class TinyPhrases(tfds.core.GeneratorBasedBuilder):
    """Three phrases; config en_to_de has no supervised keys to tell its direction."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [  # noqa: RUF012
        tfds.core.BuilderConfig(name=name) for name in ("de_to_en", "en_to_de")
    ]

    def _info(self):
        name = self.builder_config.name
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.Translation(languages=("de", "en")),
            supervised_keys=("de", "en") if name == "de_to_en" else None,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(3), "dev": self._generate_examples(1)}

    def _generate_examples(self, count):
        phrases = [("Häuser", "houses"), ("ein Baum", "a tree"), ("\u2028", "")]
        for number, (german, english) in enumerate(phrases[:count]):
            yield number, {"de": german, "en": english}


class TinyBroken(tfds.core.GeneratorBasedBuilder):
    """A translation data set whose download fails as without a network."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        raise ConnectionError("host not found")

    def _generate_examples(self):
        yield from ()


class TinyNumbers(TinyBroken):
    """No translation data set at all."""

    def _info(self):
        features = tfds.features.FeaturesDict({"n": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)


def load_parallel(name, split, **options):
    return ParallelText.from_pairs(DatasetSplit(name=name, split=split, **options))


def test_sentences_come_as_text_with_the_source_first(tmp_path):
    split = DatasetSplit(name="tiny_phrases/de_to_en", split="train", data_dir=tmp_path)
    assert sorted(split) == [("Häuser", "houses"), ("ein Baum", "a tree"), ("\u2028", "")]
    assert list(split) == list(split)


def test_split_is_prepared_once_and_may_be_reversed_or_a_part(tmp_path, capsys):
    assert len(load_parallel("tiny_phrases/de_to_en", "train", data_dir=tmp_path).source) == 3
    assert capsys.readouterr().out == ""  # which may be that of a command
    whole = load_parallel("tiny_phrases/de_to_en", "train", data_dir=tmp_path)
    part = load_parallel("tiny_phrases/de_to_en", "train[1:]", data_dir=tmp_path)
    assert part == ParallelText(whole.source[1:], whole.target[1:])
    named = load_parallel("tiny_phrases/en_to_de", "dev", data_dir=tmp_path)
    turned = load_parallel("tiny_phrases/de_to_en", "dev", data_dir=tmp_path, reverse=True)
    assert named == turned == ParallelText(["houses"], ["Häuser"])
    for split, exists in (("dev", True), ("validation", False)):
        data_set = DatasetSplit(name="tiny_phrases/de_to_en", split=split, data_dir=tmp_path)
        assert data_set.has_split() is exists


def test_identity_changes_when_the_data_set_is_built_anew(tmp_path, monkeypatch):
    def identity(folder, split="train[:2]"):
        name = "tiny_phrases/de_to_en"
        return DatasetSplit(name=name, split=split, data_dir=tmp_path / folder).identity

    first = identity("first")
    assert first["name"] == "tiny_phrases/de_to_en/1.0.0"
    assert identity("first") == identity("second") == first != identity("first", "train[1:]")

    def others(self, count):  # of the same number and length
        yield from enumerate([{"de": "Bäumen", "en": "trees?"}] * count)

    monkeypatch.setattr(TinyPhrases, "_generate_examples", others)
    shutil.rmtree(tmp_path / "first")
    assert identity("first") == identity("third") != first == identity("second")


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("tiny_phrase/de_to_en", "train", "tiny_phrase "),
        ("tiny_phrases/de_to_fr", "train", "its configs are de_to_en, en_to_de"),
        ("tiny_phrases/de_to_en", "test", "(train.*dev|dev.*train)"),
        ("tiny_phrases/de_to_en/9", "train", "tiny_phrases"),
        ("tiny_phrases/de_to_en:9.9.9", "train", r"9\.9\.9"),
        ("tiny_numbers", "train", r"\['n'\] is not text in two languages"),
        ("tiny_broken", "train", "host not found"),
        ("wmt14_translate/en-de", "train", "its configs are .*de-en.*reverse swaps"),
    ],
)
def test_unreadable_data_set_is_an_error(tmp_path, name, split, message):
    message = f"^data set {re.escape(name)}, split {split} cannot be read: .*{message}.*$"
    with pytest.raises(InputError, match=message):
        load_parallel(name, split, data_dir=tmp_path)
