"""What all configurations share: type and range checks, and JSON."""

import dataclasses
import json
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import Self

from keras_transformer.errors import InputError


def option(default: Any, help: str) -> Any:
    """Returns a dataclass field with a help text, which its command-line flag shows.

    Args:
        default: of the field, or `dataclasses.MISSING` for one that must be given.
        help: what the value means, in sentences.
    """
    return dataclasses.field(default=default, metadata={"help": help})


class JsonConfig:
    """JSON round trip and validation shared by the frozen dataclasses of this folder."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as the plain Python values that JSON has."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def to_json(self) -> str:
        """Returns the fields as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; an unknown field raises `InputError`."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise InputError(
                f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Builds the configuration from the text that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked like any other."""
        return type(self).from_dict(self.to_dict() | changes)

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, list) and get_origin(field.type) is tuple:  # read from JSON
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            if (expected := _expected(field.type, value)) is not None:
                raise InputError(f"{field.name} must be {expected}, got {value!r}")

    def _check_at_least(self, minimum: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"{name} must be at least {minimum}, got {value}")


_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
}


def _expected(kind: Any, value: Any) -> str | None:
    """Returns in words what a value of a type is, None where `value` is one.

    A bool is no number, and a whole number is also a float.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        mismatches = [_expected(option, value) for option in arguments if option is not NoneType]
        fits = None in mismatches or (value is None and NoneType in arguments)
        return None if fits else " or ".join(filter(None, mismatches))
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in arguments)
        return None if fits else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        fits = type(value) is tuple and all(_expected(arguments[0], each) is None for each in value)
        return None if fits else f"a sequence, each entry {_expected(arguments[0], object())}"
    if kind is float:
        fits = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    else:
        fits = isinstance(value, origin or kind) and (kind is bool or type(value) is not bool)
    return None if fits else _NAMES.get(kind, f"of type {kind}")
