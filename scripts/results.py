"""Compares the figures of the pages with the logs they come from.

docs/results/figures.json has a list for each page, in the order of the page: words around a figure,
with # in its place, and the log under docs/results/logs and the key in it that the figure comes
from; where needed, the key of a divisor and a factor for another unit:

    ["| `tiny` | **#** |", "multi30k-transformer-1/score.json bleu"]
    ["accuracy of #", "multi30k-transformer-1/metrics.jsonl.gz step=8000:val_accuracy"]
    ["| eight languages | # |", "g2p-*-1/score.json mean:wer"]
    ["| ... | # |", "layers.json rows.recurrent/512.both_ms / rows.self-attention/512.both_ms *100"]

`...` stands for the rest of a line. Of JSON lines the last is taken, or that of a step; of several
logs the mean. The number of decimals is that of the page.

In README.md and docs/results every number in a table and every decimal number in a paragraph needs
a log, but for those in a table's first row, first column or column "Published", and in a table or
paragraph that an entry ["its first words", "not measured here: WHAT"] names.

    python scripts/results.py --check   # lists what disagrees and what has no log; status 1 if any
    python scripts/results.py           # writes the logs' figures into the pages
    python scripts/results.py --recompute=data   # computes scores again; status 1 where one differs

`--recompute` scores the stored outputs of each log against the test set that the recipe of its row
names, where the folder has it: `data/multi30k_bpe/test.2016.en` of a recipe is
`FOLDER/multi30k_bpe/test.2016.en` or that with `.gz`. It names the commit that made a score.
"""

import argparse
import gzip
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOGS = ROOT / "docs" / "results" / "logs"

_FIGURE = r"(?<![\w.,])(-?\d+(?:,\d{3})*(?:\.\d+)?)(?!\d)"
_SOURCE = re.compile(r"(\S+) (\S+)(?: / (\S+))?(?: \*([\d.]+))?")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")  # and no version such as 2.21.0
_CODE_OR_LINK = re.compile(r"`[^`]*`|\]\([^)]*\)")
_EXEMPT = "not measured here: "
_OF_EVALUATE = {"task", "user_module", "remove_bpe", "bleu_tokenize", "bleu_lowercase"}

Entries = list[list[str]]


def value_in_log(log: str, key: str) -> float:
    """Returns the value of a key of a log: `name`, `step=STEP:name`, `mean:name`, `a.b` of `a`.

    Raises:
        LookupError: there is no such log, or no such value in it.
    """
    paths = sorted(LOGS.glob(log))
    *places, name = key.split(":")
    if not paths or (len(paths) > 1 and places != ["mean"]):
        raise LookupError(f"{len(paths)} logs are named {log}")
    values = []
    for path in paths:
        rows = _rows(path)
        if places and places != ["mean"]:
            rows = [row for row in rows if f"step={row['step']}" == places[0]]
        value: Any = rows[-1] if rows else {}
        for part in name.split("."):
            if not isinstance(value, dict) or value.get(part) is None:
                raise LookupError(f"{path.name} has no {key}")
            value = value[part]
        values.append(float(value))
    return statistics.mean(values)


def _rows(path: pathlib.Path) -> list[Any]:
    """Returns the rows of a log: a JSON file is one row."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return list(map(json.loads, text.splitlines() if ".jsonl" in path.name else [text]))


def check_page(text: str, entries: Entries, is_complete: bool) -> tuple[str, list[str]]:
    """Returns a page with the figures of its logs, and what was wrong with it before.

    Args:
        text: the page, in Markdown.
        entries: its list in figures.json.
        is_complete: whether every number needs a log.
    """
    faults: list[str] = []
    figures: list[tuple[int, int, str]] = []  # places on the page, and what the log says
    exempt_lines: set[int] = set()
    position = 0
    for words, *sources in entries:
        match = _pattern(words).search(text, position)
        if match is None:
            faults.append(f"{words}: not on the page, or before the entry above it")
            continue
        position = match.end(match.re.groups)
        if sources[0].startswith(_EXEMPT):
            exempt_lines.add(text.count("\n", 0, match.start()))
            continue
        for group, source in enumerate(sources, 1):
            figure = match[group]
            try:
                figure = _figure_of_log(figure, source)
                if figure != match[group]:
                    faults.append(f"{match[group]}: {source} is {figure}")
            except LookupError as error:
                faults.append(f"{figure}: {error.args[0]}")
            figures.append((*match.span(group), figure))
    updated = blanked = text
    for start, end, figure in reversed(figures):
        updated = updated[:start] + figure + updated[end:]
        blanked = blanked[:start] + " " * (end - start) + blanked[end:]
    if is_complete:
        without_log = _lines_with_numbers(blanked.splitlines(), exempt_lines)
        faults += [f"no log: {text.splitlines()[number]}" for number in without_log]
    return updated, faults


def _pattern(words: str) -> re.Pattern[str]:
    """Returns the pattern of an entry's words, with a group for each figure."""
    pattern = re.escape(re.sub(r"\s*\.\.\.\s*", "...", words))
    for part, replaced in ((r"\.\.\.", r"[^\n]*?"), (r"\ ", r"\s+"), (r"\#", _FIGURE)):
        pattern = pattern.replace(part, replaced)
    return re.compile(pattern)


