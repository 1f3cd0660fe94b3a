"""Compares the figures of README.md and docs/results with the logs they come from.

docs/results/figures.json has a list for each page, in the order of the page: words around a figure,
with # in its place, and the log under docs/results/logs and the key in it that it comes from; where
needed, the key of a divisor and a factor for another unit:

    ["| `tiny` | **#** |", "multi30k-transformer-1/score.json bleu"]
    ["accuracy of #", "multi30k-transformer-1/metrics.jsonl.gz step=8000:val_accuracy"]
    ["| eight languages | # |", "g2p-*-[1-5]/score.json mean:wer *100"]
    ["| ... | # |", "layers.json rows.recurrent/512.both_ms / rows.self-attention/512.both_ms"]

`...` stands for the rest of a line. A pattern of logs takes their `mean:` or their sample standard
deviation (`std:`). The number of decimals is that of the page; `?.??` stands where a log is still
to come, and becomes the figure once it is there.

In README.md and docs/results every number in a table and every decimal number in a paragraph needs
a log, but for those in a table's first row, first column or column "Published", and in a table or
paragraph that an entry ["its first words", "not measured here: WHAT"] names.

    python scripts/results.py --check   # lists what disagrees and what has no log; status 1 if any
    python scripts/results.py           # writes the logs' figures into the pages
    python scripts/results.py --recompute=data   # computes scores again; status 1 where one differs

`--recompute` scores the stored outputs of each log against the test set that the recipe of its row
names, where the folder has it: `data/multi30k_bpe/test.2016.en` of a recipe is
`FOLDER/multi30k_bpe/test.2016.en` or that with `.gz`. It names the commit that a score was made
with, and the parts of the package that have changed since.
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

_FIGURE = r"(?<![\w.,])(-?\d+(?:,\d{3})*(?:\.\d+)?|\?[?,]*(?:\.\?+)?)(?!\d)"
_SOURCE = re.compile(r"(\S+) (\S+)(?: / (\S+))?(?: \*([\d.]+))?")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")  # and no version such as 2.21.0
_CODE_OR_LINK = re.compile(r"`[^`]*`|\]\([^)]*\)")
_EXEMPT = "not measured here: "

Entries = list[list[str]]


class MissingLogError(LookupError):
    """There is no such log."""


def value_in_log(logs: pathlib.Path, log: str, key: str) -> float:
    """Returns the value of a key of a log.

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


def _matches(text: str, entries: Entries) -> Iterator[tuple[str, list[str], re.Match[str] | None]]:
    """Yields each entry's words and sources, and where it is on the page, if it is."""
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
            figure, fault = _figure_of_log(match[group], source, logs)
            faults += [f"{match[group]}: {fault}"] if fault else []
            pieces += [text[end : match.start(group)], figure]
            end = match.end(group)
    return "".join([*pieces, text[end:]]), faults


def _figure_of_log(figure: str, source: str, logs: pathlib.Path) -> tuple[str, str | None]:
    """Returns a figure as its log has it, and what was wrong with it."""
    parts = _SOURCE.fullmatch(source)
    if parts is None:
        return figure, f"no log and key: {source}"
    log, key, divisor, factor = parts.groups()
    try:
        value = value_in_log(logs, log, key)
        if divisor:
            value /= value_in_log(logs, log, divisor)
    except MissingLogError as error:
        return figure, None if "?" in figure else error.args[0]
    except LookupError as error:
        return figure, error.args[0]
    decimals = len(figure.partition(".")[2])
    comma = "," if "," in figure else ""
    logged = f"{value * float(factor or 1):{comma}.{decimals}f}"
    return logged, None if logged == figure else f"{log} has {logged}"


def figures_without_log(text: str, entries: Entries) -> list[str]:
    """Returns the rows of a page's tables and the lines of its paragraphs with a number that needs
    a log and has none."""
    exempt_lines, rest = set(), list(text)
    for _, sources, match in _matches(text, entries):
        if match is None:
            continue
        if sources[0].startswith(_EXEMPT):
            exempt_lines.add(text.count("\n", 0, match.start()))
            continue
        for group in range(1, len(sources) + 1):
            rest[match.start(group) : match.end(group)] = " " * len(match[group])
    found, exempt, fenced = [], False, False
    published: set[int] = set()  # columns of the present table
    lines, without = text.splitlines(), "".join(rest).splitlines()
    for number, (line, following) in enumerate(itertools.pairwise([*without, ""])):
        cells = line.split("|")[2:]
        exempt = bool(line.strip()) and (exempt or number in exempt_lines)
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or exempt:
            continue
        elif following.startswith("|---"):
            published = {number for number, cell in enumerate(cells) if "Published" in cell}
        elif line.startswith("|"):
            measured = [cell for index, cell in enumerate(cells) if index not in published]
            if any(map(_NUMBER.search, measured)):
                found.append(lines[number])
        elif _DECIMAL.search(_CODE_OR_LINK.sub("", line)):
            found.append(lines[number])
    return found


