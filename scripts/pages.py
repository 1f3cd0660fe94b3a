"""Writes what is made of the sources: the links of docs/explanation/paper.md, and the notebook.

    python scripts/pages.py   # status 1 if an object that the page names does not exist

A link such as [`Encoder.call`](../../keras_transformer/layers/transformer.py#L1) names an object of
a file: a class, a function, or an attribute of a class or module. It gets the object's line.

examples/attention_is_all_you_need.ipynb has the example of that name in cells: the docstring and
the comments "# Training (5)" are text, each class and function is a cell of code.
"""

import ast
import json
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAPER = ROOT / "docs" / "explanation" / "paper.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(((?:\.\./)+([\w/]+\.py))(?:#L\d+)?\)")
EXAMPLE = ROOT / "examples" / "attention_is_all_you_need.py"
RUN = 'import sys\n\nsys.argv = ["notebook"]  # add "--multi30k=data/multi30k" for captions\nmain()'


def line_of(name: str, file: str) -> int | None:
    """Returns the line of an object in a file of the repository, or None if there is none."""
    path = ROOT / file
    node: ast.AST | None = ast.parse(path.read_text("utf-8")) if path.exists() else None
    for part in name.split("."):
        node = next((child for child in getattr(node, "body", []) if part in _names(child)), None)
    return getattr(node, "lineno", None)


def _names(node: ast.AST) -> set[str]:
    """Returns the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def update_links(text: str) -> tuple[str, list[str]]:
    """Returns the page with the present lines, and the objects that do not exist."""
    missing = []

    def link(match: re.Match[str]) -> str:
        name, address, file = match.groups()
        line = line_of(name, file)
        if line is None:
            missing.append(f"{file}: {name}")
        return f"[`{name}`]({address}#L{line})" if line else match[0]

    return LINK.sub(link, text), missing


def make_notebook(program: str) -> str:
    """Returns the notebook of a program, as JSON."""
    _, docstring, program = program.split('"""', 2)
    title, _, text = docstring.partition("\n\n")
    cells = [_cell("markdown", f"# {title.rstrip('.')}\n\n{text.strip()}")]
    for part in re.split(r"\n{3}", program.partition("\nif __name__")[0].strip()):
        heading = re.search(r"^# (.* \([\d.]+\))$", part, re.M)  # after the part it follows
        code = part[: heading.start()] if heading else part
        if code.strip():
            cells.append(_cell("code", code.strip()))
        if heading:
            cells.append(_cell("markdown", f"## {heading[1]}"))
    cells.append(_cell("code", RUN))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": text.splitlines(True)}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


if __name__ == "__main__":
    example = EXAMPLE.read_text("utf-8")
    EXAMPLE.with_suffix(".ipynb").write_text(make_notebook(example), encoding="utf-8")
    page, missing_objects = update_links(PAPER.read_text("utf-8"))
    PAPER.write_text(page, encoding="utf-8")
    sys.exit("\n".join(["no such object:", *missing_objects]) if missing_objects else 0)
