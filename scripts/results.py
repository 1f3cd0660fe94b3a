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

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOGS = ROOT / "docs" / "results" / "logs"

_FIGURE = r"(?<![\w.,])(-?\d+(?:,\d{3})*(?:\.\d+)?)(?!\d)"
_SOURCE = re.compile(r"(\S+) (\S+)(?: / (\S+))?(?: \*([\d.]+))?")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")  # and no version such as 2.21.0
_CODE_OR_LINK = re.compile(r"`[^`]*`|\]\([^)]*\)")
_EXEMPT = "not measured here: "

Entries = list[list[str]]


def value_in_log(logs: pathlib.Path, log: str, key: str) -> float:
    """Returns the value of a key of a log.

    Args:
        logs: folder of the logs.
        log: name of a JSON file, or of JSON lines (`.jsonl.gz`), or a pattern of several.
        key: `name`, `step=STEP:name` in JSON lines, `mean:name` of a pattern; `a.b` is `b` in `a`.

    Raises:
        LookupError: there is no such log, or no such value in it.
    """
    paths = sorted(logs.glob(log))
    *places, name = key.split(":")
    if not paths or (len(paths) > 1 and places != ["mean"]):
        raise LookupError(f"{len(paths)} logs are named {log}")
    return statistics.mean(_read(path, places, name) for path in paths)


def _read(path: pathlib.Path, places: list[str], name: str) -> float:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    rows = [json.loads(line) for line in text.splitlines()] if ".jsonl" in path.name else None
    value = json.loads(text) if rows is None else rows[-1]
    for place in places:
        if rows is not None and place.startswith("step="):
            value = next((row for row in rows if row["step"] == int(place[5:])), {})
    for part in name.split("."):
        if not isinstance(value, dict) or value.get(part) is None:
            raise LookupError(f"{path.name} has no {':'.join([*places, name])}")
        value = value[part]
    return float(value)


def _matches(text: str, entries: Entries) -> Iterator[tuple[str, list[str], re.Match[str] | None]]:
    """Yields each entry's words and sources, and its match on the page, if there is one."""
    position = 0
    for words, *sources in entries:
        pattern = re.escape(re.sub(r"\s*\.\.\.\s*", "...", words))
        for part, replaced in ((r"\.\.\.", r"[^\n]*?"), (r"\ ", r"\s+"), (r"\#", _FIGURE)):
            pattern = pattern.replace(part, replaced)
        match = re.compile(pattern).search(text, position)
        position = match.end(match.re.groups) if match else position
        yield words, sources, match


def update_page(text: str, entries: Entries, logs: pathlib.Path) -> tuple[str, list[str]]:
    """Returns a page with the figures of its logs, and what was wrong with it before.

    Args:
        text: the page, in Markdown.
        entries: its list in figures.json.
        logs: folder of the logs.
    """
    faults, pieces, end = [], [], 0
    for words, sources, match in _matches(text, entries):
        if match is None:
            faults.append(f"{words}: not on the page, or before the entry above it")
            continue
        if sources[0].startswith(_EXEMPT):
            continue
        for group, source in enumerate(sources, 1):
            try:
                figure = _figure_of_log(match[group], source, logs)
            except LookupError as error:
                figure = match[group]
                faults.append(f"{figure}: {error.args[0]}")
            if figure != match[group]:
                faults.append(f"{match[group]}: {source} is {figure}")
            pieces += [text[end : match.start(group)], figure]
            end = match.end(group)
    return "".join([*pieces, text[end:]]), faults


def _figure_of_log(figure: str, source: str, logs: pathlib.Path) -> str:
    """Returns the value of a source in the form of a figure of the page."""
    parts = _SOURCE.fullmatch(source)
    if parts is None:
        raise LookupError(f"no log and key: {source}")
    log, key, divisor, factor = parts.groups()
    value = value_in_log(logs, log, key) * float(factor or 1)
    if divisor:
        value /= value_in_log(logs, log, divisor)
    return f"{value:{',' if ',' in figure else ''}.{len(figure.partition('.')[2])}f}"


