"""Files that `torch.save` wrote, read without PyTorch and without running anything.

Such a file is a pickle beside the bytes of the tensors: in a zip archive, or, before PyTorch 1.6,
one after the other. `pytorch_pickle.py` reads the pickle and calls nothing.
"""

import functools
import io
import math
import pathlib
import pickletools
import struct
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.files import Array, Tensors, from_bfloat16, map_file

# Pickles as PyTorch writes them, read without running anything.
#
# A pickle is a program for a stack machine. This one makes numbers, text, containers, tensors and
# inert records of all other classes, and calls nothing.

STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<u1",
}
_PUSH_ARGUMENT = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
)  # fmt: skip
_PUSH_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}


class Record(dict[Any, Any]):
    """What stands for an object of a class that is not known: its attributes, by name."""

    kind = ""


class Tensor(NamedTuple):
    """A tensor that is not read yet."""

    read: Callable[[], Array]
    shape: tuple[int, ...]


class _Global(NamedTuple):
    name: str


class Storage(NamedTuple):
    kind: str
    key: str
    size: int


class PickleMachine:
    """Runs a pickle's instructions on a stack of plain values.

    Args:
        read: gives the bytes of a storage.
    """

    def __init__(self, read: Callable[[Storage], bytes]) -> None:
        self._read = read
        self.storages: dict[str, Storage] = {}

    def run(self, file: io.BytesIO) -> Any:
        """Returns the object of the next pickle in a file."""
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        for code, argument, _ in pickletools.genops(file):
            if code.name in _PUSH_ARGUMENT:
                self._stack.append(argument)
            elif code.name in _PUSH_NEW:
                self._stack.append(_PUSH_NEW[code.name]())
            elif code.name == "STOP":
                return self._stack.pop()
            elif not self._move(code.name, argument) and not self._fill(code.name):
                self._make(code.name, argument)
        raise ValueError("its pickle has no end")

    def _move(self, name: str, argument: Any) -> bool:
        """Moves values between stack and memo; returns whether this instruction does."""
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(self._stack))
            case "POP":
                self._stack.pop()
            case "POP_MARK":
                self._since_mark()
            case "DUP":
                self._stack.append(self._stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case _:
                return False
        return True

    def _fill(self, name: str) -> bool:
        """Puts values into containers; returns whether this instruction does."""
        match name:
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._stack.append(tuple(self._pop(int(name[-1]))))
            case "TUPLE" | "LIST":
                make = {"TUPLE": tuple, "LIST": list}[name]
                self._stack.append(make(self._since_mark()))
            case "FROZENSET":
                self._stack.append(frozenset(map(_key, self._since_mark())))
            case "DICT":
                self._stack.append(_entries(self._since_mark()))
            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = self._pop(1) if name == "APPEND" else self._since_mark()
                container = self._stack[-1]
                if name == "ADDITEMS":
                    container.update(map(_key, values))
                else:
                    container.extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._pop(2) if name == "SETITEM" else self._since_mark()
                self._stack[-1].update(_entries(values))
            case _:
                return False
        return True

    def _make(self, name: str, argument: Any) -> None:
        """Makes an object, a tensor among others."""
        match name:
            case "GLOBAL":
                self._stack.append(_Global(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                self._stack.append(_Global(".".join(self._pop(2))))
            case "REDUCE" | "NEWOBJ":
                self._stack.append(self._object(*self._pop(2)))
            case "NEWOBJ_EX":
                kind, arguments, _ = self._pop(3)
                self._stack.append(self._object(kind, arguments))
            case "BUILD":
                (state,) = self._pop(1)
                if isinstance(self._stack[-1], Record) and isinstance(state, dict):
                    self._stack[-1].update(state)
            case "BINPERSID":
                _, kind, key, _, count, *_ = self._stack.pop()
                storage = Storage(kind.name.rpartition(".")[2], str(_key(key)), int(count))
                self.storages[key] = storage
                self._stack.append(storage)
            case _:
                raise ValueError(f"its pickle has the instruction {name}")

    def _object(self, kind: _Global, arguments: tuple[Any, ...]) -> Any:
        match kind.name:
            case "collections.OrderedDict":
                return _entries([each for pair in (*arguments, ())[0] for each in pair])
            case "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2":
                storage, offset, shape, strides = arguments[:4]
                view = functools.partial(self._view, storage, offset, shape, strides)
                return Tensor(view, tuple(shape))
            case "torch._utils._rebuild_parameter":
                return arguments[0]
        record = Record(arguments=arguments)
        record.kind = kind.name
        return record

    def _view(
        self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Array:
        """Reads a tensor."""
        dtype = np.dtype(STORAGES[storage.kind])
        flat = np.frombuffer(self._read(storage), dtype)
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError("a tensor has no sizes")
        size = math.prod(shape)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if size > len(flat) or (size and last >= len(flat)):
            raise ValueError("a tensor is larger than its storage")
        steps = [stride * dtype.itemsize for stride in strides]
        view = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
        return from_bfloat16(view) if storage.kind == "BFloat16Storage" else view

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise ValueError("its pickle takes more than there is")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values


def _entries(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(_key, values[0::2]), values[1::2], strict=True))


def _key(value: Any) -> Any:
    """Returns a value that is hashed at once; tuples of tuples of the same may take for ever."""
    for each in value if type(value) is tuple else (value,):
        if type(each) not in (str, int, float, bool, bytes, type(None)):
            raise ValueError("a key of a dictionary is no plain value")
    return value


_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def read_pytorch(path: pathlib.Path) -> Any:
    """Returns the object in a file: containers, plain values, `Tensor` and `Record`.

    Raises:
        InputError: the file is missing, cut short, or not of this format.
    """
    content = map_file(path)
    try:
        if bytes(content[:2]) == b"PK":
            return _read_zip(content)
        return _read_legacy(content)
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise damaged(path, error) from error


def state_tensors(state: Any, path: pathlib.Path) -> Tensors:
    """Returns the tensors among the entries of a dictionary; `InputError` where it is none."""
    if not isinstance(state, dict) or not any(isinstance(each, Tensor) for each in state.values()):
        raise InputError(f"{path} holds no tensors by name; give the weights of a model")

    def read(tensor: Tensor) -> Array:
        try:
            return tensor.read()
        except Exception as error:
            raise damaged(path, error) from error

    arrays = {
        str(name): functools.partial(read, value)
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    return Tensors(arrays, str(path))


def damaged(path: pathlib.Path, error: Exception) -> InputError:
    """Returns the error for a file that cannot be read."""
    return InputError(
        f"{path} is not a file of PyTorch, or a damaged one ({type(error).__name__}: {error}); "
        "download it again"
    )


def _read_zip(content: memoryview) -> Any:
    archive = zipfile.ZipFile(io.BytesIO(content))
    (pickle,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
    folder = pickle.removesuffix("data.pkl")

    def read(storage: Storage) -> bytes:
        return archive.read(f"{folder}data/{storage.key}")

    return PickleMachine(read).run(io.BytesIO(archive.read(pickle)))


def _read_legacy(content: memoryview) -> Any:
    file = io.BytesIO(content)
    data: dict[str, bytes] = {}
    machine = PickleMachine(lambda storage: data[storage.key])
    if machine.run(file) != _LEGACY_MAGIC:
        raise ValueError("it begins otherwise")
    _, system = machine.run(file), machine.run(file)
    if not system["little_endian"]:
        raise ValueError("its numbers are big-endian")
    result, keys = machine.run(file), machine.run(file)
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        size = count * np.dtype(STORAGES[machine.storages[key].kind]).itemsize
        data[key] = file.read(size)
        if count < 0 or len(data[key]) < size:
            raise ValueError("it is cut short")
    return result
