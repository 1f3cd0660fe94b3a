"""Figures of the pages are those of their logs (scripts/results.py)."""

import gzip
import json
import pathlib
import runpy
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs" / "results").glob("*.md"))]


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


@pytest.mark.parametrize("path", _PAGES, ids=lambda path: path.stem)
def test_figures_of_pages_are_those_of_their_logs(results, path):
    _, faults = results.update_page(path.read_text(), _ROOT / "docs" / "results" / "logs")
    assert faults + results.figures_without_log(path.read_text()) == []


@pytest.mark.parametrize(
    ("figure", "comment", "found", "fault"),
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
    ],
)
def test_figure_becomes_that_of_its_log_or_is_reported(
    results, logs, figure, comment, found, fault
):
    page, faults = results.update_page(f"| WER | {figure}<!-- {comment} --> |", logs)
    assert page == f"| WER | {found}<!-- {comment} --> |"
    assert [fault in each for each in faults] == [True] * (fault is not None)
    if found != figure:
        assert results.update_page(page, logs) == (page, [])


def test_rows_and_paragraphs_without_a_log_are_listed(results):
    page = """
| Row | WER | Published |
|---|---|---|
| 3 languages | 7.0<!-- x.json wer --> | 6.9 |
| b | 9.1 | |

| Row | Model | WER |
|---|---|---|
| c | d | 1 |

<!-- not measured here: settings -->
| e | 512 |

`2.5`, version 2.21.0, [link](page-2.5.md), 7.0<!-- x.json wer -->.
It is 2.5 times as fast.

<!-- not measured here: from elsewhere -->
It is 2.6 times as fast,
and 2.7 on others.

```
2.8
```
"""
    listed = ["| b | 9.1 | |", "| c | d | 1 |", "It is 2.5 times as fast."]
    assert results.figures_without_log(page) == listed
