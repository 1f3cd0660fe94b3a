"""Figures of the pages are those of their logs (scripts/results.py)."""

import gzip
import hashlib
import json
import pathlib
import runpy
import types

import pytest
import sacrebleu

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results():
    return types.SimpleNamespace(**runpy.run_path(str(_ROOT / "scripts" / "results.py")))


def test_figures_of_pages_are_those_of_their_logs(results, capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_scores_are_computed_again_from_stored_outputs(results, tmp_path):
    log, data = tmp_path / "multi30k-raw-1", tmp_path / "multi30k"
    log.mkdir()
    data.mkdir()
    outputs = ["ein Mann reitet ein Pferd .", "ein Hund schläft im Gras ."]
    references = [outputs[0], "ein Hund schläft ."]
    test_set = {"en": "a man rides a horse .\na dog sleeps .\n", "de": "\n".join(references) + "\n"}
    for side, text in test_set.items():
        (data / f"test_2016_flickr.{side}").write_text(text)
    (log / "outputs.txt.gz").write_bytes(gzip.compress("\n".join([*outputs, ""]).encode()))
    bleu = sacrebleu.corpus_bleu(outputs, [references]).score
    digest = hashlib.sha256("".join(test_set.values()).encode()).hexdigest()
    for logged, sha256, differs in ((bleu, digest, False), (50, digest, True), (bleu, "0", True)):
        (log / "score.json").write_text(json.dumps({"bleu": logged, "test_set_sha256": sha256}))
        assert results.recompute(log, tmp_path)[1] == differs
