"""Makes a notebook of examples/attention_is_all_you_need.py, cell by cell.

    python scripts/notebook.py   # writes examples/attention_is_all_you_need.ipynb

The module's docstring and the comments "# Training (5)" become text, each class and function a cell
of code. `tests/docs/test_paper.py` compares the two files.
"""

import json
import pathlib
import re
from typing import Any

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "attention_is_all_you_need.py"
RUN = 'import sys\n\nsys.argv = ["notebook"]  # add "--multi30k=data/multi30k" for captions\nmain()'


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
    text = make_notebook(EXAMPLE.read_text("utf-8"))
    EXAMPLE.with_suffix(".ipynb").write_text(text, encoding="utf-8")