def figures_without_log(text: str, entries: Entries) -> list[str]:
    """Returns the table rows and paragraph lines of a page with a number that lacks its log."""
    exempt_lines, rest = set(), list(text)
    for _, sources, match in _matches(text, entries):
        if match is None:
            continue
        if sources[0].startswith(_EXEMPT):
            exempt_lines.add(text.count("\n", 0, match.start()))
            continue
        for group in range(1, len(sources) + 1):
            rest[match.start(group) : match.end(group)] = " " * len(match[group])
    without_log, exempt, fenced = [], False, False
    published: set[int] = set()  # columns of the present table
    lines, blanked = text.splitlines(), "".join(rest).splitlines()
    for number, (line, following) in enumerate(itertools.pairwise([*blanked, ""])):
        cells = line.split("|")[2:]
        exempt = bool(line.strip()) and (exempt or number in exempt_lines)
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or exempt:
            continue
        elif following.startswith("|---"):
            published = {column for column, cell in enumerate(cells) if "Published" in cell}
        elif line.startswith("|"):
            measured = [cell for column, cell in enumerate(cells) if column not in published]
            if any(_NUMBER.search(_CODE_OR_LINK.sub("", cell)) for cell in measured):
                without_log.append(lines[number])
        elif _DECIMAL.search(_CODE_OR_LINK.sub("", line)):
            without_log.append(lines[number])
    return without_log


def check_pages(write: bool) -> int:
    """Prints what is wrong with the pages and returns how much; `write` mends the figures."""
    count = 0
    figures = json.loads((LOGS.parent / "figures.json").read_text(encoding="utf-8"))
    complete = {path.relative_to(ROOT).as_posix() for path in LOGS.parent.glob("*.md")}
    complete.add("README.md")
    for page in sorted(complete | figures.keys()):
        path, entries = ROOT / page, figures.get(page, [])
        text = path.read_text(encoding="utf-8")
        updated, faults = update_page(text, entries, LOGS)
        if page in complete:
            faults += [f"no log: {row}" for row in figures_without_log(text, entries)]
        for fault in faults:
            print(f"{page}: {fault}")
        count += len(faults)
        if write and updated != text:
            path.write_text(updated, encoding="utf-8")
    print(f"results: {count} faults" if count else "results: each figure is that of its log")
    return count


def recompute(log: pathlib.Path, data: pathlib.Path) -> tuple[str, bool]:
    """Scores a log's outputs again.

    Args:
        log: its folder, RECIPE or RECIPE-SEED, or RECIPE-gpu-SEED where a GPU trained it.
        data: the folder of test sets.

    Returns:
        A line about it, and whether a score differs from the log's.
    """
    recipe = ROOT / "examples" / "recipes" / f"{re.sub(r'(-gpu)?-[0-9]+$', '', log.name)}.flags"
    if not recipe.exists() or not (log / "outputs.txt.gz").exists():
        return "no recipe, or no outputs", False
    flags = dict(re.findall(r"^--(\w+)(?:=(.*))?$", recipe.read_text(encoding="utf-8"), re.M))
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "--json"]
    for name in ("test_source", "test_target", "test_file"):
        if name in flags:
            path = data / pathlib.PurePath(flags[name]).relative_to("data")
            if not path.exists():
                path = path.with_name(f"{path.name}.gz")
            if not path.exists():
                return f"no {path}", False
            command.append(f"--{name.removeprefix('test_')}={path}")
    for name in ("task", "user_module", "remove_bpe", "bleu_tokenize", "bleu_lowercase"):
        if name in flags:
            command.append(f"--{name}={flags[name]}" if flags[name] else f"--{name}")
    command.append(f"--answers={log / 'outputs.txt.gz'}")
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if result.returncode:
        return f"failed: {result.stderr.strip()[-300:]}", True
    score = json.loads((log / "score.json").read_text(encoding="utf-8"))
    again = json.loads(result.stdout)
    if again["test_set_sha256"] != score["test_set_sha256"]:
        return "another test set", True
    metrics = [name for name, value in again.items() if isinstance(value, float) and name in score]
    differing = [
        f"{name} {again[name]:.6g}, log {score[name]:.6g}"
        for name in metrics
        if abs(again[name] - score[name]) > 1e-6
    ]
    values = ", ".join(differing or [f"{name} {again[name]:.4g} as logged" for name in metrics])
    commit = score.get("commit") or ""
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=False,
                           stderr=subprocess.DEVNULL).returncode == 0  # fmt: skip
    return f"{values}; made with commit {commit if known else 'unknown'}", bool(differing)


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