def _figure_of_log(figure: str, source: str) -> str:
    """Returns the value of a source in the form of a figure of the page."""
    parts = _SOURCE.fullmatch(source)
    if parts is None:
        raise LookupError(f"no log and key: {source}")
    log, key, divisor, factor = parts.groups()
    value = value_in_log(log, key) * float(factor or 1)
    if divisor:
        value /= value_in_log(log, divisor)
    return f"{value:{',' if ',' in figure else ''}.{len(figure.partition('.')[2])}f}"


def _lines_with_numbers(lines: list[str], exempt_lines: set[int]) -> Iterator[int]:
    """Yields the table rows and paragraph lines of a page that have a number.

    An exempt line exempts its table or paragraph from there on.
    """
    exempt = fenced = False
    published: set[int] = set()  # columns of the present table
    for number, (line, following) in enumerate(itertools.pairwise([*lines, ""])):
        cells = _CODE_OR_LINK.sub("", line).split("|")[2:]
        exempt = bool(line.strip()) and (exempt or number in exempt_lines)
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or exempt:
            continue
        elif following.startswith("|---"):
            published = {column for column, cell in enumerate(cells) if "Published" in cell}
        elif line.startswith("|"):
            if any(_NUMBER.search(cell) for i, cell in enumerate(cells) if i not in published):
                yield number
        elif _DECIMAL.search(_CODE_OR_LINK.sub("", line)):
            yield number


def check_pages(write: bool) -> int:
    """Prints what is wrong with the pages and returns how much; `write` mends the figures."""
    count = 0
    figures = json.loads((LOGS.parent / "figures.json").read_text(encoding="utf-8"))
    complete = {path.relative_to(ROOT).as_posix() for path in LOGS.parent.glob("*.md")}
    complete.add("README.md")
    for page in sorted(complete | figures.keys()):
        text = (ROOT / page).read_text(encoding="utf-8")
        updated, faults = check_page(text, figures.get(page, []), page in complete)
        for fault in faults:
            print(f"{page}: {fault}")
        count += len(faults)
        if write and updated != text:
            (ROOT / page).write_text(updated, encoding="utf-8")
    print(f"results: {count} faults" if count else "results: each figure is that of its log")
    return count


def recompute(log: pathlib.Path, data: pathlib.Path) -> tuple[str, bool]:
    """Scores the outputs in the folder of a log, RECIPE[-gpu]-SEED, again.

    Returns:
        A line about it, and whether a score differs from the log's.
    """
    recipe = ROOT / "examples" / "recipes" / f"{re.sub(r'(-gpu)?-[0-9]+$', '', log.name)}.flags"
    if not recipe.exists() or not (log / "outputs.txt.gz").exists():
        return "no recipe, or no outputs", False
    flags = dict(re.findall(r"^--(\w+)(=.*)?$", recipe.read_text(encoding="utf-8"), re.M))
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "--json"]
    for name in sorted({"test_source", "test_target", "test_file"} & flags.keys()):
        path = data / pathlib.PurePath(flags[name][1:]).relative_to("data")
        paths = [each for each in (path, path.with_name(f"{path.name}.gz")) if each.exists()]
        if not paths:
            return f"no {path}", False
        command.append(f"--{name.removeprefix('test_')}={paths[0]}")
    for name in sorted(_OF_EVALUATE & flags.keys()):
        command.append(f"--{name}{flags[name]}")
    command.append(f"--answers={log / 'outputs.txt.gz'}")
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if result.returncode:
        return f"failed: {result.stderr.strip()[-300:]}", True
    score = json.loads((log / "score.json").read_text(encoding="utf-8"))
    again = json.loads(result.stdout)
    if again["test_set_sha256"] != score["test_set_sha256"]:
        return "another test set", True
    values = {name: each for name, each in again.items() if isinstance(each, float)}
    differing = [
        f"{name} {value:.6g}, log {score[name]:.6g}"
        for name, value in values.items()
        if abs(value - score.get(name, value)) > 1e-6
    ]
    equal = [f"{name} {value:.4g} as logged" for name, value in values.items() if name in score]
    commit = score.get("commit", "")
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    is_known = not subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode
    made_with = f"made with commit {commit if is_known else 'unknown'}"
    return f"{', '.join(differing or equal)}; {made_with}", bool(differing)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compares the figures of the pages with their logs."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 on a fault")
    parser.add_argument("--recompute", type=pathlib.Path, help="folder of the test sets")
    options = parser.parse_args(arguments)
    if options.recompute is None:
        return int(check_pages(write=not options.check) > 0 and options.check)
    any_differs = False
    for score in sorted(LOGS.glob("*/score.json")):
        line, differs = recompute(score.parent, options.recompute)
        print(f"{score.parent.name}: {line}", flush=True)
        any_differs |= differs
    return int(any_differs)


if __name__ == "__main__":
    sys.exit(main())
