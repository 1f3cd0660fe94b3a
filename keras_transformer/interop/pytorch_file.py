"""Files that `torch.save` wrote, read without PyTorch and without running anything.

Such a file is a pickle beside the bytes of the tensors: in a zip archive, or, before PyTorch 1.6,
one after the other. `pytorch_pickle.py` reads the pickle and calls nothing.
"""

import functools
import io
import pathlib
import struct
import zipfile
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.interop.model_files import map_file
from keras_transformer.interop.pytorch_pickle import STORAGES, PickleMachine, Storage, Tensor
from keras_transformer.interop.tensors import Array, Tensors

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
