"""Files of the safetensors format: u64 length of a header, the header in JSON, then the tensors."""

import functools
import json
import pathlib
import struct
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Tensors, from_bfloat16, map_file

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LARGEST_HEADER = 100_000_000  # the format's own limit


def read_safetensors(path: pathlib.Path) -> Tensors:
    """Returns the tensors of a file; those of whole numbers are refused when they are asked for.

    Raises:
        InputError: the file is missing, cut short, or not of this format.
    """
    content = map_file(path)
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > min(_LARGEST_HEADER, len(content) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(bytes(content[8 : 8 + length]))
        header.pop("__metadata__", None)
        data = content[8 + length :]
        for entry in header.values():
            _check(entry, len(data))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is not a safetensors file, or a damaged one ({error}); download it again"
        ) from error
    arrays = {
        name: functools.partial(_read, data, entry, f"tensor {name} of {path}")
        for name, entry in header.items()
    }
    return Tensors(arrays, str(path))


def _check(entry: dict[str, Any], size: int) -> None:
    """Raises `ValueError` unless an entry of the header describes bytes that are there."""
    start, end = entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (start, end, *entry["shape"])):
        raise ValueError("its header has no sizes")
    if not start <= end <= size:
        raise ValueError("it is cut short")
    if entry["dtype"] in _TYPES:
        width = np.dtype(_TYPES[entry["dtype"]]).itemsize
        expected = width
        for number in entry["shape"]:
            expected *= number
        if end - start != expected:
            raise ValueError("a tensor has another size than its header says")


def _read(data: memoryview, entry: dict[str, Any], what: str) -> Array:
    if entry["dtype"] not in _TYPES:
        raise InputError(f"{what} is of type {entry['dtype']}; give a model that is not quantized")
    start, end = entry["data_offsets"]
    raw = np.frombuffer(data[start:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return from_bfloat16(raw) if entry["dtype"] == "BF16" else raw
