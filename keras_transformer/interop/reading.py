"""Reads the files of other toolkits: text, JSON, archives, safetensors, and named tensors in them.

Files come from anywhere and may be damaged or hostile: each problem is an `InputError` that names
the file and what to do, and no file takes more memory than a few times its own size.
"""

import contextlib
import fnmatch
import functools
import itertools
import json
import mmap
import pathlib
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from keras_transformer.errors import InputError, one_line

Array = npt.NDArray[Any]
_T = TypeVar("_T")

# What reading a damaged binary file raises; zipfile also knows unknown versions and encryption, and
# seeks where there is nothing.
_DAMAGED: tuple[type[Exception], ...] = (
    OSError, ValueError, EOFError, struct.error, zlib.error, zipfile.BadZipFile,
    NotImplementedError, RuntimeError,
)  # fmt: skip
_SAFETENSORS_FLOATS: dict[str, Any] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16
}  # fmt: skip


class Tensors:
    """The tensors of a file by name, which records those that were read.

    Args:
        arrays: the tensors, or functions that read them.
        where: names the file in errors.
    """

    def __init__(self, arrays: Mapping[str, Array | Callable[[], Array]], where: str) -> None:
        self._arrays = arrays
        self._used: set[str] = set()
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def get(self, name: str, shape: tuple[int | None, ...] | None = None) -> Array:
        """Returns a tensor in float32.

        Args:
            name: of the tensor.
            shape: the expected one, None for any size; additional axes of length 1 are removed.

        Raises:
            InputError: it is missing, has another shape, or an entry that is not finite.
        """
        if name not in self._arrays:
            raise InputError(
                f"{self.where} lacks the tensor {name}; give the whole model, after training"
            )
        self._used.add(name)
        array = _as_stored(self._arrays[name]).astype(np.float32, copy=False)
        if shape is not None:
            if array.ndim != len(shape):
                array = array.reshape([size for size in array.shape if size != 1] or [1])
            if array.ndim != len(shape) or any(
                size not in (None, stored) for size, stored in zip(shape, array.shape, strict=True)
            ):
                expected = " x ".join("any" if size is None else str(size) for size in shape)
                raise InputError(
                    f"tensor {name} of {self.where} is {' x '.join(map(str, array.shape))} instead "
                    f"of {expected}; the file and its configuration do not belong together"
                )
        if not np.isfinite(array).all():
            raise InputError(
                f"tensor {name} of {self.where} is not finite; take an earlier checkpoint"
            )
        return array

    def is_integer(self, name: str) -> bool:
        """Returns whether a tensor is stored as integers."""
        return _as_stored(self._arrays[name]).dtype.kind in "iu"

    def split(self, name: str, parts: Sequence[str]) -> None:
        """Replaces a tensor by the equal parts of its first axis, under their names."""

        def read(index: int) -> Array:
            return np.array_split(_as_stored(whole), len(parts))[index]

        whole = self._arrays[name]
        others = {other: array for other, array in self._arrays.items() if other != name}
        self._arrays = others | {
            part: functools.partial(read, index) for index, part in enumerate(parts)
        }

    def with_prefix(self, prefix: str) -> "Tensors":
        """Returns the tensors under names that begin with a prefix."""
        return Tensors({prefix + name: array for name, array in self._arrays.items()}, self.where)

    def find(self, name: str, shape: tuple[int | None, ...]) -> Array | None:
        """Returns a tensor as `get` does, or None if the file has none of this name."""
        return self.get(name, shape) if name in self else None

    def count(self, template: str) -> int:
        """Returns how many tensors have consecutive numbers, from 0, at the {} of a template."""
        return next(n for n in itertools.count() if template.format(n) not in self._arrays)

    def ignore(self, *patterns: str) -> None:
        """Marks the tensors whose names match as used, without reading them."""
        for pattern in patterns:
            self._used.update(fnmatch.filter(self._arrays, pattern))

    def check_all_used(self) -> None:
        """Raises `InputError` if a tensor was never read: the model computes something else."""
        if left := sorted(set(self._arrays) - self._used):
            more = f" and {len(left) - 3} others" if len(left) > 3 else ""
            raise InputError(
                f"{self.where} has tensors that this package does not support: "
                f"{', '.join(left[:3])}{more}; such a model cannot be imported"
            )


def _as_stored(tensor: Array | Callable[[], Array]) -> Array:
    """Returns a tensor, or what a function reads, in its own type."""
    return np.asarray(tensor() if callable(tensor) else tensor)


