"""Counts what XLA makes of an update and of a search step for a GPU, without the GPU.

TensorFlow gives the program, JAX's CUDA plugin compiles it for a described H100
(compile_for_gpu.py), and hlo.py counts its kernels.
"""

import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import hlo
from keras_transformer.config import EOS_ID, TrainingConfig, TransformerConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

_FOLDER = pathlib.Path(__file__).parent
_BEAM_SIZE = 4
_SEED = 1


class Case(NamedTuple):
    """What to compile: "update" or "search", of a batch of rows with `length` tokens a side."""

    action: str
    preset: str
    precision: str
    rows: int
    length: int
    vocabulary_size: int


# The batches of docs/results/gpu.md; a search for which one capacity of the KV cache is enough.
CASES = [
    Case("update", "tiny", "mixed_bfloat16", 400, 64, 8000),
    Case("update", "base", "mixed_bfloat16", 200, 128, 37000),
    Case("update", "big", "mixed_bfloat16", 100, 128, 37000),
    Case("search", "base", "float32", 64, 20, 37000),
]


def measure(case: Case, python: str) -> dict[str, Any]:
    """Compiles a program and returns its row.

    Args:
        case: the program.
        python: the interpreter of the environment with the extra `aot`.
    """
    from tensorflow.compiler.xla.service import hlo_pb2

    begin = time.process_time()
    module = make_module(case)
    trace_seconds = time.process_time() - begin
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "program.pb").write_bytes(module)
        arguments = [folder / "program.pb", folder / "out.pb", _FOLDER / "h100.txtpb"]
        result = subprocess.run(
            [python, _FOLDER / "compile_for_gpu.py", *arguments], capture_output=True, text=True
        )
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            raise InputError(
                f"{python} cannot compile for a GPU ({lines[-1] if lines else 'no message'}); "
                'install ".[aot]" in an environment of its own, and give --aot_python its python'
            )
        statistics = json.loads(result.stdout.splitlines()[-1])
        program = hlo_pb2.HloModuleProto.FromString((folder / "out.pb").read_bytes())
    kernels = hlo.kernels(program)
    if case.action == "search":  # one step
        kernels = [kernel for kernel in kernels if kernel.in_loop]
    return {
        "action": case.action,
        "preset": case.preset,
        "precision": case.precision,
        "batch": f"{case.rows}x{case.length}",
        "kernels": len(kernels),
        "gigabytes": sum(kernel.num_bytes for kernel in kernels) / 1e9,
        "teraflop": sum(kernel.flops for kernel in kernels) / 1e12,
        "floor_ms": 1e3 * sum(kernel.floor_seconds for kernel in kernels),
        "temporary_gigabytes": statistics["temporary_bytes"] / 1e9,
        "trace_seconds": trace_seconds,
        "compile_seconds": statistics["compile_seconds"],
    }


def make_module(case: Case) -> bytes:
    """Returns the HLO module, serialized, that TensorFlow gives XLA for any device."""
    import tensorflow as tf
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.python.eager.polymorphic_function import compiler_ir

    function, arguments = (make_update if case.action == "update" else make_search)(case)
    specs = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), arguments)
    concrete = function.get_concrete_function(*specs)
    # It takes variables only with a device.
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    convert = compiler_ir.from_concrete_function(concrete, tf.nest.flatten(specs))
    module = hlo_pb2.HloModuleProto.FromString(convert(stage="hlo_serialized", device_name=device))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "copy":  # of results; MLIR has none, and XLA removes them
                instruction.opcode = "reshape"
    serialized: bytes = module.SerializeToString()
    return serialized


def make_update(case: Case) -> "tuple[tf.types.experimental.PolymorphicFunction, Any]":
    """Returns the update that XLA compiles in training, and its arguments."""
    import tensorflow as tf

    from keras_transformer.training.optimizer import compile_for_training

    model = _model(case)
    compile_for_training(model, TrainingConfig.preset(case.preset, precision=case.precision), True)
    source, target, labels = (tf.constant(ids) for ids in _sentences(case))
    model._symbolic_build(data_batch=({"source": source[:1], "target": target[:1]}, labels[:1]))
    program = tf.function(model._update, jit_compile=True, autograph=False)
    program.model = model  # whose variables it refers to
    return program, (({"source": source, "target": target}, labels),)


def make_search(case: Case) -> "tuple[tf.types.experimental.PolymorphicFunction, Any]":
    """Returns a compiled beam search whose translations are as long as their sources."""
    import tensorflow as tf

    from keras_transformer.search import MinLength, beam_search, kv_cache_capacities

    model = _model(case)

    @tf.function(jit_compile=True, autograph=False)
    def search(source: Any) -> Any:
        lengths = tf.fill([case.rows], case.length)
        capacity = kv_cache_capacities(case.length)[0]
        return beam_search(
            model.step,
            model.encode(source, num_hypotheses=_BEAM_SIZE, capacity=capacity),
            max_lengths=lengths,
            beam_size=_BEAM_SIZE,
            constraints=[MinLength(lengths)],
            max_length_bound=case.length,
        )

    search.model = model
    return search, (tf.constant(next(_sentences(case))),)


def _model(case: Case) -> Any:
    import keras

    from keras_transformer.models import build_model

    keras.utils.set_random_seed(_SEED)
    config = TransformerConfig.preset(case.preset, vocabulary_size=case.vocabulary_size)
    return build_model(config, dtype=case.precision)


def _sentences(case: Case) -> Iterator[np.ndarray]:
    """Yields ids of the source, the target and the labels."""
    draw = np.random.default_rng(_SEED)
    for _ in range(3):
        ids = draw.integers(EOS_ID + 1, case.vocabulary_size, (case.rows, case.length))
        ids[:, -1] = EOS_ID
        yield ids.astype(np.int32)
