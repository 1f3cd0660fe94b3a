"""Paragraphs are cut into sentences and joined: nothing but sentences changes."""

import gzip
import pathlib
import sys

import pytest

from keras_transformer.errors import InputError
from keras_transformer.outputs import Translation
from keras_transformer.paragraphs import SplitParagraphs, translate_paragraphs

pytest.importorskip("pysbd")

_NEWS = pathlib.Path(__file__).parent / "data" / "text" / "newstest2014.gz"
# As they are printed in books and papers.
_SENTENCES = {
    "en": [
        "Mr. Bennet was among the earliest of those who waited on Mr. Bingley.",
        "“What is his name?” he asked.",
        "He paid £3.50 at 9.30 a.m. on Jan. 5, i.e. far too much!",
        'Dr. Smith asked: "Is that so?"',
    ],
    "de": [
        "Als Gregor Samsa eines Morgens erwachte, fand er sich verwandelt.",
        "Der 3. Mai war z. B. ein Sonntag, sagte Dr. Huber.",
        "„Was ist mit mir geschehen?“",
        "Es war kein Traum.",
    ],
    "ja": ["吾輩は猫である。", "名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。"],
    "zh": ["你好吗？", "他说：“我很好。”", "“真的吗？！”", "（我不知道。）", "我们明天去北京！"],
}


class _Recorder:
    """Translates each sentence into itself between brackets."""

    def __init__(self):
        self.sentences, self.options = [], {}

    def known_codes(self, codes):
        return [code for code in codes if code == ">>deu<<"]

    def translate(self, sentences, **options):
        self.sentences, self.options = sentences, options
        return [Translation(text=f"[{sentence}]", score=-1.0) for sentence in sentences]


def _news():
    """The lines of each language: 400 German, French and English ones."""
    lines = gzip.decompress(_NEWS.read_bytes()).decode().splitlines()
    return {"de": lines[:400], "fr": lines[400:800], "en": lines[800:]}


@pytest.mark.parametrize("language", _SENTENCES)
def test_sentences_of_many_languages_are_found(language):
    space = "" if language in ("ja", "zh") else " "
    split = SplitParagraphs([space.join(_SENTENCES[language])], language)
    assert split.sentences == _SENTENCES[language]


@pytest.mark.parametrize("language", ["de", "en", "fr"])
def test_news_keeps_every_character_and_line(language):
    lines = _news()[language]
    spaces = ["  ", " \t", " ", "\u00a0 "]
    paragraphs = [
        "".join(line + spaces[(first + place) % 4] for place, line in enumerate(lines[first:][:5]))
        for first in range(0, 400, 5)
    ]
    paragraphs[7] = ""
    paragraphs[9] = "  " + paragraphs[9]
    split = SplitParagraphs(paragraphs, language)
    assert split.join(split.sentences) == paragraphs
    assert all(sentence == sentence.strip() != "" for sentence in split.sentences)


def test_translations_stand_where_their_sentences_did():
    recorder = _Recorder()
    paragraphs = ["  Hello.  How are\u00a0you? ", "", " \t", "I am fine. I am fine."]
    found = translate_paragraphs(recorder, paragraphs, "en", max_length=9)
    assert found == ["  [Hello.]  [How are\u00a0you?] ", "", " \t", "[I am fine.] [I am fine.]"]
    assert recorder.sentences == ["Hello.", "How are\u00a0you?", "I am fine.", "I am fine."]
    assert recorder.options == {"max_length": 9}


def test_spaces_are_added_after_languages_without_them():
    split = SplitParagraphs(["你好吗？我很好。"], "zh")
    assert split.join(["How are you?", "Fine."]) == ["How are you? Fine."]
    assert split.join(["お元気ですか？", "元気です。"]) == ["お元気ですか？元気です。"]
    split = SplitParagraphs(["他说：“你好。”他走了。"], "zh")
    assert split.join(["He said, “Hello.”", "He left."]) == ["He said, “Hello.” He left."]
    assert split.join(split.sentences) == ["他说：“你好。”他走了。"]


@pytest.mark.parametrize(
    "numbers",
    [
        *(f"[{separator.join(map(str, range(210, 260)))}" for separator in (" ", ", ", "-", "")),
        "[111 222 333]" * 5,
        "".join(f"[{number}, {number + 1}]" for number in range(10, 50)),
    ],
)
def test_long_lists_of_numbers_take_no_time(numbers):
    """Without a bound pysbd's regular expression would take more than a lifetime."""
    paragraph = f"It is known..{numbers} Nobody asks. The end."
    sentences = SplitParagraphs([paragraph], "en").sentences
    assert sentences[-1] == "The end."
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())


def test_wrong_use_is_rejected(monkeypatch):
    with pytest.raises(InputError, match=r"must be one of am, ar, .* got 'xx'"):
        SplitParagraphs(["One."], "xx")
    with pytest.raises(InputError, match="each of 2 sentences, got 1"):
        SplitParagraphs(["One is here. Two are not."], "en").join(["Eins."])
    monkeypatch.setitem(sys.modules, "pysbd", None)
    with pytest.raises(InputError, match=r"run pip install '.\[sentences\]' in"):
        SplitParagraphs(["One."], "en")


@pytest.mark.parametrize("start", ["", " ", "\ufeff", "\t\xa0\u200b"])
def test_each_sentence_has_the_language_code_of_its_paragraph(start):
    split = SplitParagraphs([f"{start}>>deu<< A dog runs.  A cat sleeps.", "No."], "en")
    assert split.sentences == [">>deu<< A dog runs.", ">>deu<< A cat sleeps.", "No."]
    assert split.join(["Ja.", "Gut.", "Nein."]) == ["Ja.  Gut.", "Nein."]


def test_text_that_only_looks_like_a_code_is_part_of_its_sentence():
    recorder = _Recorder()
    paragraphs = [">>wow<< A dog runs. A cat sleeps.", ">>deu<< It rains. It snows."]
    assert translate_paragraphs(recorder, paragraphs, "en") == [
        "[>>wow<< A dog runs.] [A cat sleeps.]",
        "[>>deu<< It rains.] [>>deu<< It snows.]",
    ]
