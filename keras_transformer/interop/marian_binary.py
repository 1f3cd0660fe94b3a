"""Reads the binary models of Marian and its fork for browsers, as `marian-conv` writes them.

A file is little-endian: a version, 1, and the number of tensors; four numbers of 8 bytes for each,
which are the length of its name with a NUL, its type, its dimensions and its bytes; all names, all
shapes, the length of a gap and the gap; then all data. Matrices of the type intgemm8 or intgemm16
are integers, and behind them the number that they were multiplied by in float32. They lie
transposed, but for embeddings; their shapes are those before.
"""

import math
import pathlib
import struct

import numpy as np

from keras_transformer.interop.reading import Array, map_file, reading

_VERSION = 1
_FLOATS = {0x402: "<f2", 0x404: "<f4", 0x408: "<f8", 0x101: "<i1"}  # int8 is text
# Of the fork, and of Marian itself. Others depend on the processor.
_INTEGERS = {0x4101: "<i1", 0x4102: "<i2", 0x10001: "<i1", 0x10002: "<i2"}


def is_binary(path: pathlib.Path) -> bool:
    """Whether a file begins as such a model does."""
    if path.suffix != ".bin" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == struct.pack("<Q", _VERSION)


def read_binary(path: pathlib.Path) -> dict[str, Array]:
    """Returns the tensors of a file by name; `InputError` if it is damaged.

    Integers become the floats that they stand for.
    """
    content = map_file(path)
    arrays: dict[str, Array] = {}
    with reading(path, "a binary model of Marian", struct.error, LookupError, OverflowError):
        place = 16
        _, count = struct.unpack_from("<2Q", content)
        headers = np.frombuffer(content, "<u8", 4 * count, place).reshape(-1, 4).tolist()
        place += 32 * count
        names, shapes = [], []
        for length, *_ in headers:
            names.append(bytes(content[place : place + length - 1]).decode())
            place += length
        for _, _, dimensions, _ in headers:
            shapes.append(struct.unpack_from(f"<{dimensions}i", content, place))
            place += 4 * dimensions
        place += 8 + struct.unpack_from("<Q", content, place)[0]
        for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
            is_quantized = kind in _INTEGERS
            dtype = np.dtype(_INTEGERS[kind] if is_quantized else _FLOATS[kind])
            size = math.prod(shape) * dtype.itemsize
            data = content[place : place + length]
            if min(shape, default=1) < 1 or len(data) < size + 4 * is_quantized:
                raise ValueError(f"{name} is cut short")
            values = np.frombuffer(data, dtype, math.prod(shape))
            if is_quantized:
                values = values / np.float32(struct.unpack_from("<f", data, size)[0])
            is_transposed = is_quantized and "Wemb" not in name
            arrays[name] = values.reshape(shape[::-1]).T if is_transposed else values.reshape(shape)
            place += length
    return arrays
