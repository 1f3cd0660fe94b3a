"""Builds and runs `native/answer.c`, which serves a SavedModel without Python.

It is compiled against the library of TensorFlow's wheel, the runtime of the model server. The
comment at its top describes its input and output.
"""

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

_SOURCE = pathlib.Path(__file__).parent / "native" / "answer.c"
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n"}
# oneDNN makes a kernel for each shape, and keeps hundreds of them in every thread: with batches of
# mixed sizes that is slow, and memory grows for minutes. The environment may set another value.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


class Signature(NamedTuple):
    """A signature of a SavedModel: tensors such as "serving_default_text:0" by name."""

    version: pathlib.Path
    inputs: dict[str, str]
    outputs: dict[str, str]


def missing() -> str | None:
    """Returns what this machine lacks to build the program, or None."""
    if sys.platform != "linux":
        return "the C program is built on Linux only"
    compiler = _compiler()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: there is no {compiler}; install gcc or set CC"
    return None


def build(folder: pathlib.Path) -> pathlib.Path:
    program, library = folder / "answer", tf.sysconfig.get_lib()
    subprocess.run(
        [*_compiler(), "-std=gnu11", "-O2", "-Wall", "-Wextra", _SOURCE, "-o", program]
        + ["-isystem", tf.sysconfig.get_include(), f"-L{library}", f"-Wl,-rpath,{library}"]
        + ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
        # The usual linker takes ten seconds to read the library, this one two.
        + ["-fuse-ld=gold"] * (shutil.which("ld.gold") is not None),
        check=True,
    )
    return program


def read_signature(
    version: pathlib.Path, name: str = "serving_default", inputs: Sequence[str] | None = None
) -> Signature:
    """Reads a signature; inputs are in the order of a line's columns, else of the alphabet."""
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    (serving,) = (graph for graph in model.meta_graphs if "serve" in graph.meta_info_def.tags)
    definition = serving.signature_def[name]
    return Signature(
        version,
        {key: definition.inputs[key].name for key in inputs or sorted(definition.inputs)},
        {key: definition.outputs[key].name for key in sorted(definition.outputs)},
    )


def answer(
    program: pathlib.Path,
    signature: Signature,
    rows: Sequence[Sequence[bytes]],
    batch_sizes: Sequence[int] = (64,),
) -> dict[str, list[list[bytes]]]:
    """Sends rows of columns in batches of these sizes in turn; returns output[row][value]."""
    lists = (_op_libraries(), signature.inputs.values(), signature.outputs.values())
    done = subprocess.run(
        [program, signature.version, *(",".join(each) for each in lists), *map(str, batch_sizes)],
        env=_ENVIRONMENT | os.environ,
        input=b"".join(b"\t".join(map(_escaped, row)) + b"\n" for row in rows),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    printed = done.stdout.split(b"\n")[:-1]
    values = [[_unescaped(value) for value in line.split(b"\t")] for line in printed]
    width = len(signature.outputs)
    return {name: values[index::width] for index, name in enumerate(signature.outputs)}


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "gcc")


def _op_libraries() -> list[str]:
    """All operations of tensorflow-text, which TensorFlow Serving has too."""
    package = importlib.util.find_spec("tensorflow_text")
    return sorted(map(str, pathlib.Path(package.origin).parent.glob("python/ops/*.so")))


def _escaped(column: bytes) -> bytes:
    for character, escape in _ESCAPES.items():
        column = column.replace(character, escape)
    return column


def _unescaped(value: bytes) -> bytes:
    parts = value.split(b"\\\\")  # what is left holds no backslash but those of "\t" and "\n"
    return b"\\".join(part.replace(b"\\t", b"\t").replace(b"\\n", b"\n") for part in parts)
