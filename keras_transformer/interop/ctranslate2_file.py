"""model.bin of CTranslate2: named arrays one after the other, little-endian.

u32 version, name of the model, u32 revision, u32 count; for each array its name, u8 rank, u32
sizes, u8 type, u32 bytes and these; u32 count of aliases, for each its name and that of the array.
Text is u16 length, bytes and a NUL. Weights in whole numbers are multiplied by a scale that is
divided out.
"""

import functools
import math
import pathlib
import struct
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.model_files import map_file
from keras_transformer.interop.tensors import Array, Tensors, from_bfloat16

_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}
_BFLOAT16 = 5


def read_model_bin(path: pathlib.Path) -> Tensors:
    """Returns the arrays; `InputError` where the file is damaged."""
    content = map_file(path)
    try:
        return Tensors(_Reader(content).arrays(), str(path))
    except (struct.error, ValueError, KeyError, IndexError, OverflowError) as error:
        raise InputError(
            f"{path} is not a CTranslate2 model, or a damaged one ({error}); convert it again"
        ) from error


class _Reader:
    """Reads the entries of model.bin one after the other."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._place = 0

    def arrays(self) -> dict[str, Any]:
        """Returns what gives each array by name; integers are divided by their scales."""
        version, name = self._number("<I"), self._text()
        if version not in (5, 6) or name != "TransformerSpec":
            raise ValueError(
                f"it is {name[:40]!r} of version {version}, TransformerSpec 6 is known"
            )
        self._number("<I")  # revision
        stored = dict(self._entry() for _ in range(self._number("<I")))
        arrays: dict[str, Any] = {
            name: functools.partial(_scaled, array, stored.get(f"{name}_scale"))
            for name, array in stored.items()
        }
        for _ in range(self._number("<I")):
            alias = self._text()
            arrays[alias] = arrays[self._text()]
        if self._place != len(self._content):
            raise ValueError("it is longer than it says")
        return arrays

    def _entry(self) -> tuple[str, Array]:
        name, rank = self._text(), self._number("<B")
        shape = [self._number("<I") for _ in range(rank)]
        kind, size = self._number("<B"), self._number("<I")
        dtype = np.dtype(_TYPES[kind])
        if math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{name[:40]!r} has another size than it says")
        array = np.frombuffer(self._bytes(size), dtype).reshape(shape)
        return name, from_bfloat16(array) if kind == _BFLOAT16 else array

    def _bytes(self, size: int) -> memoryview:
        start, self._place = self._place, self._place + size
        if self._place > len(self._content):
            raise ValueError("it is cut short")
        return self._content[start : self._place]

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return int(value)

    def _text(self) -> str:
        return bytes(self._bytes(self._number("<H"))).rstrip(b"\0").decode()


def _scaled(array: Array, scale: Array | None) -> Array:
    """Returns weights in float32; a matrix of int8 has a scale for each row."""
    if scale is None:
        return array
    if scale.shape not in ((), array.shape[:1]) or not np.all(scale):
        raise InputError("a scale of the model does not fit its weights; convert it again")
    return array.astype(np.float32) / (scale[:, None] if scale.ndim else scale)
