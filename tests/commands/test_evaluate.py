"""The commands evaluate and compare: what they score, and where they write."""

import json
import shutil

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest


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
    assert (scores["checkpoint"], scores["sentences"]) == ("step-150", 10)
    assert {"bleu", "bleu_signature", "chrf", "chrf_signature", "exact_match"} <= set(scores)
    translations = (tmp_path / "out").read_text(encoding="utf-8")
    assert translate("--checkpoint=150", texts / "dev.en").out == translations


def test_lines_that_were_truncated_are_listed(evaluate, translate, texts, tmp_path):
    errors = evaluate("--max_source_length=2").err
    assert "9 lines (2, 3, 4, ...): longer than the model reads" in errors
    translate("--max_length=2", f"--output={tmp_path}/cut", texts / "test.en")
    rows = translate(f"--references={tmp_path}/cut", texts / "test.en").out.splitlines()
    scores = [row.split("\t")[2:] for row in rows]  # of each token and EOS
    cut = [line for line, values in enumerate(scores, start=1) if len(values) == 3]
    assert 3 < len(cut) < 12
    shown = ", ".join(map(str, cut[:3]))
    reason = "the translation has as many tokens as it may have (max_extra_length, max_length)"
    assert f"{len(cut)} lines ({shown}, ...): {reason}" in evaluate("--max_length=2").err
    assert evaluate("--max_extra_length=1").err == ""


@pytest.fixture
def compare(call, share_translators):
    return lambda *arguments: call("compare.py", *arguments)


def test_scores_significance_and_cost_of_each_run(compare, evaluate, run_dir, texts, tmp_path):
    early = f"{run_dir}/checkpoints/step-150"
    result = compare(run_dir, early, "--json", "--bleu_tokenize=char")
    assert (result.code, result.err) == (0, "")
    record = json.loads(result.out)
    assert (record["baseline"], record["sentences"]) == (str(run_dir), 12)
    assert [run["checkpoint"] for run in record["runs"].values()] == ["average", "step-150"]
    assert [run["cost"]["step"] for run in record["runs"].values()] == [300, 150]
    outputs = {}
    for name, checkpoint in ((str(run_dir), "average"), (early, "150")):
        flags = (f"--checkpoint={checkpoint}", f"--output={tmp_path}/out", "--bleu_tokenize=char")
        alone = json.loads(evaluate("--json", *flags).out)
        outputs[name] = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
        run = record["runs"][name]
        assert (run["bleu"], run["chrf"]) == (alone["bleu"], alone["chrf"])
        assert run["checkpoint_sha256"] == alone["checkpoint_sha256"][0]
    references = [(texts / "test.xx").read_text(encoding="utf-8").splitlines()]
    bleu = BLEU(tokenize="char", force=True)
    _, expected = PairedTest(list(outputs.items()), {"bleu": bleu}, references, "bs")()
    first, second = record["runs"].values()
    assert (first["bleu_p"], second["bleu_p"]) == (None, expected["BLEU"][1].p_value)
    assert second["length_ratio"] == bleu.corpus_score(outputs[early], references).ratio


def test_settings_that_differ_are_named(compare, refused, run_dir, texts, tmp_path):
    other = shutil.copytree(run_dir, tmp_path / "other")
    config = json.loads((run_dir / "config.json").read_text())

    def compare_with(**parts):
        changed = {name: config.get(name, {}) | values for name, values in parts.items()}
        (other / "config.json").write_text(json.dumps(config | changed))
        return compare(run_dir, other, "--json")

    result = compare_with(
        training={"seed": 9, "label_smoothing": 0.25},
        search={"max_extra_length": 7},
        origin={"start_from": "/a"},
    )
    differences = json.loads(result.out)["differences"]
    names = {"seed", "label_smoothing", "search.max_extra_length", "start_from"}
    assert differences.keys() == names
    assert differences["seed"] == {str(run_dir): 1, str(other): 9}
    refused(compare_with(data={"test_source": f"{texts}/test.xx"}), "--source and")
    config["task"] = {"name": "parsing"}
    refused(compare_with(), "of task parsing")
