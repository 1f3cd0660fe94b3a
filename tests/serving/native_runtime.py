"""Builds and runs the C programs of `native/`, which serve a SavedModel without Python.

They are compiled against the library of TensorFlow's wheel, the runtime of the model server. The
comment at the top of each program describes its input and output.
"""

import functools
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

_SOURCES = pathlib.Path(__file__).with_name("native")
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n"}
# oneDNN makes a kernel for each shape, and keeps hundreds of them in every thread: with batches of
# mixed sizes that is slow, and memory grows for minutes. The environment may set another value.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


class NativeError(RuntimeError):
    """A program failed; the message is what it printed."""


class Signature(NamedTuple):
    """A signature of a SavedModel, as the C programs name it.

    Attributes:
        version: the folder of the SavedModel.
        inputs: the name of each input to its tensor, such as "serving_default_text:0".
        outputs: the same of the outputs.
    """

    version: pathlib.Path
    inputs: dict[str, str]
    outputs: dict[str, str]

    def arguments(self) -> list[str]:
        lists = (_op_libraries(), self.inputs.values(), self.outputs.values())
        return [str(self.version), *(",".join(names) for names in lists)]


def missing() -> str | None:
    """Returns what this machine lacks to build the programs, or None."""
    if sys.platform != "linux":
        return "the C programs are built on Linux only"
    compiler = _compiler()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: there is no {compiler}; install gcc or set CC"
    return None


def build(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Compiles `native/<name>.c` into the folder and returns the program's path."""
    program, library = folder / name, tf.sysconfig.get_lib()
    subprocess.run(
        [*_compiler(), "-std=gnu11", "-O2", "-Wall", "-Wextra"]
        + ["-isystem", tf.sysconfig.get_include(), "-o", program]
        + [_SOURCES / f"{source}.c" for source in (name, "signature", "tensors")]
        + [f"-L{library}", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
        + [f"-Wl,-rpath,{library}", "-lm", "-pthread"]
        # The usual linker takes ten seconds to read the library, this one two.
        + ["-fuse-ld=gold"] * (shutil.which("ld.gold") is not None),
        check=True,
    )
    return program


def read_signature(
    version: pathlib.Path,
    name: str = "serving_default",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Signature:
    """Reads a signature from `saved_model.pb`.

    Args:
        version: the folder of the SavedModel.
        name: of the signature.
        inputs: its inputs in the order of the columns of a line; None means alphabetically.
        outputs: the outputs to request, in this order; None means all, alphabetically.
    """
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    (serving,) = (graph for graph in model.meta_graphs if "serve" in graph.meta_info_def.tags)
    definition = serving.signature_def[name]
    return Signature(
        version,
        {key: definition.inputs[key].name for key in inputs or sorted(definition.inputs)},
        {key: definition.outputs[key].name for key in outputs or sorted(definition.outputs)},
    )


def answer(
    program: pathlib.Path,
    signature: Signature,
    rows: Sequence[Sequence[bytes]],
    batch_sizes: Sequence[int] = (64,),
) -> dict[str, list[list[bytes]]]:
    """Sends rows of columns to a signature, in batches of these sizes in turn.

    Returns:
        For each output its values, [row][value], as they were printed.

    Raises:
        NativeError: the program could not answer.
    """
    printed = _run(program, signature, batch_sizes, rows).split(b"\n")
    width = len(signature.outputs)
    values = [[_unescaped(value) for value in line.split(b"\t")] for line in printed[:-1]]
    return {name: values[index::width] for index, name in enumerate(signature.outputs)}


def _run(
    program: pathlib.Path,
    signature: Signature,
    numbers: Sequence[int],
    rows: Sequence[Sequence[bytes]],
) -> bytes:
    done = subprocess.run(
        [program, *signature.arguments(), *map(str, numbers)],
        env=_ENVIRONMENT | os.environ,
        input=b"".join(b"\t".join(map(_escaped, row)) + b"\n" for row in rows),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()
        raise NativeError(f"{program.name} ended with status {done.returncode}: {message[-2000:]}")
    return done.stdout


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "gcc")


@functools.cache
def _op_libraries() -> tuple[str, ...]:
    """All operations of tensorflow-text, which a stock server has too."""
    package = importlib.util.find_spec("tensorflow_text")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("tensorflow-text is not installed: pip install tensorflow-text")
    libraries = pathlib.Path(package.origin).parent.glob("python/ops/*.so")
    return tuple(sorted(map(str, libraries)))


def _escaped(column: bytes) -> bytes:
    for character, escape in _ESCAPES.items():
        column = column.replace(character, escape)
    return column


def _unescaped(value: bytes) -> bytes:
    parts = value.split(b"\\\\")  # what is left holds no backslash but those of "\t" and "\n"
    return b"\\".join(part.replace(b"\\t", b"\t").replace(b"\\n", b"\n") for part in parts)
