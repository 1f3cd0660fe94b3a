"""The command translate: lines in, translations, scores and alignments out."""

import json
import shutil
from unittest import mock

import pytest

from keras_transformer import Translator
from keras_transformer.outputs import Score, Translation
from keras_transformer.serving import export as serving_export


def expected(text, words):
    return "".join(
        " ".join(words[word] for word in line.split()) + "\n" for line in text.splitlines()
    )


def test_files_are_translated_as_standard_input(translate, texts, words):
    files = [texts / "dev.en", texts / "test.en"]
    text = "".join(path.read_text() for path in files)
    assert translate(*files) == (0, expected(text, words), "")
    assert translate(stdin=text.encode()) == (0, expected(text, words), "")
    assert translate(stdin=b"") == (0, "", "")
    assert translate(stdin=b"\xef\xbb\xbfsun\r\ntree").out == expected("sun\ntree", words)


@pytest.mark.slow
def test_export_answers_as_its_run(translate, call, exported, texts, words, tmp_path, refused):
    export = ("translate.py", f"--saved_model={exported}")
    result = call(*export, texts / "test.en")  # whose search finds two translations
    best = [line.split("\t")[2] for line in result.out.splitlines()[::2]]
    assert "".join(f"{line}\n" for line in best) == expected((texts / "test.en").read_text(), words)
    (tmp_path / "references").write_text(f"{words['sun']} {words['cat']}\n\n", encoding="utf-8")
    scoring = (f"--references={tmp_path}/references", "--alignments")
    theirs = call(*export, *scoring, stdin=b"sun cat\ntwo\n")
    assert theirs == translate(*scoring, stdin=b"sun cat\ntwo\n")
    result = call(*export, "--max_length=2", stdin=b"sun two cat tree\n")
    assert all(len(line.split("\t")[2].split()) <= 2 for line in result.out.splitlines())
    long = call(*export, stdin=b"sun " * 13)
    truncated = "longer than the model reads (max_source_length); the end is not read"
    assert long.err == f"1 line (1): {truncated}\n"
    lowered = call(*export, "--max_extra_length=99", stdin=b"sun\n")
    assert lowered.code == 0 and "a number is too large" in lowered.err
    refused(call("translate.py", f"--saved_model={exported.parent}", stdin=b"a\n"), exported)


def test_model_of_another_toolkit_translates_as_in_python(call, sample_model):
    model, line = sample_model("hf_marian"), ">>deu<< a"
    with pytest.warns(UserWarning, match="Begin a sentence with the code"):
        expected = Translator.load(model, max_extra_length=3).translate(line)
    command = ("translate.py", f"--model={model}", "--max_extra_length=3", "--scores")
    result = call(*command, stdin=f"{line}\n".encode())
    assert (result.code, result.out) == (0, f"1\t{expected.score:.4f}\t{expected.text}\n")
    assert "Begin a sentence with the code" in result.err


@pytest.fixture
def exported_as(monkeypatch, tmp_path):
    """Makes an export of a task whose model is a mock; gives its path and the model."""

    def make(**task):
        card = {
            "training": [{"task": task}],
            "search": {"max_extra_length": 50, "max_source_length": 512},
            "signatures": {},
            "precision": "float32",
        }
        (tmp_path / "assets.extra").mkdir()
        (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
        (tmp_path / "saved_model.pb").touch()
        model = mock.Mock(spec=Translator)
        model.num_translations = 1
        monkeypatch.setattr(serving_export, "load_exported", lambda version: model)
        return tmp_path, model

    return make


@pytest.mark.parametrize("joins", [True, False])
def test_alignments_number_the_written_words(call, exported_as, joins):
    path, model = exported_as(name="translation", remove_bpe=joins)
    model.translate.return_value = [Translation("un@@ happ@@ y dogs un@@", -1.0)]
    model.align.return_value = [[(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]]
    command = ("translate.py", f"--saved_model={path}", "--alignments")
    joined = (0, "unhappy dogs un\t0-0 1-0 1-1 2-2\n", "")
    pieces = (0, "un@@ happ@@ y dogs un@@\t0-0 0-1 1-2 1-3 2-4\n", "")
    text = b"m@@ is@@ erable\n"
    assert call(*command, stdin=text) == (joined if joins else pieces)
    assert call(*command, "--remove_bpe", stdin=text) == joined
    assert call(*command, "--noremove_bpe", stdin=text) == pieces
    aligned = [arguments.args[1] for arguments in model.align.call_args_list]
    assert aligned == [["un@@ happ@@ y dogs un@@"]] * 3


def test_references_are_scored_as_the_model_learned_them(call, exported_as, tmp_path, refused):
    path, model = exported_as(name="parsing")
    model.score.return_value = [Score(-1.5, [-1.5])]
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)))\n")
    command = ("translate.py", f"--saved_model={path}", f"--references={trees}")
    assert call(*command, stdin=b"the dog\n").out == "1\t-1.5000\t-1.5000\n"
    assert model.score.call_args.args == (["the dog"], ["(S (NP DT NN )NP )S"])
    for flag, part in (("--alignments", "parsing makes"), ("--beam_size=2", "was fixed")):
        refused(call(*command[:2], flag, stdin=b"the dog\n"), flag.partition("=")[0], part)


@pytest.mark.slow
def test_checkpoints_and_runs_form_an_ensemble(translate, call, run_dir, texts, tmp_path):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    arguments = ("--scores", texts / "test.en")
    twice = call("translate.py", f"--run_dir={run_dir},{copy}", *arguments)
    assert (twice.code, twice.err) == (0, "")
    assert twice.out == translate(*arguments).out
    outputs = {
        name: translate(f"--checkpoint={name}", *arguments).out
        for name in ("auto", "average", "latest", "150", "300", "150,300")
    }
    assert outputs["auto"] == outputs["average"]
    assert outputs["latest"] == outputs["300"]
    assert len(set(outputs.values())) == 4


def test_sentences_are_translated_by_themselves(translate):
    pytest.importorskip("pysbd")
    lines = "  Sun cat. Two tree.  \n\tCat two.\tSun two.\n \nTree!\n"
    result = translate("--split_sentences=en", stdin=lines.encode())
    assert (result.code, result.err) == (0, "")
    alone = "Sun cat.\nTwo tree.\nCat two.\nSun two.\nTree!\n"
    one, two, three, four, five = translate(stdin=alone.encode()).out.splitlines()
    assert result.out == f"  {one} {two}  \n\t{three}\t{four}\n \n{five}\n"
    # Long lines are read whole, but for their long sentences.
    line = " ".join(["Sun cat two tree."] * 5) + "\n"
    options = ("--max_source_length=6", "--max_extra_length=2", "--split_sentences=en")
    longer = "Sun.\nSun cat. Sun cat two tree sun cat two.\n"
    truncated = "longer than the model reads (max_source_length); the end is not read"
    for text, flags, reported in (
        (line, options[:2], f"1 line (1): {truncated}\n"),
        (line, options, ""),
        (longer, options, f"1 line (2): {truncated}\n"),
    ):
        assert translate(*flags, stdin=text.encode()).err == reported
