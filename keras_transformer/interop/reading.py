"""Reads the files of other toolkits: text, JSON, safetensors, PyTorch's files, and their tensors.

Files come from anywhere: a damaged one is an `InputError` that names it, and none runs code.
"""

import argparse
import contextlib
import fnmatch
import itertools
import json
import mmap
import pathlib
import pickle
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from keras_transformer.errors import InputError, needs_extra, one_line

Array = npt.NDArray[Any]
_T = TypeVar("_T")


class Tensors:
    """Tensors by name, which records those that were read; errors name their file, `where`."""

    def __init__(self, arrays: Mapping[str, Array], where: str) -> None:
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
            raise InputError(f"{self.where} lacks the tensor {name}; give the whole model")
        self._used.add(name)
        array = self._arrays[name].astype(np.float32, copy=False)
        expected = array.shape if shape is None else shape
        if array.ndim != len(expected):
            array = np.atleast_1d(array.squeeze())
        is_equal = [size in (None, own) for size, own in zip(expected, array.shape, strict=False)]
        if array.ndim != len(expected) or not all(is_equal):
            raise InputError(
                f"tensor {name} of {self.where} is {array.shape} instead of {expected}; the file "
                "and its configuration do not belong together"
            )
        if not np.isfinite(array).all():
            raise InputError(f"tensor {name} of {self.where} is not finite")
        return array

    def find(self, name: str, shape: tuple[int | None, ...]) -> Array | None:
        """Returns a tensor as `get` does, or None if the file has none of this name."""
        return self.get(name, shape) if name in self else None

    def is_integer(self, name: str) -> bool:
        """Returns whether a tensor is stored as integers."""
        return self._arrays[name].dtype.kind in "iu"

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
            raise InputError(
                f"{self.where} has {len(left)} tensors that this package does not support, such as "
                f"{', '.join(left[:3])}"
            )


class Options:
    """Options of a model by name, of the expected types; errors name their file, `where`."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self._where = where

    def is_set(self, name: str) -> bool:
        """Whether an option is there and neither None, 0, False nor empty."""
        return bool(self.values.get(name))

    def get(self, name: str, kind: type[_T], default: _T) -> _T:
        """Returns an option, the default if it is missing or None.

        Raises:
            InputError: its type is not `kind`; a whole number is also a float and a bool, and the
                text of a number, as in YAML, is a number.
        """
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, str) and kind in (int, float):
            with contextlib.suppress(ValueError):
                value = kind(value)  # type: ignore[call-arg]
        widened: dict[Any, Any] = {float: (float, int), bool: (bool, int)}
        is_kind = isinstance(value, widened.get(kind, kind))
        if not is_kind or (type(value) is bool and kind in (int, float)):
            raise InputError(
                f"option {name} of {self._where} must be of type {kind.__name__}, got "
                f"{reprlib.repr(value)}"
            )
        return kind(value)  # type: ignore[call-arg]


def reject(
    problems: Mapping[str, Any],
    message: str = "the model has {}, which this package does not support; translate with the "
    "model's own toolkit, or train a model here on its translations",
) -> None:
    """Raises `InputError` that lists all problems whose value is true in place of {}."""
    if names := [name for name, is_there in problems.items() if is_there]:
        raise InputError(message.format(", ".join(names)))


def dropout_rate(value: Any) -> float:
    """Returns a dropout rate of a configuration, the usual 0.1 if it is not one."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.1


@contextlib.contextmanager
def reading(path: pathlib.Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Raises `InputError` where the block finds a file damaged: it is not `kind`, "an .npz file".

    The block shows that by one of `errors`, or by an error that files of all kinds raise.
    """
    usual = (OSError, ValueError, EOFError, MemoryError, RuntimeError)
    kinds: tuple[type[Exception], ...] = (*usual, *errors)
    try:
        yield
    except kinds as error:
        raise InputError(
            f"{path} is not {kind}, or a damaged one ({one_line(error)}); copy or download it again"
        ) from error


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


def read_text(path: pathlib.Path) -> str:
    """Returns a file's text; `InputError` if it cannot be read or is not UTF-8."""
    content = bytes(map_file(path))
    with reading(path, "UTF-8 text"):
        return content.decode("utf-8")


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
            raise ValueError(f"it holds a {type(values).__name__}")
    return values


def read_safetensors(path: pathlib.Path) -> Tensors:
    """Returns the tensors of a safetensors file."""
    map_file(path)
    with reading(path, "a safetensors file", SafetensorError, LookupError):
        return Tensors(load_file(path), str(path))


def read_pytorch(path: pathlib.Path) -> dict[str, Any]:
    """Returns the dictionary in a file that `torch.save` wrote; PyTorch runs nothing in it.

    Raises:
        InputError: PyTorch is not installed, or the file holds something else.
    """
    with needs_extra("torch"):
        import torch
    map_file(path)
    with (
        reading(path, "a file of PyTorch", pickle.UnpicklingError, LookupError, AttributeError),
        torch.serialization.safe_globals([argparse.Namespace]),  # of fairseq's options
    ):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}")
    return cast(dict[str, Any], state)


def torch_tensors(state: Mapping[str, Any], where: str) -> Tensors:
    """Returns the tensors of PyTorch in a dictionary; `InputError` if there are none."""
    tensors = {
        name: value.detach().float().numpy()
        for name, value in state.items()
        if hasattr(value, "detach")
    }
    if not tensors:
        raise InputError(f"{where} holds no tensors by name; give the weights of a model")
    return Tensors(tensors, where)


def ids_to_tokens(ids: Mapping[str, Any], where: str) -> list[str]:
    """Returns the tokens of a mapping from tokens to ids, in the order of their ids 0, 1, 2, ..."""
    numbers = [value for value in ids.values() if type(value) is int]
    if sorted(numbers) != list(range(len(ids))):
        raise InputError(
            f"the ids in {where} are not the numbers from 0 to {len(ids) - 1}, each once; "
            "give the model's own vocabulary"
        )
    return sorted(ids, key=ids.__getitem__)
