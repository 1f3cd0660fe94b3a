"""Files of models of other toolkits: bytes, text, JSON, and what their options may be."""

import fnmatch
import itertools
import json
import mmap
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError


class Given(NamedTuple):
    """What a user says of a model beside naming it.

    Attributes:
        vocabularies: of source and target, where they are not beside the model; else empty.
        spms: SentencePiece models of source and target; else empty.
        num_heads: attention heads, where the files do not tell.
        positions: "theirs", or "marian" for those with which Marian trains, in place of those that
            transformers and CTranslate2 compute for its models, which differ a little.
    """

    vocabularies: tuple[pathlib.Path, ...] = ()
    spms: tuple[pathlib.Path, ...] = ()
    num_heads: int | None = None
    positions: str = "theirs"


def map_file(path: pathlib.Path) -> memoryview:
    """Returns a file's bytes, mapped into memory.

    Raises:
        InputError: it cannot be read, is empty, or names a file that git keeps elsewhere.
    """
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a whole model") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error
    if bytes(content[:40]).startswith(b"version https://git-lfs"):
        raise InputError(f"{path} only names a file that git keeps elsewhere; run git lfs pull")
    return content


def read_text(path: pathlib.Path) -> str:
    """Returns a file's text; `InputError` where it cannot be read or is not UTF-8."""
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; download it again") from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file; `InputError` where there is none."""
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not JSON, or damaged ({error}); download it again") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no JSON object; download it again")
    return values


def refuse(found: Mapping[str, Any]) -> None:
    """Raises `InputError` that lists all options whose value is true."""
    if names := [name for name, is_there in found.items() if is_there]:
        raise InputError(
            f"the model has {', '.join(names)}, which a Transformer as here does not; such a model "
            "cannot be imported: translate with its own toolkit, or train one on its translations"
        )


def rate(value: Any) -> float:
    """Returns a dropout rate of a configuration, the usual one where it makes no sense."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else 0.1


# The tensors of a file, each to be used: none is left over or missing without a word.

Array = npt.NDArray[Any]

_FIRST_NAMED = 3


class Tensors:
    """Tensors by name, which keeps track of those that were asked for.

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
            shape: what it must have, None for a size that may be any. Axes of length 1 may be more.

        Raises:
            InputError: it is missing, has another shape, or an entry that is not finite.
        """
        if name not in self._arrays:
            raise InputError(
                f"{self.where} lacks the tensor {name}; give the whole model, one that was trained "
                "to the end"
            )
        self._used.add(name)
        found = self._arrays[name]
        array = np.asarray(found() if callable(found) else found).astype(np.float32, copy=False)
        if shape is not None:
            squeezed = array.reshape([size for size in array.shape if size != 1] or [1])
            array = array if array.ndim == len(shape) else squeezed
            if array.ndim != len(shape) or any(
                size not in (None, found) for size, found in zip(shape, array.shape, strict=True)
            ):
                expected = " x ".join("any" if size is None else str(size) for size in shape)
                raise InputError(
                    f"tensor {name} of {self.where} is {' x '.join(map(str, array.shape))} in "
                    f"place of {expected}; the file and its configuration do not belong together"
                )
        if not np.isfinite(array).all():
            raise InputError(
                f"tensor {name} of {self.where} is not finite; take an earlier checkpoint"
            )
        return array

    def count(self, template: str) -> int:
        """Returns how many numbers in a row, from 0 on, name a tensor in place of {}."""
        return next(n for n in itertools.count() if template.format(n) not in self._arrays)

    def ignore(self, *patterns: str) -> None:
        """Counts tensors whose names match as used, without reading them."""
        for pattern in patterns:
            self._used.update(fnmatch.filter(self._arrays, pattern))

    def check_all_used(self) -> None:
        """Raises `InputError` where a tensor was never asked for."""
        if left := sorted(set(self._arrays) - self._used):
            named = ", ".join(left[:_FIRST_NAMED])
            more = f" and {len(left) - _FIRST_NAMED} others" if len(left) > _FIRST_NAMED else ""
            raise InputError(
                f"{self.where} has tensors that a Transformer as here does not: {named}{more}; "
                "such a model cannot be imported"
            )


def from_bfloat16(raw: Array) -> Array:
    """Returns as float32 what uint16 hold as bfloat16."""
    return (raw.astype(np.uint32) << 16).view(np.float32)
