"""Files that `torch.save` wrote, read without PyTorch and without running anything.

Such a file is a pickle beside the bytes of the tensors: in a zip archive, or, before PyTorch 1.6,
one after the other. A pickle is a program for a stack machine. The one here makes numbers, text,
containers, tensors that are read later, and inert records of all other classes; it calls nothing.
No file takes more memory than a few times its own size.
"""

import functools
import io
import math
import pathlib
import pickletools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.reading import Array, Tensors, map_file, open_zip, reading

_KIND = "a file of PyTorch"
_MAX_DIMENSIONS = 64  # of NumPy's arrays
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {
    "DoubleStorage": np.dtype("<f8"), "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"), "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"), "IntStorage": np.dtype("<i4"), "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"), "ByteStorage": np.dtype("u1"), "BoolStorage": np.dtype("u1"),
}  # fmt: skip
_PUSH_ARGUMENT = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
)  # fmt: skip


class Record(dict[str, Any]):
    """An object of an unknown class: its attributes by name."""


class StoredTensor(NamedTuple):
    """A tensor that is not read yet."""

    read: Callable[[], Array]


class _Class(NamedTuple):
    name: str


class _Storage(NamedTuple):
    dtype: np.dtype[Any]
    key: str


def read_pytorch(path: pathlib.Path) -> Any:
    """Returns the object in a file: containers, plain values, `StoredTensor` and `Record`."""
    content = map_file(path)
    with reading(path, _KIND):
        return _read_zip(path) if bytes(content[:2]) == b"PK" else _read_legacy(content)


def state_tensors(state: Any, path: pathlib.Path) -> Tensors:
    """Returns the tensors among the entries of a dictionary; `InputError` if there are none."""
    values = state.values() if isinstance(state, dict) else ()
    if not any(isinstance(value, StoredTensor) for value in values):
        raise InputError(f"{path} holds no tensors by name; give the weights of a model")

    def read(tensor: StoredTensor) -> Array:
        with reading(path, _KIND):
            return tensor.read()

    arrays = {
        name: functools.partial(read, value)
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, StoredTensor)
    }
    return Tensors(arrays, str(path))


def _read_zip(path: pathlib.Path) -> Any:
    archive = open_zip(path)
    pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
    _require(len(pickles) == 1, f"it has {len(pickles)} files data.pkl")
    folder = pickles[0].removesuffix("data.pkl")
    has_order = f"{folder}byteorder" in archive.NameToInfo  # since PyTorch 2.1
    order = archive.read(f"{folder}byteorder") if has_order else b"little"
    _require(order in (b"little", b"big"), f"its byte order is {order[:20]!r}")

    def read(storage: _Storage) -> bytes:
        name = f"{folder}data/{storage.key}"
        _require(name in archive.NameToInfo, f"it has no {name[:100]}")
        data = archive.read(name)
        if order == b"little":
            return data
        return np.frombuffer(data, f"u{storage.dtype.itemsize}").byteswap().tobytes()

    content = archive.read(pickles[0])
    return _PickleMachine(read).run(io.BytesIO(content), len(content))


def _read_legacy(content: memoryview) -> Any:
    file, size = cast(IO[bytes], content.obj), len(content)  # an mmap
    data: dict[str, memoryview] = {}
    machine = _PickleMachine(lambda storage: data[storage.key])
    _require(machine.run(file, size) == _LEGACY_MAGIC, "it does not begin as PyTorch's files do")
    _, system = machine.run(file, size), machine.run(file, size)  # protocol version, system
    _require(isinstance(system, dict) and system.get("little_endian"), "it is not little-endian")
    result, keys = machine.run(file, size), machine.run(file, size)
    _require(isinstance(keys, list), "it has no list of storages")
    for key in keys:
        _require(isinstance(key, str) and key in machine.storages, "it has an unknown storage")
        (count,) = struct.unpack("<q", file.read(8))
        end = file.tell() + count * machine.storages[key].itemsize
        _require(count >= 0 and end <= size, "it is cut short")
        data[key] = content[file.tell() : end]
        file.seek(end)
    _require(machine.storages.keys() <= data.keys(), "a storage is missing")
    return result


