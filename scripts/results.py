"""Compares the figures of README.md and docs/results with the logs they come from.

A figure is followed by a comment that names its log under docs/results/logs, a key in it, and,
where needed, the key of a divisor and a factor for another unit:

    **41.24**<!-- multi30k-transformer-1/score.json bleu -->
    0.994<!-- multi30k-transformer-1/metrics.jsonl.gz step=8000:val_accuracy -->
    9.66<!-- g2p-*-[1-5]/score.json mean:wer *100 -->
    1.6<!-- layers.json rows.recurrent/512.both_ms / rows.self-attention/512.both_ms -->

A pattern takes the `mean:` or the sample standard deviation (`std:`) of its logs. The number of
decimals is that of the page; `?.??` stands where a log is still to come, and becomes the figure
once it is there.

Every number in a table and every decimal number in a paragraph needs a log, but for those in a
table's first row, first column or column "Published", and in a table or paragraph right under
`<!-- not measured here: WHAT -->`.

    python scripts/results.py --check   # lists what disagrees and what has no log; status 1 if any
    python scripts/results.py           # writes the logs' figures into the pages
"""

import argparse
import gzip
import itertools
import json
import pathlib
import re
import statistics
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]

_FIGURE = re.compile(
    r"(?P<figure>-?\d[\d,]*(?:\.\d+)?|\?[?,]*(?:\.\?+)?)(?P<end>\**)<!-- (?P<log>\S+) (?P<key>\S+)"
    r"(?: / (?P<divisor>\S+))?(?: \*(?P<factor>[\d.]+))? -->"
)
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")  # and no version such as 2.21.0
_CODE_OR_LINK = re.compile(r"`[^`]*`|\]\([^)]*\)")
_EXEMPT = "<!-- not measured here: "


class MissingLogError(LookupError):
    """There is no such log."""


def value_in_log(logs: pathlib.Path, log: str, key: str) -> float:
    """Returns the value that a figure's comment names.

    Args:
        logs: folder of the logs.
        log: name of a JSON file, or of JSON lines (`.jsonl.gz`), or a pattern of several.
        key: `name`, `step=STEP:name` in JSON lines, `mean:name` or `std:name` of a pattern;
            `a.b` is `b` within `a`.

    Raises:
        MissingLogError: there is no such log.
        LookupError: there is no such value.
    """
    paths = sorted(logs.glob(log))
    if not paths:
        raise MissingLogError(f"no log {log}")
    *places, name = key.split(":")
    values = [_read(path, places, name) for path in paths]
    if "mean" in places:
        return statistics.mean(values)
    if "std" in places:
        return statistics.stdev(values)
    if len(values) > 1:
        raise LookupError(f"{log} names {len(values)} logs; take their mean: or std:")
    return values[0]


def _read(path: pathlib.Path, places: list[str], name: str) -> float:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if ".jsonl" in path.name:
        steps = [int(place[5:]) for place in places if place.startswith("step=")]
        rows = [json.loads(line) for line in text.splitlines()]
        rows = [row for row in rows if not steps or row["step"] in steps]
        value: Any = rows[-1] if rows else {}
    else:
        value = json.loads(text)
    for part in name.split("."):
        if not isinstance(value, dict) or value.get(part) is None:
            raise LookupError(f"{path.name} has no {':'.join([*places, name])}")
        value = value[part]
    return float(value)


def update_page(text: str, logs: pathlib.Path) -> tuple[str, list[str]]:
    """Returns a page with the figures of its logs, and what was wrong with it before.

    Args:
        text: the page, in Markdown.
        logs: folder of the logs.
    """
    faults = []

    def from_log(match: re.Match[str]) -> str:
        figure = match["figure"]
        try:
            value = value_in_log(logs, match["log"], match["key"])
            if match["divisor"]:
                value /= value_in_log(logs, match["log"], match["divisor"])
        except MissingLogError as error:
            if "?" not in figure:
                faults.append(f"{figure}: {error.args[0]}")
            return match[0]
        except LookupError as error:
            faults.append(f"{figure}: {error.args[0]}")
            return match[0]
        decimals = len(figure.partition(".")[2])
        comma = "," if "," in figure else ""
        found = f"{value * float(match['factor'] or 1):{comma}.{decimals}f}"
        if found != figure:
            faults.append(f"{figure}: {match['log']} has {found}")
        return match[0].replace(figure, found, 1)

    return _FIGURE.sub(from_log, text), faults


def figures_without_log(text: str) -> list[str]:
    """Returns the rows of a page's tables and the lines of its paragraphs with a number that needs
    a log and names none."""
    found, exempt, fenced = [], False, False
    published: set[int] = set()  # columns of the present table
    lines = text.splitlines()
    for line, following in itertools.pairwise([*lines, ""]):
        cells = _FIGURE.sub("", line).split("|")[2:]
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or not line.strip():
            exempt = exempt and fenced
        elif line.startswith("<!--"):
            exempt = line.startswith(_EXEMPT)
        elif following.startswith("|---"):
            published = {number for number, cell in enumerate(cells) if "Published" in cell}
        elif exempt:
            continue
        elif line.startswith("|"):
            measured = [cell for number, cell in enumerate(cells) if number not in published]
            if any(map(_NUMBER.search, measured)):
                found.append(line)
        elif _DECIMAL.search(_CODE_OR_LINK.sub("", _FIGURE.sub("", line))):
            found.append(line)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 on a fault")
    check = parser.parse_args().check
    faults = 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        updated, wrong = update_page(text, ROOT / "docs" / "results" / "logs")
        wrong += [f"no log: {row}" for row in figures_without_log(text)]
        for each in wrong:
            print(f"{path.relative_to(ROOT)}: {each}")
        faults += len(wrong)
        if not check and updated != text:
            path.write_text(updated, encoding="utf-8")
    print(f"results: {faults} faults" if faults else "results: each figure is that of its log")
    return 1 if check and faults else 0


if __name__ == "__main__":
    sys.exit(main())
