"""Autodoc for this package: which members are shown, and docstrings as reStructuredText.

The directive `names` lists the names of a package's `__all__` with one line about each.
"""

import dataclasses
import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import rst
from sphinx.util.docutils import SphinxDirective

_KERAS_METHODS = {"build", "call", "compute_mask", "compute_output_shape", "compute_output_spec",
                  "from_config", "get_build_config", "get_config", "build_from_config"}  # fmt: skip


class Names(SphinxDirective):
    """Lists each public name of a package: a link to its page, and the first line of its docs."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = importlib.import_module(self.arguments[0])
        lines = [".. list-table::", "   :widths: auto", ""]
        for name in sorted(package.__all__, key=str.lower):
            found = getattr(package, name)
            if inspect.ismodule(found) or isinstance(found, str):
                continue
            summary = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
            home = ".".join(found.__module__.split(".")[:2])
            lines += [f"   * - :py:obj:`{name} <{home}.{name}>`", f"     - {summary}"]
        return self.parse_text_to_nodes("\n".join(lines))


def skip_member(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Shows what `__all__` has, even without a docstring; of classes only what is documented."""
    if what == "module":
        return False
    is_field = type(member).__name__ == "_tuplegetter"  # "Alias for field number 0"
    return True if is_field or (name in _KERAS_METHODS and not member.__doc__) else None


def _escaped(line: str) -> str:
    """Returns a line in which only backticks are markup, and a letter may follow them."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("`")
    for index in range(0, len(parts), 2):  # those outside of backticks
        parts[index] = re.sub(r"[*|]", r"\\\g<0>", parts[index])
        if index and re.match(r"\w", parts[index]):
            parts[index] = "\\ " + parts[index]
    return "`".join(parts)


def escape_docstring(
    app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]
) -> None:
    """Makes reStructuredText of a docstring in plain text, with indented lines as code."""
    result: list[str] = []
    in_text, in_code = True, False
    for line in lines:
        in_text = in_text and re.match(r"(Args|Returns|Raises|Examples?|Yields):", line) is None
        is_indented = in_text and line.startswith("    ")
        if is_indented and not in_code:
            result += ["", "::", ""]
        elif in_code and not is_indented and line:
            result += [""]
        in_code = is_indented or (in_code and not line)
        result.append(line if in_code else _escaped(line))
    lines[:] = result


def _fields_with_help(member: Any) -> list[dataclasses.Field[Any]]:
    fields = dataclasses.fields(member) if dataclasses.is_dataclass(member) else ()
    return [each for each in fields if "help" in each.metadata]


def add_fields(
    app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]
) -> None:
    """Adds the fields of a configuration, with their help texts, to its docstring."""
    if what != "class" or not (fields := _fields_with_help(member)):
        return
    lines += ["", ".. rubric:: Fields", ""]
    for field in fields:
        kind = field.type.__name__ if type(field.type) is type else str(field.type)
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines += [f"``{field.name}: {kind.replace('typing.', '')}{default}``"]
        lines += [f"   {rst.escape(field.metadata['help'])}", ""]


def shorten_signature(
    app: Sphinx, what: str, name: str, member: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leaves the fields of a configuration to the list that `add_fields` makes."""
    if what == "class" and _fields_with_help(member):
        return "(**fields)", returns
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("names", Names)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", add_fields)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True}