class _PickleMachine:
    """Runs the instructions of pickles on a stack of plain values.

    Args:
        read: returns the bytes of a storage.
    """

    def __init__(self, read: Callable[[_Storage], bytes | memoryview]) -> None:
        self._read = read
        self.storages: dict[str, np.dtype[Any]] = {}

    def run(self, file: IO[bytes], size: int) -> Any:
        """Returns the object of the next pickle in a file of `size` bytes.

        Raises:
            ValueError: it is damaged.
        """
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        # Items that instructions copy from a container: in an honest pickle each is copied once.
        self._copies_left = size
        for code, argument, _ in pickletools.genops(file):
            if code.name == "STOP":
                return self._pop(1)[0]
            self._execute(code.name, argument)
        raise ValueError("its pickle has no end")

    def _execute(self, name: str, argument: Any) -> None:
        push = self._stack.append
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(self._stack))
            case "POP":
                self._pop(1)
            case "POP_MARK":
                self._pop_mark()
            case "DUP":
                push(self._top())
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._top()
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top()
            case "GET" | "BINGET" | "LONG_BINGET":
                _require(argument in self._memo, "its pickle recalls what it never stored")
                push(self._memo[argument])
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                push({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_TUPLE" | "EMPTY_SET":
                push({"LIST": list, "DICT": dict, "TUPLE": tuple, "SET": set}[name[6:]]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple(self._pop(int(name[-1]))))
            case "TUPLE":
                push(tuple(self._pop_mark()))
            case "LIST":
                push(self._pop_mark())
            case "DICT":
                push(_entries(self._pop_mark()))
            case "FROZENSET":
                push(frozenset(map(_key, self._pop_mark())))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if name == "APPEND" else self._pop_mark()
                self._top(list).extend(values)
            case "ADDITEMS":
                values = self._pop_mark()
                self._top(set).update(map(_key, values))
            case "SETITEM" | "SETITEMS":
                values = self._pop(2) if name == "SETITEM" else self._pop_mark()
                self._top(dict).update(_entries(values))
            case "GLOBAL":
                push(_Class(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                names = self._pop(2)
                _require(all(type(name) is str and len(name) < 1000 for name in names), "a name")
                push(_Class(".".join(names)))
            case "REDUCE" | "NEWOBJ":
                push(self._object(*self._pop(2)))
            case "NEWOBJ_EX":
                kind, arguments, _ = self._pop(3)
                push(self._object(kind, arguments))
            case "BUILD":
                (state,) = self._pop(1)
                if isinstance(self._top(), Record) and isinstance(state, dict):
                    self._count_copies(len(state))
                    self._top().update(state)
            case "BINPERSID":
                push(self._storage(*self._pop(1)))
            case _ if name in _PUSH_ARGUMENT:
                push(argument)
            case _:
                raise ValueError(f"its pickle has the instruction {name}")

    def _storage(self, identity: Any) -> _Storage:
        """Returns a storage for its tuple ("storage", class, key, device, number of entries)."""
        match identity:
            case (_, _Class(name), str() | int() as key, *_):
                kind = name.rpartition(".")[2]
                _require(kind in _DTYPES, f"it has tensors of type {kind[:40]}")
                self.storages[str(key)] = _DTYPES[kind]
                return _Storage(_DTYPES[kind], str(key))
        raise ValueError("a storage has no class and key")

    def _object(self, kind: Any, arguments: Any) -> Any:
        match kind, arguments:
            case _Class("collections.OrderedDict"), ():
                return {}
            case _Class("collections.OrderedDict"), (list(pairs),):
                self._count_copies(len(pairs))
                _require(all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs),
                         "an OrderedDict is not made of pairs")  # fmt: skip
                return _entries([part for pair in pairs for part in pair])
            case (
                _Class("torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2"),
                (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_),
            ):
                return StoredTensor(functools.partial(self._view, storage, offset, shape, strides))
            case _Class("torch._utils._rebuild_parameter"), (parameter, *_):
                return parameter
        return Record()

    def _view(
        self, storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Array:
        """Reads a tensor: the entries of a storage at offset + sum of index * stride."""
        flat = np.frombuffer(self._read(storage), storage.dtype)
        _require(len(shape) == len(strides) <= _MAX_DIMENSIONS, "a tensor has no sizes")
        numbers = (offset, *shape, *strides)
        _require(all(type(n) is int and n >= 0 for n in numbers), "a tensor has no sizes")
        size = math.prod(shape)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        _require(size <= len(flat) and (not size or last < len(flat)),
                 "a tensor is larger than its storage")  # fmt: skip
        steps = [stride * storage.dtype.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)

    def _count_copies(self, count: int) -> None:
        """Counts items that an instruction copies; raises `ValueError` if they are too many."""
        self._copies_left -= count
        _require(self._copies_left >= 0, "its pickle repeats a list without end")

    def _top(self, kind: type = object) -> Any:
        _require(self._stack and isinstance(self._stack[-1], kind), "its pickle fills no container")
        return self._stack[-1]

    def _pop(self, count: int) -> list[Any]:
        _require(len(self._stack) >= count, "its pickle takes more than there is")
        return self._pop_from(len(self._stack) - count)

    def _pop_mark(self) -> list[Any]:
        _require(self._marks, "its pickle lacks a mark")
        return self._pop_from(self._marks.pop())

    def _pop_from(self, start: int) -> list[Any]:
        values = self._stack[start:]
        del self._stack[start:]
        return values


def _require(condition: Any, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _entries(values: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(map(_key, values[0::2]), values[1::2], strict=True))


def _key(value: Any) -> Any:
    """Returns a value that is hashed at once; tuples of tuples of the same may take forever."""
    parts: Iterable[Any] = value if type(value) is tuple else (value,)
    for part in parts:
        if type(part) not in (str, int, float, bool, bytes, type(None)):
            raise ValueError("a key of a dictionary is no plain value")
    return value
