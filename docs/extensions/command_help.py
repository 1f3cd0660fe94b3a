"""The directive `command`: the help of a command, as `keras-transformer NAME --help` prints it."""

import os
import re
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import rst
from sphinx.util.docutils import SphinxDirective

_PROGRAM = "import sys; from keras_transformer.commands.main import main; main()"


class Command(SphinxDirective):
    """What a command does, its examples, and each flag as an `option`, under its heading."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        output = subprocess.run(
            [sys.executable, "-c", _PROGRAM, name, "--help"],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        description, flags = output.split("\n\n\n", 1)
        return self.parse_text_to_nodes(
            "\n".join([*_description(description), f".. program:: {name}", "", *_options(flags)])
        )


def _description(text: str) -> list[str]:
    """Returns paragraphs, those that call the command as code."""
    lines = []
    for paragraph in text.split("\n\n"):
        if re.search(r"^\s*(echo .*)?keras-transformer", paragraph, re.M):
            code = (f"   {line}" for line in paragraph.splitlines())
            lines += [".. code-block:: bash", "", *code, ""]
        else:
            lines += [_prose(paragraph), ""]
    return lines


def _options(text: str) -> list[str]:
    """Returns a rubric for each heading, and an option for each flag with its help."""
    lines = []
    for block in text.strip().split("\n\n"):
        heading, *entries = re.split(r"^  (?=--)", block, flags=re.M)
        lines += [f".. rubric:: {heading.strip().removesuffix(':')}", ""]
        for entry in entries:
            flag, help_text = " ".join(entry.split()).split(": ", 1)
            flag = re.sub(r"--\[no\](\w+)", r"--\1, --no\1", flag)
            lines += [f".. option:: {flag}", "", f"   {_prose(help_text)}", ""]
    return lines


def _prose(text: str) -> str:
    """Returns text in which only the names of flags are markup."""
    parts = re.split(r"(--\w+(?:=[\w./:-]*\w)?)", text)
    return "".join(
        f"\\ ``{part}``\\ " if index % 2 else rst.escape(part) for index, part in enumerate(parts)
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
