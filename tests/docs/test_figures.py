"""Figures of the pages are those of their logs (scripts/results.py)."""

import gzip
import importlib.util
import json
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs" / "results").glob("*.md"))]


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", _ROOT / "scripts" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert not faults


@pytest.mark.parametrize(
    ("figure", "comment", "found"),
    [
        ("**7.00**", "g2p-1/score.json wer *100", "**6.95**"),
        ("1", "g2p-*/score.json mean:wer *100", "7"),
        ("0.0", "g2p-*/score.json std:wer *100", "0.1"),
        ("3.3", "metrics.jsonl.gz step=100:loss", "3.2"),
        ("1,000", "metrics.jsonl.gz target_tokens", "1,281,803"),
        ("2", "g2p-2/score.json versions.keras", "3"),
        ("?.??", "metrics.jsonl.gz step=100:loss", "3.25"),
        ("**?,???**", "metrics.jsonl.gz target_tokens", "**1,281,803**"),
        ("0.0", "speed.json rows.ours/128x16.rate / rows.theirs/128x16.rate *10", "15.0"),
    ],
)
def test_figure_becomes_that_of_its_log(results, logs, figure, comment, found):
    page, faults = results.update_page(f"| WER | {figure}<!-- {comment} --> |", logs)
    assert page == f"| WER | {found}<!-- {comment} --> |" and len(faults) == 1
    assert results.update_page(page, logs) == (page, [])


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("other.json wer", "no log other.json"),
        ("g2p-1/score.json bleu", "score.json has no bleu"),
        ("metrics.jsonl.gz step=300:loss", "has no step=300:loss"),
        ("speed.json rows.theirs/128x16.equal", "has no rows.theirs/128x16.equal"),
        ("g2p-*/score.json wer", "names 2 logs; take their mean: or std:"),
    ],
)
def test_figure_without_its_log_is_reported(results, logs, comment, fault):
    page = f"7.0<!-- {comment} -->"
    assert results.update_page(page, logs)[0] == page
    assert fault in results.update_page(page, logs)[1][0]


def test_question_marks_stand_where_a_log_is_still_to_come(results, logs):
    page = "?.??<!-- other.json bleu -->"
    assert results.update_page(page, logs) == (page, [])
    assert results.update_page("?<!-- g2p-1/score.json bleu -->", logs)[1]


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


def test_pages_have_no_figure_without_a_log(results):
    assert [row for path in _PAGES for row in results.figures_without_log(path.read_text())] == []