class Options:
    """The options of a model by name, each of the expected type.

    Args:
        values: the options.
        where: names the file in errors.
        format_name: the format that the file should have.
    """

    def __init__(self, values: Mapping[str, Any], where: str, format_name: str) -> None:
        self.values = values
        self._where = where
        self._format_name = format_name

    def is_set(self, name: str) -> bool:
        """Whether an option is there and neither None, 0, False nor empty."""
        return bool(self.values.get(name))

    def get(self, name: str, kind: type[_T], default: _T) -> _T:
        """Returns an option, the default if it is missing or None.

        Raises:
            InputError: its type is not `kind`, or it is a whole number of ten digits or more. A
                whole number is also a float and a bool.
        """
        value = self.values.get(name)
        if value is None:
            return default
        widened: dict[Any, Any] = {float: (float, int), bool: (bool, int)}
        kinds = widened.get(kind, kind)
        is_kind = isinstance(value, kinds) and not (type(value) is bool and kind in (int, float))
        if not is_kind or (type(value) is int and abs(value) >= 10**9):
            # A damaged file may hold containers whose full text has no end.
            shown = type(value).__name__ if type(value) is int else reprlib.repr(value)[:200]
            raise InputError(
                f"option {name} {shown} of {self._where} has an unexpected value for "
                f"{self._format_name}; give the model as its toolkit wrote it"
            )
        return cast(_T, value if kind is object else kind(value))  # type: ignore[call-arg]


def reject(problems: Mapping[str, Any]) -> None:
    """Raises `InputError` that lists all options whose value is true: the model cannot be read."""
    if names := [name for name, is_there in problems.items() if is_there]:
        raise InputError(
            f"the model has {', '.join(names)}, which this package does not support; translate "
            "with the model's own toolkit, or train a model here on its translations"
        )


def dropout_rate(value: Any) -> float:
    """Returns a dropout rate of a configuration, the usual 0.1 if it is not one."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.1


def map_file(path: pathlib.Path) -> memoryview:
    """Returns a file's bytes, mapped into memory; `InputError` for a pointer of Git LFS, too."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a whole model") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error
    if bytes(content[:40]).startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is the pointer of a Git LFS file; run git lfs pull")
    return content


@contextlib.contextmanager
def reading(path: pathlib.Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises `InputError` where the block finds a file damaged.

    Args:
        path: of the file.
        kind: what it should be, such as "an .npz file".
        *errors: what the block raises then, besides the errors that files of all kinds raise.
    """
    kinds = _DAMAGED + errors
    try:
        yield
    except kinds as error:
        raise InputError(
            f"{path} is not {kind}, or a damaged one ({one_line(error)}); copy or download it again"
        ) from error


def read_text(path: pathlib.Path) -> str:
    """Returns a file's text; `InputError` if it cannot be read or is not UTF-8."""
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; download it again") from error


def read_token_lines(path: pathlib.Path) -> list[str]:
    """Returns the lines of a vocabulary, which may have the line ends of Windows."""
    text = read_text(path)
    if text.count("\n") == text.count("\r\n"):  # otherwise "\r" is a token
        text = text.replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n")


def read_json(path: pathlib.Path, kind: type = dict) -> Any:
    """Returns the object, or the list, in a JSON file; `InputError` if it holds something else."""
    text = read_text(path)
    with reading(path, "a JSON file"):  # RecursionError is a RuntimeError
        values = json.loads(text)
    if not isinstance(values, kind):
        name = "object" if kind is dict else kind.__name__
        raise InputError(f"{path} does not hold a JSON {name}; download it again")
    return values


def open_zip(path: pathlib.Path) -> zipfile.ZipFile:
    """Returns a zip archive; an error if it would unpack to much more than weights do."""
    archive = zipfile.ZipFile(path)
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename[:100]!r} is compressed in an unknown way")
    size, packed = sum(member.file_size for member in archive.infolist()), path.stat().st_size
    if size > 10 * packed:
        raise ValueError(f"it would unpack to {size:,} bytes, from {packed:,}")
    return archive


def read_safetensors(path: pathlib.Path) -> Tensors:
    """Returns the tensors of a safetensors file; each is read when it is used."""
    content = map_file(path)
    with (
        reading(path, "a safetensors file", SafetensorError),
        safe_open(path, framework="numpy"),  # which checks the header
    ):
        (size,) = struct.unpack("<Q", content[:8])
        entries = json.loads(bytes(content[8 : 8 + size]))

    def read(name: str) -> Array:
        kind = entries[name]["dtype"]
        if kind not in _SAFETENSORS_FLOATS:
            raise InputError(
                f"tensor {name} of {path} is of type {kind}; give a model that is not quantized"
            )
        begin, end = (8 + size + offset for offset in entries[name]["data_offsets"])
        flat: Array = np.frombuffer(content[begin:end], _SAFETENSORS_FLOATS[kind]).copy()
        cast(mmap.mmap, content.obj).madvise(mmap.MADV_DONTNEED)  # else the file fills the memory
        return flat.reshape(entries[name]["shape"])

    names = [name for name in entries if name != "__metadata__"]
    return Tensors({name: functools.partial(read, name) for name in names}, str(path))


def ids_to_tokens(ids: Mapping[str, Any], where: str) -> list[str]:
    """Returns the tokens of a mapping from tokens to ids, in the order of their ids 0, 1, 2, ..."""
    numbers = [value for value in ids.values() if type(value) is int]
    if sorted(numbers) != list(range(len(ids))):
        raise InputError(
            f"the ids in {where} are not the numbers from 0 to {len(ids) - 1}, each once; "
            "give the model's own vocabulary"
        )
    return sorted(ids, key=ids.__getitem__)
