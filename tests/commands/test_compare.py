"""The command compare: runs on one test set, each at its own checkpoint."""

import json
import shutil

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest


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


def test_table_has_a_row_for_each_run(compare, run_dir, texts, tmp_path):
    pytest.importorskip("matplotlib")
    files = (f"--source={texts}/dev.en", f"--target={texts}/dev.xx")
    plot = f"--plot={tmp_path}/curves.png"
    result = compare(run_dir, f"{run_dir}/checkpoints/step-300", *files, plot)
    assert (result.code, result.err) == (0, f"Wrote {tmp_path}/curves.png.\n")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    header, first, second, *notes = result.out.splitlines()
    assert header.split()[:3] == ["run", "checkpoint", "parameters"]
    assert first.split()[:2] == [str(run_dir), "average"]
    assert second.split()[1] == "step-300"
    assert notes[0].startswith(f"p: of the difference from {run_dir}")
    assert notes[-1] == "sentences: 10"  # of one run: no setting differs


@pytest.fixture
def changed(run_dir, tmp_path):
    """Makes a copy of the run with other values in parts of its config.json."""

    def changed(**parts):
        other = shutil.copytree(run_dir, tmp_path / "other", dirs_exist_ok=True)
        config = json.loads((run_dir / "config.json").read_text())
        for part, values in parts.items():
            config[part] = config.get(part, {}) | values
        (other / "config.json").write_text(json.dumps(config))
        return other

    return changed


def test_settings_that_differ_are_named(compare, run_dir, changed):
    other = changed(
        training={"seed": 9, "label_smoothing": 0.25},
        search={"max_extra_length": 7},
        origin={"start_from": "/a"},
    )
    result = compare(run_dir, other, "--json")
    differences = json.loads(result.out)["differences"]
    assert differences.keys() == {
        "seed", "label_smoothing", "search.max_extra_length", "start_from"
    }  # fmt: skip
    assert differences["seed"] == {str(run_dir): 1, str(other): 9}


def test_runs_that_cannot_be_compared_are_reported(compare, refused, run_dir, changed, texts):
    refused(compare(run_dir, changed(data={"test_source": f"{texts}/test.xx"})), "--source and")
    other = changed()
    config = json.loads((other / "config.json").read_text())
    config["task"] = {"name": "parsing"}
    (other / "config.json").write_text(json.dumps(config))
    refused(compare(run_dir, other), "of task parsing")
