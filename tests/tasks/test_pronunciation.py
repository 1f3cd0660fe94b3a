"""Pronunciation: dictionaries, error rates, and a training by command."""

import unicodedata

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import PronunciationTask
from keras_transformer.tasks.pronunciation import PronunciationDictionary
from keras_transformer.training.prepare import make_vocabularies


def test_error_rates_count_the_nearest_reference():
    sources = ["read", "tomato", "read", "lead", "tomato"]
    references = ["r ɛ d", "t ə m ɑ t əʊ", "r iː d", "l ɛ d", "t m eɪ t əʊ"]
    # The first is its second reference; one edit of six phones, not of five; two of three.
    outputs = ["r iː d", "t ə m eɪ t əʊ", "r iː d", "l", "t ə m eɪ t əʊ"]
    rates = PronunciationTask().evaluate(outputs, references, sources)
    assert rates == {
        "wer": pytest.approx(100 * 2 / 3), "per": pytest.approx(100 * 3 / 12), "words": 3,
    }  # fmt: skip
    assert PronunciationTask().report(rates) == {
        "words": "3", "word error rate": "66.67 %", "phone error rate": "25.00 %",
    }  # fmt: skip


def test_references_without_phones_have_no_phone_error_rate():
    task = PronunciationTask()
    results = task.evaluate(["", "A"], ["", ""], ["a", "b"])
    assert results["per"] is None
    assert task.report(results)["phone error rate"] == "undefined: the references have no phones"


def test_parallel_files_and_answers_are_normalized(tmp_path):
    (tmp_path / "words").write_text("cat\n")
    (tmp_path / "phones").write_text("K  AE1 T\n")
    data = DataConfig(
        train_source=str(tmp_path / "words"), train_target=str(tmp_path / "phones"),
        dev_source="dev", dev_target="dev",
    )  # fmt: skip
    task = PronunciationTask()
    (pairs,) = task.train_sources(data)
    assert list(pairs) == [("cat", "K AE1 T")]
    assert task.read_answers(tmp_path / "phones") == ["K AE1 T"]
    assert task.evaluate(["K AE1 T"], ["K  AE1 T"], ["cat"])["wer"] == 0


def test_tokens_are_characters_and_phones(tmp_path):
    path = tmp_path / "vie.tsv"
    path.write_text("an giang\tʔ aː n ˧˧ z aː ŋ ˧˧\nan\tʔ aː n ˧˧\n")
    task = PronunciationTask()
    data = DataConfig(train_file=str(path), dev_file=str(path), **task.default_data)
    source, target = make_vocabularies(data, task)
    [ids] = source.encode(["an giang"])
    assert source.pieces(ids) == list("▁an▁giang")
    [ids] = target.encode(["ʔ aː n ˧˧"])
    assert target.pieces(ids) == ["▁ʔ", "▁aː", "▁n", "▁˧˧"]


CMUDICT = """;;; # CMUdict
'BOUT  B AW1 T

READ  R EH1 D
READ(1)  R IY1 D
AALBORG  AO1 L B AO0 R G # place, danish
"""


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (CMUDICT, ["'BOUT B AW1 T", "READ R EH1 D", "READ R IY1 D", "AALBORG AO1 L B AO0 R G"]),
        ("an giang\tʔ  aː n # ˧˧\r\nab\ta b \n", ["an giang ʔ aː n # ˧˧", "ab a b"]),  # no comment
        (unicodedata.normalize("NFD", "été\te t ã\n"), ["été e t ã"]),
    ],
    ids=["CMUdict", "tabs", "composed"],
)
def test_dictionaries_are_read(tmp_path, text, entries):
    (tmp_path / "dictionary").write_text(text, encoding="utf-8")
    found = PronunciationDictionary(path=tmp_path / "dictionary")
    assert [" ".join(entry) for entry in found] == entries


@pytest.mark.parametrize("line", ["word", "word\t", "\tw ɜ d", "word # w ɜ d", "word\t0.9\tw ɜ d"])
def test_incomplete_line_is_reported(tmp_path, line):
    (tmp_path / "words").write_text(f"a\tb\n{line}\n")
    with pytest.raises(InputError, match=r"words, line 2: expected a word, a tab or spaces"):
        list(PronunciationDictionary(path=tmp_path / "words"))
