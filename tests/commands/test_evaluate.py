"""The command evaluate: what it scores, and where it writes."""

import json

from keras_transformer import host
from keras_transformer.client import Translation
from keras_transformer.inference import Translator


def test_test_files_are_scored(evaluate):
    result = evaluate("--beam_size=2")
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert (lines["checkpoint"], lines["sentences"]) == ("average", "12")
    assert "nrefs:1|case:mixed|" in lines["sacreBLEU"] and "|tok:13a|" in lines["sacreBLEU"]
    assert lines["exact"].split() == ["match", "1.0000"]


def test_json_and_translations_of_given_files(translate, evaluate, texts, tmp_path):
    files = (f"--source={texts}/dev.en", f"--target={texts}/dev.xx", f"--output={tmp_path}/out")
    result = evaluate(*files, "--json", "--checkpoint=150")
    assert (result.code, result.err) == (0, "")
    scores = json.loads(result.out)
    assert scores["checkpoint"] == "step-150"
    assert scores["sentences"] == 10
    assert {"bleu", "bleu_signature", "chrf", "chrf_signature", "exact_match"} <= set(scores)
    translations = (tmp_path / "out").read_text(encoding="utf-8")
    assert translate("--checkpoint=150", texts / "dev.en").out == translations


def test_control_characters_and_long_lines(evaluate, monkeypatch, tmp_path):
    assert (
        "9 lines (2, 3, 4, ...): longer than the model reads"
        in evaluate("--max_source_length=2").err
    )
    answers = lambda self, sentences: [Translation("a\nb\tc", 0.0)] * len(sentences)  # noqa: E731
    monkeypatch.setattr(Translator, "translate", answers)
    result = evaluate(f"--output={tmp_path}/out")
    assert result.code == 0, result.err
    assert (tmp_path / "out").read_text() == "a b c\n" * 12


def test_outputs_that_had_to_end_are_reported(evaluate, translate, texts):
    rows = translate("--max_length=2", "--details", f"{texts}/test.en").out.splitlines()
    cut = [line for line, row in enumerate(rows, start=1) if json.loads(row)["output_cut"]]
    assert 3 < len(cut) < 12
    shown = ", ".join(map(str, cut[:3]))
    reason = "the translation has as many tokens as it may have (max_extra_length, max_length)"
    assert f"{len(cut)} lines ({shown}, ...): {reason}" in evaluate("--max_length=2").err
    assert evaluate("--max_extra_length=1").err == ""


def test_wide_beams_have_smaller_batches(evaluate, monkeypatch):
    sizes = []
    monkeypatch.setattr(host, "num_cores", lambda: 2)

    def translate(self, sentences):
        sizes.append((len(sentences), self.batch_size))
        return [Translation("a", 0.0)] * len(sentences)

    monkeypatch.setattr(Translator, "translate", translate)
    for options in (("--batch_size=2", "--method=sampling"), ("--batch_size=5", "--beam_size=8")):
        sizes.clear()
        assert evaluate(*options).code == 0
        assert sizes == [(4, 2)] * 3
