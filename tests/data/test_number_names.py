"""The data set of number names."""

import itertools

import pytest
import tensorflow_datasets as tfds

from keras_transformer.data import number_names
from keras_transformer.data.number_names import LANGUAGES, number_name, numbers_of_split


@pytest.mark.parametrize(
    ("number", "language", "name"),
    [
        (0, "en", "zero"),
        (102_005, "en", "one hundred and two thousand and five"),
        (101_000, "de", "einhunderteintausend"),
        (21_031, "de", "einundzwanzigtausendeinunddreißig"),
        (81, "fr", "quatre-vingt-un"),
        (71, "fr", "soixante et onze"),
        (80_200, "fr", "quatre-vingt mille deux cents"),
    ],
)
def test_names_are_those_of_the_grammar(number, language, name):
    assert number_name(number, language) == name


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_two_numbers_share_a_name(language):
    numbers = {*range(1000), *range(0, 1_000_000, 1000), *numbers_of_split("test")}
    assert len({number_name(number, language) for number in numbers}) == len(numbers)


def test_splits_are_disjoint_have_every_magnitude_and_never_change():
    splits = [numbers_of_split(split) for split in ("train", "validation", "test")]
    assert list(map(len, splits)) == [37_167, 1_000, 2_000]
    numbers = list(itertools.chain(*splits))
    assert len(numbers) == len(set(numbers))
    assert 0 <= min(numbers) <= max(numbers) <= 999_999
    for split in splits:
        assert {len(str(number)) for number in split} == {1, 2, 3, 4, 5, 6}
    assert splits[2][:3] == [4, 8, 23]
    assert splits[0][6] == 0


def test_tfds_loads_it_by_name(tmp_path, monkeypatch):
    share = number_names._Share(train=4, validation=2, test=3)
    monkeypatch.setattr(number_names, "_SHARES", {1: share, 6: share})
    tfds.disable_progress_bar()
    data = tfds.load("number_names/en-de", data_dir=tmp_path)
    assert {split: len(examples) for split, examples in data.items()} == {
        "train": 8, "validation": 4, "test": 6,
    }  # fmt: skip
    for split, dataset in data.items():
        examples = list(dataset.as_numpy_iterator())
        expected = {number_name(n, "en"): number_name(n, "de") for n in numbers_of_split(split)}
        assert {e["en"].decode(): e["de"].decode() for e in examples} == expected
    for source, target in itertools.permutations(LANGUAGES, 2):
        info = tfds.builder(f"number_names/{source}-{target}", data_dir=tmp_path).info
        assert info.supervised_keys == (source, target)
