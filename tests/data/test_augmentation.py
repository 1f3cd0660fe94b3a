import re
import unicodedata

import pytest

from keras_transformer.data.augmentation import AugmentedPairs
from keras_transformer.data.corpus import FilePair


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "en").write_text("Tom's dog, Rex, is 12 years old!\n" * 8000, encoding="utf-8")
    (folder / "de").write_text("Toms Hund Rex ist 12 Jahre alt!\n" * 8000, encoding="utf-8")
    return FilePair(folder / "en", folder / "de")


@pytest.fixture(scope="module")
def copies(plain):
    pair = next(iter(plain))
    return [other for other in AugmentedPairs(plain, 1.0) if other != pair]


def test_pairs_stay_and_have_copies_on_average(plain):
    pairs = [*AugmentedPairs(plain, 0.25)]
    assert pairs.count(next(iter(plain))) >= 8000
    assert len(pairs) == pytest.approx(10_000, abs=150)
    assert pairs == [*AugmentedPairs(plain, 0.25)]
    assert [*AugmentedPairs(plain, 0.0)] == [*plain]
    assert len([*AugmentedPairs(plain, 2.5)]) == pytest.approx(28_000, abs=150)
    identities = [AugmentedPairs(plain, copies).identity for copies in (0.25, 0.5)]
    assert identities[0] != identities[1]
    assert all(identity["pairs"] == plain.identity for identity in identities)


@pytest.mark.parametrize(
    "source, target",
    [
        ("TOM'S DOG, REX, IS 12 YEARS OLD!", "TOMS HUND REX IST 12 JAHRE ALT!"),
        ("TOM'S DOG, REX, IS 12 YEARS OLD", "TOMS HUND REX IST 12 JAHRE ALT"),
        ("Tom's Dog, Rex, Is 12 Years Old!", "Toms Hund Rex Ist 12 Jahre Alt!"),
        ("Tom's dog, Rex, is 12 years old", "Toms Hund Rex ist 12 Jahre alt"),
        ("tom's dog, rex, is 12 years old", "Toms Hund Rex ist 12 Jahre alt"),
    ],
)
def test_case_and_punctuation_change_alike(copies, source, target):
    assert (source, target) in copies
    assert "tom's dog, rex, is 12 years old!" not in {each for each, _ in copies}


def test_items_are_copied_alone_and_in_place_of_names_and_numbers(plain, copies):
    alone = {source for source, target in copies if source == target}
    forms = (r"\d+", r"\d\d:\d\d", r"https?://\S+", r"[a-z]+@[a-z]+\.com", r"</?[a-z]+>")
    for form in forms:
        assert any(re.fullmatch(form, item) for item in alone), form
    copied = {each for source, target in copies for each in source if each in target}
    names = {unicodedata.name(each, "").split(" ")[0] for each in copied}
    scripts = {"CYRILLIC", "GREEK", "HEBREW", "CJK", "HIRAGANA"}
    assert scripts <= names
    learned = "".join(map("".join, AugmentedPairs(plain, 1.0, other_scripts=False)))
    assert not scripts & {unicodedata.name(each, "").split(" ")[0] for each in learned}
    pattern = re.compile(r"Tom's dog, (.+), is (.+) years old!")
    inside = [(pattern.fullmatch(source), target) for source, target in copies]
    items = {f"{m[1]} {m[2]}" for m, target in inside if m and f"Hund {m[1]} ist {m[2]} " in target}
    assert any("Rex" in item for item in items) and any("12" in item for item in items)
    assert len(items) > 50


def test_typing_errors_are_in_the_source_only(copies):
    typed = {source for source, target in copies if target == "Toms Hund Rex ist 12 Jahre alt!"}
    assert {"Tom’s dog, Rex, is 12 years old!", "Tom's odg, Rex, is 12 years old!"} & typed
    assert len(typed) > 30


def test_rare_words_of_the_text_come_in_addresses_as_often_as_frequent_ones():
    pairs = [("a rare word", "ein seltenes Wort"), *[("the dog", "der Hund")] * 8000]
    text = "\n".join(source for source, _ in AugmentedPairs(pairs, 1.0))
    rare, frequent = (len(re.findall(rf"\b{word}\.\w+", text)) for word in ("rare", "dog"))
    assert 0.7 < rare / frequent < 1.4
