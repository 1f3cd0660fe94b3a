"""Writes line numbers into the links of docs/explanation/paper.md.

A link such as [`Encoder.call`](../../keras_transformer/layers/transformer.py#L1) names an object of
a file: a class, a function, or an attribute of a class or module. `scripts/docs.sh` runs this.

    python scripts/paper.py   # writes the present lines; status 1 if an object is missing
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "paper.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(((?:\.\./)+([\w/]+\.py))(?:#L\d+)?\)")


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


def update(text: str) -> tuple[str, list[str]]:
    """Returns the page with the present lines, and the objects that do not exist."""
    missing = []

    def link(match: re.Match[str]) -> str:
        name, address, file = match.groups()
        line = line_of(name, file)
        if line is None:
            missing.append(f"{file}: {name}")
        return f"[`{name}`]({address}#L{line})" if line else match[0]

    return LINK.sub(link, text), missing


if __name__ == "__main__":
    page, missing_objects = update(PAGE.read_text("utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    sys.exit("\n".join(["no such object:", *missing_objects]) if missing_objects else 0)
