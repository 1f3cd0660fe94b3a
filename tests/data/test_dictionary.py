"""Reading pronunciation dictionaries."""

import unicodedata

import pytest

from keras_transformer.errors import InputError
from keras_transformer.tasks.pronunciation import PronunciationDictionary

CMUDICT = """;;; # CMUdict
'BOUT  B AW1 T

READ  R EH1 D
READ(1)  R IY1 D
AALBORG  AO1 L B AO0 R G # place, danish
"""


@pytest.fixture
def make(tmp_path):
    """Writes a dictionary and reads it."""

    def make(text, **options):
        path = tmp_path / "dictionary"
        path.write_text(text, encoding="utf-8")
        return PronunciationDictionary(path=path, **options)

    return make


def test_cmudict_has_comments_and_numbered_variants(make):
    assert list(make(CMUDICT)) == [
        ("'BOUT", "B AW1 T"),
        ("READ", "R EH1 D"),
        ("READ", "R IY1 D"),
        ("AALBORG", "AO1 L B AO0 R G"),
    ]
    without = [phones for _, phones in make(CMUDICT, keep_stress=False)]
    assert without == ["B AW T", "R EH D", "R IY D", "AO L B AO R G"]


def test_before_a_tab_words_may_have_spaces_and_behind_it_nothing_is_a_comment(make):
    assert list(make("an giang\tʔ  aː n # ˧˧\r\nab\ta b \n")) == [
        ("an giang", "ʔ aː n # ˧˧"),
        ("ab", "a b"),
    ]


def test_words_and_phones_are_composed(make):
    text = "\u00e9t\u00e9\te t \u00e3\n"
    assert unicodedata.normalize("NFD", text) != text
    assert list(make(unicodedata.normalize("NFD", text))) == [("été", "e t ã")]


@pytest.mark.parametrize("line", ["word", "word\t", "\tw ɜ d", "word # w ɜ d"])
def test_a_line_without_word_or_phones_is_named(make, line):
    with pytest.raises(InputError, match=r"dictionary, line 2: expected a word, a tab or spaces"):
        list(make(f"a\tb\n{line}\n"))


def test_parts_have_each_word_once_with_all_its_pronunciations(make):
    lines = [f"w{number}\t{phone}" for phone in "ab" for number in range(400)]
    text = "\n".join(lines) + "\n"
    parts = [list(make(text, part=part)) for part in ((0.0, 0.1), (0.1, 0.2), (0.2, 1.0))]
    assert sorted(pair for part in parts for pair in part) == sorted(make(text))
    words = [{word for word, _ in part} for part in parts]
    assert words[0].isdisjoint(words[1] | words[2]) and words[1].isdisjoint(words[2])
    assert [len(part) for part in parts] == [2 * len(each) for each in words]
    assert all(20 < len(each) < 60 for each in words[:2])


def test_its_identity_changes_with_the_file_and_with_how_it_is_read(make):
    first = make("a\tb\n").identity
    assert make("a\tb\n", part=(0.0, 0.5)).identity["part"] != first["part"]
    assert make("a\tb\n", keep_stress=False).identity["keep_stress"] != first["keep_stress"]
    assert make("aa\tb\n").identity["files"] != first["files"]
