"""Tasks of one file: they read their files and count by category; the guide trains one."""

import pathlib

import pytest
import tensorflow as tf
from helpers import user_modules

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.training.prepare import make_vocabularies

_DATA = pathlib.Path(__file__).parents[1] / "data"

with user_modules():  # the tasks are not registered for other tests
    import inflection
    import semantic_parsing


def test_inflection_reads_lemmas_features_and_forms(tmp_path):
    (tmp_path / "deu").write_text(" Hund \t Hundes \tN;;SG;\n\ngo out\twent out\tV;PST\n")
    assert list(inflection.InflectionFile(tmp_path / "deu")) == [
        ("Hund ;N ;SG", "Hundes"), ("go out ;V ;PST", "went out"),
    ]  # fmt: skip
    texts = ["go out\tV;PST", "go out\t V ; PST", "go out ;V ; ;PST ;"]
    read = inflection.Inflection().read_text(tf.constant(texts)).numpy().tolist()
    assert read == [b"go out ;V ;PST"] * 3
    (tmp_path / "answers").write_text("Hund\tHundes\tN;GEN\nHunde\n\n")
    answers = inflection.Inflection().read_answers(tmp_path / "answers")
    assert answers == ["Hundes", "Hunde", ""]


def test_tokens_are_characters_and_features():
    task = inflection.Inflection()
    data = DataConfig(train_file=str(_DATA / "inflection" / "kat.train"), **task.default_data)
    source, target = make_vocabularies(data, task)
    assert source is target
    (ids,) = source.encode(["სუფლე ;N ;ERG ;SG"])
    assert source.pieces(ids) == [*"▁სუფლე", "▁;N", "▁;ERG", "▁;SG"]
    with pytest.raises(InputError, match="one vocabulary for both sides, in which each feature"):
        task.check_data(data.replace(target_level="bpe"))


def test_forms_are_counted_by_overlap_as_the_shared_task_does(tmp_path):
    (tmp_path / "train").write_text("walk\twalked\tV;PST\nsing\tsings\tV;SG;3\n")
    task = inflection.Inflection(overlap_with=str(tmp_path / "train"))
    sources = ["walk ;V ;SG ;3", "walk ;V ;PTCP", "go\tV;PST", "go ;N ;PL", ""]
    results = task.evaluate(
        ["\u00e9t\u00e9", "x", "went", "goes", "x"],
        ["e\u0301te\u0301", "walking", "went", "goes", "sees"], sources,
    )  # fmt: skip
    categories = {"both": 1.0, "feats": 1.0, "lemma": 0.0, "unseen": 0.5}
    assert results == {"exact_match": 0.6, "categories": categories}
    assert task.report(results)["unseen"] == "50.00 %"
    assert inflection.Inflection().evaluate(["a"], ["a"], ["a ;N"])["categories"] == {}


def test_commands_and_logical_forms_are_counted_by_category():
    scan = semantic_parsing.SemanticParsingFile(_DATA / "scan" / "simple.train.txt")
    assert ("walk", "I_WALK") in list(scan)
    path = _DATA / "cogs" / "gen.tsv"
    sources, references, names = zip(*semantic_parsing.read_columns(path), strict=True)
    task = semantic_parsing.SemanticParsing(categories_of=str(path))
    results = task.evaluate(["", *references[1:]], references, sources)
    assert results["exact_match"] == pytest.approx(41 / 42)
    assert results["categories"].pop(names[0]) == 0.5
    assert set(results["categories"].values()) == {1.0}


@pytest.mark.parametrize(
    ("reader", "lines"),
    [
        (inflection.InflectionFile,
         ["Hund\tHundes", "a\t\tN", "a\tb\tN\tX", "a;\tb\tN", "Hund\tN;GEN;SG\tHundes"]),
        (semantic_parsing.SemanticParsingFile, ["IN: walk", "walk\tWALK", "a\t\tb"]),
    ],
)  # fmt: skip
def test_malformed_lines_are_reported(tmp_path, reader, lines):
    for line in lines:
        (tmp_path / "file").write_text(f"\n{line}\n")
        with pytest.raises(InputError, match="line 2: expected ") as caught:
            list(reader(tmp_path / "file"))
        assert f"got {line!r}" in str(caught.value)