def recipe_of(log: pathlib.Path) -> dict[str, str]:
    """Returns the flags of the recipe whose row a log is; none if there is no such recipe.

    Args:
        log: its folder, RECIPE-SEED, or RECIPE-gpu-SEED where a GPU trained it.
    """
    name = re.sub(r"(-gpu)?-\d+$", "", log.name)
    path = ROOT / "examples" / "recipes" / f"{name}.flags"
    if not path.exists():
        return {}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:2] == "--"]
    return {name: value for name, _, value in (line[2:].partition("=") for line in lines)}


def recompute(log: pathlib.Path, data: pathlib.Path) -> tuple[str, bool]:
    """Scores a log's outputs again.

    Args:
        log: its folder.
        data: the folder of test sets.

    Returns:
        A line about it, and whether a score differs from the log's.
    """
    recipe = recipe_of(log)
    score = json.loads((log / "score.json").read_text(encoding="utf-8"))
    if not recipe or not (log / "outputs.txt.gz").exists():
        return "no recipe, or no outputs", False
    names = {"test_source": "source", "test_target": "target", "test_file": "file"}
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "--json"]
    for flag, option in names.items():
        if flag not in recipe:
            continue
        path = data / pathlib.PurePath(recipe[flag]).relative_to("data")
        packed = path.with_name(path.name + ".gz")
        test_set = path if path.exists() else packed
        if not test_set.exists():
            return f"no {path}", False
        command.append(f"--{option}={test_set}")
    options = ("task", "user_module", "remove_bpe", "bleu_tokenize", "bleu_lowercase")
    command += [
        f"--{name}={recipe[name]}" if recipe[name] else f"--{name}"
        for name in options
        if name in recipe
    ]
    command.append(f"--answers={log / 'outputs.txt.gz'}")
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if result.returncode:
        return f"failed: {result.stderr.strip()[-300:]}", True
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
    return f"{values}; {_changes_since(score)}", bool(differing)


def _changes_since(score: dict[str, Any]) -> str:
    """Returns the commit of a score and the folders that changed since, or that it is unknown."""
    commit = (score.get("commit") or "").rstrip("+")
    if not commit:
        return "made with an unknown commit"
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        return f"made with {commit[:12]}, which is not in this repository"
    parts = ("layers", "models", "training", "data", "search")
    changed = [
        part
        for part in parts
        if _git("diff", "--quiet", commit, "--", f"keras_transformer/{part}") is None
    ]
    return f"made with {commit[:12]}, changed since: {', '.join(changed) or 'nothing'}"


def _git(*arguments: str) -> str | None:
    """Returns the output of git, or None if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if result.returncode else result.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 on a fault")
    parser.add_argument("--recompute", type=pathlib.Path, help="folder of the test sets")
    arguments = parser.parse_args()
    if arguments.recompute is not None:
        logs = sorted((ROOT / "docs" / "results" / "logs").glob("*/score.json"))
        results = [(log.parent, *recompute(log.parent, arguments.recompute)) for log in logs]
        for log, line, _ in results:
            print(f"{log.name}: {line}")
        return int(any(is_wrong for _, _, is_wrong in results))
    check = arguments.check
    faults = 0
    folder = ROOT / "docs" / "results"
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    pages = {path.relative_to(ROOT).as_posix() for path in folder.glob("*.md")}
    for page in sorted(pages | figures.keys()):
        path, entries = ROOT / page, figures.get(page, [])
        text = path.read_text(encoding="utf-8")
        updated, wrong = update_page(text, entries, folder / "logs")
        if page == "README.md" or page in pages:
            wrong += [f"no log: {row}" for row in figures_without_log(text, entries)]
        for each in wrong:
            print(f"{page}: {each}")
        faults += len(wrong)
        if not check and updated != text:
            path.write_text(updated, encoding="utf-8")
    print(f"results: {faults} faults" if faults else "results: each figure is that of its log")
    return 1 if check and faults else 0


if __name__ == "__main__":
    sys.exit(main())
