"""The little YAML that Marian writes: options, lists of them, and tokens with their ids."""

import re
from collections.abc import Mapping
from typing import TypeAlias

from keras_transformer.errors import InputError

Options: TypeAlias = Mapping[str, "str | tuple[str, ...]"]

_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b",
    "f": "\f", "v": "\v", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*"|' + r"'(?:[^']|'')*')\s*:\s+(.*)")


def read_options(text: str) -> dict[str, str | tuple[str, ...]]:
    """Returns options by name, as text: a mapping whose values are numbers, words and lists."""
    options: dict[str, str | tuple[str, ...]] = {}
    name = ""
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if line[0] not in " -" and ":" in content:
            name, _, value = (part.strip() for part in content.partition(":"))
            options[name] = _plain(value)
        elif content.startswith("- "):
            earlier = options.get(name)
            items = earlier if isinstance(earlier, tuple) else ()
            options[name] = (*items, _plain(content[2:].strip()))
        elif content == "[]":
            options[name] = ()
    return {key: () if value == "[]" else value for key, value in options.items()}


def read_yaml_ids(text: str, where: str) -> dict[str, int]:
    """Returns the ids of tokens, one to a line; all tokens are text, also on, no and yes.

    Raises:
        InputError: a line is something else, or a token occurs twice.
    """
    ids: dict[str, int] = {}
    key = None  # of a line "? key", whose id is in the next
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line == "---":
            continue
        if line.startswith("? "):
            key = _plain(line[2:].strip())
            continue
        if key is not None and line.startswith(": "):
            token, value = key, line[2:]
        elif match := _QUOTED.fullmatch(line):
            token, value = _plain(match[1]), match[2]
        else:
            token, _, value = line.rpartition(": ")
        key = None
        if not value.strip().isdecimal() or token in ids:
            raise InputError(
                f"line {number} of {where} is no token with an id of its own, {line[:40]!r}; give "
                "the model's own vocabulary"
            )
        ids[token] = int(value)
    return ids


def _plain(text: str) -> str:
    """Returns a value without its quotes."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(_unescaped, text[1:-1])
    return text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)
