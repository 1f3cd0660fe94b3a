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

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

_SOURCE = pathlib.Path(__file__).parent / "native" / "answer.c"
# oneDNN makes a kernel for each shape, and keeps hundreds of them in every thread: with batches of
# mixed sizes that is slow, and memory grows for minutes. The environment may set another value.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
_COMPILER = shlex.split(os.environ.get("CC") or "gcc")


def missing() -> str | None:
    """Returns what this machine lacks to build the program, or None."""
    if sys.platform != "linux":
        return "the C program is built on Linux only"
    if shutil.which(_COMPILER[0]) is None:
        return f"no C compiler: there is no {_COMPILER[0]}; install gcc or set CC"
    return None


def build(folder: pathlib.Path) -> None:
    """Writes the program `answer` into a folder."""
    library = tf.sysconfig.get_lib()
    subprocess.run(
        [*_COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", _SOURCE, "-o", folder / "answer"]
        + ["-isystem", tf.sysconfig.get_include(), f"-L{library}", f"-Wl,-rpath,{library}"]
        + ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
        # The usual linker takes ten seconds to read the library, this one two.
        + ["-fuse-ld=gold"] * (shutil.which("ld.gold") is not None),
        check=True,
    )


def answer(
    program: pathlib.Path,
    version: pathlib.Path,
    signature: str,
    columns: dict[str, Sequence[bytes]],
    batch_sizes: Sequence[int] = (64,),
) -> dict[str, list[list[bytes]]]:
    """Sends columns of values in batches of these sizes in turn; returns output[row][value]."""
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    definition = model.meta_graphs[0].signature_def[signature]
    outputs = sorted(definition.outputs)
    package = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
    lists = (
        sorted(map(str, package.glob("python/ops/*.so"))),  # TensorFlow Serving has them too
        [definition.inputs[name].name for name in columns],
        [definition.outputs[name].name for name in outputs],
    )
    rows = zip(*columns.values(), strict=True)
    done = subprocess.run(
        [program, version, *map(",".join, lists), *map(str, batch_sizes)],
        env=_ENVIRONMENT | os.environ,
        input=b"".join(b"\t".join(map(_escaped, row)) + b"\n" for row in rows),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    lines = done.stdout.split(b"\n")[:-1]
    values = [[_unescaped(value) for value in line.split(b"\t")] for line in lines]
    return {name: values[index :: len(outputs)] for index, name in enumerate(outputs)}


def _escaped(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n")


def _unescaped(value: bytes) -> bytes:
    parts = value.split(b"\\\\")  # what is left holds no backslash but those of "\t" and "\n"
    return b"\\".join(part.replace(b"\\t", b"\t").replace(b"\\n", b"\n") for part in parts)
