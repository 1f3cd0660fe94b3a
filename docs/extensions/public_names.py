"""Autodoc for this package: which members are shown, and docstrings as reStructuredText.

The directive `public` documents the public names of a module, `names-table` those of the package.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
from typing import Any

import sphinx.util.inspect
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import rst
from sphinx.util.docutils import SphinxDirective

import keras_transformer


def public_names() -> dict[str, str]:
    """Returns the names of the package, each with the module that its stub imports it from."""
    stub = pathlib.Path(keras_transformer.__file__).with_suffix(".pyi").read_text("utf-8")
    return {
        alias.name: f"keras_transformer.{node.module}"
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def exported_names(module: Any) -> list[str]:
    """Returns the names of a module's `__all__`, or else those that it imports as themselves."""
    tree = ast.parse(pathlib.Path(module.__file__).read_text("utf-8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    imported = [each.asname for node in imports for each in node.names if each.asname]
    return list(getattr(module, "__all__", imported))


class PublicNames(SphinxDirective):
    """Documents the names that a module exports, or those that the content of this lists."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        module = importlib.import_module(name)
        lines = [] if self.content else [f".. automodule:: {name}", ""]
        for each in " ".join(self.content).split() or sorted(
            exported_names(module), key=_constants_last
        ):
            found = getattr(module, each)
            if isinstance(found, type):
                lines += [f".. autoclass:: {name}.{each}", "   :members:", ""]
            else:
                directive = "autofunction" if inspect.isfunction(found) else "autodata"
                lines += [f".. {directive}:: {name}.{each}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def _constants_last(name: str) -> tuple[bool, str]:
    return name.isupper(), name.lower()


class NamesTable(SphinxDirective):
    """Lists the names of `keras_transformer`: links, and the first line of their docstrings."""

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :widths: auto", ""]
        for name, home in sorted(public_names().items(), key=lambda item: item[0].lower()):
            docstring = inspect.getdoc(getattr(keras_transformer, name)) or ""
            summary = docstring.partition("\n\n")[0].replace("\n", " ")
            lines += [f"   * - :py:obj:`{name} <{home}.{name}>`"]
            lines += [f"     - {_escaped(summary)}"]
        return self.parse_text_to_nodes("\n".join(lines))


def skip_member(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out the fields of named tuples, of which Python says "Alias for field number 0"."""
    return True if type(member).__name__ == "_tuplegetter" else None


_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Examples?|Yields):")


def _escaped(line: str) -> str:
    """Returns a line in which only backticks are markup, and a letter may follow them."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("`")
    for index in range(0, len(parts), 2):  # those outside of backticks
        parts[index] = re.sub(r"[*|]|_(?!\w)", r"\\\g<0>", parts[index])
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
        in_text = (
            in_text
            and re.match(r"(Args|Attributes|Returns|Raises|Examples?|Yields):", line) is None
        )
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
        kind = re.sub(r"Optional\[(.*)\]$", r"\1 | None", kind.replace("typing.", ""))
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines += [f"``{field.name}: {kind}{default}``"]
        lines += [f"   {rst.escape(field.metadata['help'])}", ""]


def fix_signature(
    app: Sphinx, what: str, name: str, member: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leaves fields of configurations to `add_fields`; takes a Keras layer's from `__init__`."""
    if what != "class":
        return None
    if _fields_with_help(member):
        return "(**fields)", returns
    if signature == "(*args: ~typing.Any, **kwargs: ~typing.Any)":  # of `keras.Layer.__new__`
        found = sphinx.util.inspect.signature(member.__init__, bound_method=True)
        return sphinx.util.inspect.stringify_signature(found, show_return_annotation=False), returns
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("public", PublicNames)
    app.add_directive("names-table", NamesTable)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", add_fields)
    app.connect("autodoc-process-signature", fix_signature)
    return {"parallel_read_safe": True}
