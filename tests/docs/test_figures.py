"""Figures of the pages are those of their logs (scripts/results.py)."""

import gzip
import hashlib
import json
import pathlib
import re
import runpy
import types

import pytest
import sacrebleu

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "docs" / "results"
_FIGURES = json.loads((_RESULTS / "figures.json").read_text("utf-8"))
_PAGES = sorted({f"docs/results/{path.name}" for path in _RESULTS.glob("*.md")} | _FIGURES.keys())


@pytest.fixture(scope="module")
def results():
    return types.SimpleNamespace(**runpy.run_path(str(_ROOT / "scripts" / "results.py")))


@pytest.fixture
def logs(tmp_path):
    for seed, wer in enumerate([0.0695, 0.0715], 1):
        folder = tmp_path / f"g2p-{seed}"
        folder.mkdir()
        (folder / "score.json").write_text(json.dumps({"wer": wer, "versions": {"keras": 3}}))
    rows = [{"step": 100, "loss": 3.25}, {"step": 200, "loss": 2.5, "target_tokens": 1281803}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    rates = {"ours/128x16": {"rate": 3}, "theirs/128x16": {"rate": 2, "equal": None}}
    (tmp_path / "speed.json").write_text(json.dumps({"machine": "a", "rows": rates}))
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    return tmp_path


@pytest.mark.parametrize("page", _PAGES)
def test_figures_of_pages_are_those_of_their_logs(results, page):
    text, entries = (_ROOT / page).read_text("utf-8"), _FIGURES.get(page, [])
    _, faults = results.update_page(text, entries, _RESULTS / "logs")
    assert faults + results.figures_without_log(text, entries) == []


@pytest.mark.parametrize(
    ("figure", "source", "found", "fault"),
    [
        ("**7.00**", "g2p-1/score.json wer *100", "**6.95**", "has 6.95"),
        ("1", "g2p-*/score.json mean:wer *100", "7", "has 7"),
        ("0.0", "g2p-*/score.json std:wer *100", "0.1", "has 0.1"),
        ("3.3", "metrics.jsonl.gz step=100:loss", "3.2", "has 3.2"),
        ("2", "g2p-2/score.json versions.keras", "3", "has 3"),
        ("?.??", "metrics.jsonl.gz step=100:loss", "3.25", "has 3.25"),
        ("**?,???**", "metrics.jsonl.gz target_tokens", "**1,281,803**", "has 1,281,803"),
        ("0.0", "speed.json rows.ours/128x16.rate / rows.theirs/128x16.rate *10", "15.0", "15.0"),
        ("?.??", "other.json bleu", "?.??", None),  # a log that is still to come
        ("7.0", "other.json wer", "7.0", "no log other.json"),
        ("?", "g2p-1/score.json bleu", "?", "score.json has no bleu"),
        ("7.0", "metrics.jsonl.gz step=300:loss", "7.0", "has no step=300:loss"),
        ("7.0", "speed.json rows.theirs/128x16.equal", "7.0", "has no rows.theirs/128x16.equal"),
        ("7.0", "g2p-*/score.json wer", "7.0", "names 2 logs; take their mean: or std:"),
        ("7.0", "wer", "7.0", "no log and key: wer"),
    ],
)
def test_figure_becomes_that_of_its_log_or_is_reported(results, logs, figure, source, found, fault):
    stars = "**" if "**" in figure else ""
    entries = [[f"| WER | {stars}#{stars} |", source]]
    page, faults = results.update_page(f"| WER | {figure} |", entries, logs)
    assert page == f"| WER | {found} |"
    assert [fault in each for each in faults] == [True] * (fault is not None)
    if found != figure:
        assert results.update_page(page, entries, logs) == (page, [])


def test_figures_are_found_by_the_words_around_them_in_the_order_of_the_page(results, logs):
    wer = "g2p-1/score.json wer *100"
    page = """
| a row of a long name | 6.95 | 7.1 |

of all words
6.95 are wrong, and 6.95.
"""
    entries = [["| a row ... | # | # |", wer, wer], ["words # are", wer], ["and #", wer]]
    updated, faults = results.update_page(page, entries, logs)
    assert (updated, faults) == (page.replace("7.1", "7.0"), ["7.1: g2p-1/score.json has 7.0"])
    assert results.figures_without_log(page, entries) == []
    for missing in (["| b | # |", wer], ["| a row ... | # |", wer]):
        _, faults = results.update_page(updated, [*entries, missing], logs)
        assert faults == [f"{missing[0]}: not on the page, or before the entry above it"]


def test_rows_and_paragraphs_without_a_log_are_listed(results):
    page = """
| Row | WER | Published |
|---|---|---|
| 3 languages | 7.0 | 6.9 |
| b | 9.1 | |

| Row | Model | WER |
|---|---|---|
| c | d | 1 |

| Setting | Value |
|---|---|
| e | 512 |

`2.5`, version 2.21.0, [link](page-2.5.md), with 7.0.
It is 2.5 times as fast.

It is 2.6 times as fast,
and 2.7 on others.

```
2.8
```
"""
    entries = [
        ["| 3 languages | #", "x.json wer"],
        ["| Setting | Value", "not measured here: settings"],
        ["with #.", "x.json wer"],
        ["It is 2.6", "not measured here: from elsewhere"],
    ]
    listed = ["| b | 9.1 | |", "| c | d | 1 |", "It is 2.5 times as fast."]
    assert results.figures_without_log(page, entries) == listed


@pytest.mark.slow
def test_scores_are_computed_again_from_stored_outputs(results, tmp_path):
    log, data = tmp_path / "multi30k-raw-1", tmp_path / "multi30k"
    log.mkdir()
    data.mkdir()
    outputs = ["ein Mann reitet ein Pferd .", "ein Hund schläft im Gras ."]
    (data / "test_2016_flickr.en").write_text("a man rides a horse .\na dog sleeps .\n")
    (data / "test_2016_flickr.de").write_text("\n".join([outputs[0], "ein Hund schläft ."]) + "\n")
    (log / "outputs.txt.gz").write_bytes(gzip.compress("\n".join([*outputs, ""]).encode()))
    digest = "d5fd1b3ae25d3ac3d76baf9ef6d6a5c78d8bb1f4cc0d7bd6de0a4ab9e37c5af4"
    (log / "score.json").write_text(json.dumps({"bleu": 50.0, "test_set_sha256": digest}))
    line, differs = results.recompute(log, tmp_path)
    assert (line, differs) == ("another test set", True)
    digest = _digest(*(data / f"test_2016_flickr.{side}" for side in ("en", "de")))
    (log / "score.json").write_text(json.dumps({"bleu": 50.0, "test_set_sha256": digest}))
    line, differs = results.recompute(log, tmp_path)
    assert differs and re.match(r"bleu (\d+\.\d+), log 50;", line)
    bleu = float(line.split()[1].rstrip(","))
    expected = sacrebleu.corpus_bleu(outputs, [[outputs[0], "ein Hund schläft ."]]).score
    assert bleu == pytest.approx(expected, abs=1e-3)


def _digest(*paths):
    return hashlib.sha256("".join(path.read_text() for path in paths).encode()).hexdigest()


def test_log_without_recipe_or_outputs_is_not_scored(results, tmp_path):
    log = tmp_path / "speed-1"
    log.mkdir()
    (log / "score.json").write_text("{}")
    assert results.recompute(log, tmp_path) == ("no recipe, or no outputs", False)


def test_recipe_of_a_log_has_its_flags(results):
    recipe = results.recipe_of(pathlib.Path("multi30k-raw-gpu-1"))
    assert recipe["preset"] == "tiny" and recipe["test_source"].startswith("data/multi30k/")
