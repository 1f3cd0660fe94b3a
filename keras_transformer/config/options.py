"""The base of all configurations: fields that declare their rules, their checks, and JSON.

`option` makes a field and declares once what its value means, which values it may have and who may
set it. Checks, command-line flags and the options that a run keeps are derived from that.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typing_extensions import Self

from keras_transformer.errors import InputError
from keras_transformer.files import local_paths


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    is_odd: bool = False,
    is_path: bool = False,
    for_vocabulary: bool = False,
    is_learned: bool = False,
    may_change: bool = False,
    needs: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    needs_dev_set: bool = False,
) -> Any:
    """Returns a field of a configuration.

    Args:
        default: of the field, or `dataclasses.MISSING` for a required one.
        help: what the value means, in sentences; the help of its command-line flag.
        minimum, maximum, above, below: bounds of a number, or of the length of a sequence.
        is_odd: whether the number must be odd.
        is_path: whether the text is a path on this machine, or several separated by commas.
        for_vocabulary: whether it determines the vocabularies of a run.
        is_learned: whether an option of a task changes what a model learns; a run keeps it.
        may_change: whether a run that is resumed may have another value than before.
        needs: the values of another field with which this one has an effect, any value but None for
            an empty tuple. A value that has no effect is an error.
        needs_dev_set: whether it has an effect only in runs with a dev set.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Windows(JsonConfig):
        ...     window: int = option(3, "Tokens that a token attends to.", minimum=1, is_odd=True)
        >>> Windows(window=4)
        InputError: window must be odd, got 4; use 3 or 5
    """
    declared = {name: value for name, value in locals().items() if name != "default"}
    return dataclasses.field(default=default, metadata=declared)


# Of a vocabulary that is learned.
learned_option = functools.partial(option, for_vocabulary=True, needs={"vocabulary": (None,)})


class JsonConfig:
    """Base of configurations: frozen dataclasses that check their fields, and dictionaries of them.

    Numbers of NumPy become Python's. A subclass that has rules for several fields together checks
    them in its `__post_init__`, after that of this class.
    """

    def __post_init__(self) -> None:
        types = field_types(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, kind = getattr(self, field.name), types[field.name]
            if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # NumPy's
                value = value.item()
            if (expected := _expected(kind, value)) is not None:
                raise InputError(f"{field.name} must be {expected}, got {value!r}")
            if value is not None:
                if field.metadata.get("is_path"):
                    value = local_paths(value)
                _check_range(field, value)
            object.__setattr__(self, field.name, value)
        unused = self.unused_fields(vars(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.name in unused and getattr(self, field.name) != field.default:
                other = unused[field.name]
                raise InputError(
                    f"{field.name} has no effect with {other} {getattr(self, other)}; remove it, "
                    f"or change {other}"
                )

    @classmethod
    def unused_fields(cls, values: Mapping[str, Any]) -> dict[str, str]:
        """Returns the fields without effect, each with the name of the field that it needs.

        Fields without a value have their defaults.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        values = {field.name: field.default for field in fields} | dict(values)
        return {
            field.name: other
            for field in fields
            for other, useful in field.metadata.get("needs", {}).items()
            if (values[other] not in useful if useful else values[other] is None)
        }

    @classmethod
    def fields_with(cls, **declared: Any) -> tuple[str, ...]:
        """Returns the names of the fields that declare these rules, of all without rules."""
        return tuple(
            field.name
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if declared.items() <= field.metadata.items()
        )

    @classmethod
    def pick(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that are fields of this configuration."""
        return {name: options[name] for name in cls.fields_with() if name in options}

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain Python values, as in JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds the configuration; an unknown field raises `InputError`."""
        known = cls.fields_with()
        if unknown := sorted(set(values) - set(known)):
            raise InputError(
                f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, checked like any other.

        Other fields that have no effect beside the changes get their defaults.
        """
        values = self.to_dict() | changes
        unused = self.unused_fields(values).keys() - changes.keys()
        return type(self).from_dict({k: v for k, v in values.items() if k not in unused})


def field_types(config: type[JsonConfig]) -> dict[str, Any]:
    """Returns the type of each field, also of modules with `from __future__ import annotations`."""
    types = get_type_hints(config)
    return {field.name: types[field.name] for field in dataclasses.fields(config)}  # type: ignore[arg-type]


_BOUNDS = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def _check_range(field: dataclasses.Field[Any], value: Any) -> None:
    """Raises `InputError` unless a value keeps the bounds that its field declares."""
    for name, (words, is_within) in _BOUNDS.items():
        bound = field.metadata.get(name)
        if bound is not None and not is_within(value, bound):
            raise InputError(f"{field.name} must be {words} {bound}, got {value}")
    if field.metadata.get("is_odd") and value % 2 == 0:
        raise InputError(f"{field.name} must be odd, got {value}; use {value - 1} or {value + 1}")


_NAMES = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a string"}


def _expected(kind: Any, value: Any) -> str | None:
    """Returns the values of a type in words, or None if `value` is one of them.

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
    if kind is float:
        fits = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    else:
        fits = isinstance(value, origin or kind) and (kind is bool or type(value) is not bool)
    return None if fits else _NAMES.get(kind, f"of type {kind}")
