"""The inputs of a request: checked sentences, and decoding options with a value for each."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.config import SearchConfig, check_options
from keras_transformer.errors import InputError

# What an exported model takes for the option's value at export.
AS_EXPORTED: dict[str, Any] = {"DT_STRING": "", "DT_FLOAT": -1.0, "DT_INT32": -1, "DT_INT64": -1}

_BITS = {"DT_INT32": 31, "DT_INT64": 63}
_KINDS = {
    "DT_STRING": "text or a list of phrases",
    "DT_FLOAT": "a finite number",
    "DT_INT32": "a whole number of 32 bits",
    "DT_INT64": "a whole number of 64 bits",
}


class InputValues(NamedTuple):
    """One input of a request: a value for each sentence, and their `tensorflow.DataType`."""

    values: list[Any]
    dtype: str = "DT_STRING"


def text_input(name: str, texts: Sequence[str]) -> InputValues:
    """Returns sentences as an input.

    Raises:
        InputError: it is one string in place of a list, or an element is not text.
    """
    if isinstance(texts, str):
        raise InputError(f"{name} must be a list of sentences, got one: {texts[:40]!r}")
    column = InputValues(list(texts))
    for text in column.values:
        if not isinstance(text, str):
            raise InputError(f"{name} must be text, got {text!r}")
        _check_unicode(name, text)
    return column


def pair_inputs(source: Sequence[str], target: Sequence[str]) -> dict[str, InputValues]:
    """Returns sentences and their translations as inputs.

    Raises:
        InputError: their numbers differ, or as in `text_input`.
    """
    columns = {"source": text_input("source", source), "target": text_input("target", target)}
    sizes = [len(column.values) for column in columns.values()]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"source and target must have as many sentences, got {sizes[0]} and {sizes[1]}"
        )
    return columns


def option_inputs(
    options: Mapping[str, Any], inputs: Mapping[str, str], count: int
) -> dict[str, InputValues]:
    """Returns an input for each option of a model, given or not.

    Args:
        options: for each option one value for all sentences or a sequence of `count` values.
        inputs: the `tensorflow.DataType` of each input of the signature.
        count: sentences.

    Raises:
        InputError: the model has no such option, or a value is invalid.
    """
    known = {name: dtype for name, dtype in inputs.items() if name != "text"}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"the model has no option {', '.join(unknown)} that can change from sentence to "
            f"sentence; it has {', '.join(sorted(known)) or 'none'}"
        )
    columns = {
        name: InputValues([_checked(name, dtype, value) for value in values], dtype)
        for name, dtype in known.items()
        for values in [_spread(name, options.get(name), count)]
    }
    _check_values({name: columns[name] for name in options})
    return columns


def _check_values(columns: Mapping[str, InputValues]) -> None:
    """Raises `InputError` for options that no model accepts; it would take others instead."""
    names = [name for name in columns if name in SearchConfig.__dataclass_fields__]
    for row in set(zip(*(columns[name].values for name in names), strict=True)):
        given = {}
        for name, value in zip(names, row, strict=True):
            if value != AS_EXPORTED[columns[name].dtype]:
                is_text = isinstance(value, str)
                given[name] = tuple(filter(str.strip, value.split("\n"))) if is_text else value
        check_options(given)


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """Returns a value for each sentence."""
    if value is None or isinstance(value, str | numbers.Real) or not isinstance(value, Iterable):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise InputError(
            f"{name} must be one value for all sentences or a list with one for each, got "
            f"{len(values)} for {count} sentences"
        )
    return values


def _checked(name: str, dtype: str, value: Any) -> Any:
    """Returns a value of an option as JSON and protocol buffers represent it."""
    if value is None:
        return AS_EXPORTED[dtype]
    if dtype == "DT_STRING" and isinstance(value, list | tuple):
        value = "\n".join(map(str, value))
    if dtype == "DT_STRING" and isinstance(value, str):
        _check_unicode(name, value)
        return value
    if dtype == "DT_FLOAT" and isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    if dtype in _BITS and isinstance(value, numbers.Integral):
        whole = int(value)
        if -1 << _BITS[dtype] <= whole < 1 << _BITS[dtype]:
            return whole
    raise InputError(f"{name} must be {_KINDS[dtype]}, got {value!r}")


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} must be Unicode, got a lone surrogate at character {error.start} of "
            f"{text[:40]!r}"
        ) from error
