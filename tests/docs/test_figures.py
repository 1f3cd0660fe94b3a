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


@pytest.fixture
def logs(tmp_path):
    for seed, wer in enumerate([6.95, 7.15], 1):
        (tmp_path / f"g2p-{seed}").mkdir()
        (tmp_path / f"g2p-{seed}" / "score.json").write_text(json.dumps({"wer": wer, "bleu": None}))
    rows = [{"step": 100, "loss": 3.25}, {"step": 200, "loss": 2.5, "target_tokens": 1281803}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "speed.json").write_text('{"rows": {"ours": {"rate": 3}, "theirs": {"rate": 2}}}')
    return tmp_path


def test_figures_of_pages_are_those_of_their_logs(results, capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "source", "right"),
    [
        ("**7.00**", "g2p-1/score.json wer", "**6.95**"),
        ("1", "g2p-*/score.json mean:wer", "7"),
        ("3.3", "metrics.jsonl.gz step=100:loss", "3.2"),
        ("**0,000**", "metrics.jsonl.gz target_tokens", "**1,281,803**"),
        ("0.0", "speed.json rows.ours.rate / rows.theirs.rate *10", "15.0"),
        ("7.0", "other.json wer", None),
        ("7.0", "g2p-1/score.json bleu", None),
        ("7.0", "metrics.jsonl.gz step=300:loss", None),
        ("7.0", "g2p-*/score.json wer", None),
        ("7.0", "wer", None),
    ],
)
def test_figure_becomes_that_of_its_log_or_is_reported(results, logs, figure, source, right):
    stars = "**" if "**" in figure else ""
    entries = [[f"| WER | {stars}#{stars} |", source]]
    page, faults = results.update_page(f"| WER | {figure} |", entries, logs)
    assert (page, len(faults)) == (f"| WER | {right or figure} |", 1)
    assert len(results.update_page(page, entries, logs)[1]) == (right is None)


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
