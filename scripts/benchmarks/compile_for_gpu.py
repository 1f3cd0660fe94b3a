"""Compiles a program for a GPU that need not be there, with the CUDA plugin of JAX.

    python compile_for_gpu.py PROGRAM.pb OUT.pb GPU.txtpb

PROGRAM.pb is a serialized HLO module, OUT.pb gets the optimized one, and GPU.txtpb describes the
GPU. Prints one line of JSON: processor seconds of compilation and temporary bytes. It needs the
packages of the extra `aot`, whose XLA is of the time of TensorFlow's, best in an environment of
their own.
"""

import importlib
import importlib.util
import json
import os
import pathlib
import re
import sys
import time

# No GPU, and matrix products as the commands compile them: by cuBLAS, without autotuning.
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}
_nvcc = importlib.util.find_spec("nvidia.cuda_nvcc")
_folder = next(iter(_nvcc.submodule_search_locations or ())) if _nvcc else ""
os.environ["XLA_FLAGS"] = (
    f"--xla_gpu_cuda_data_dir={_folder} --xla_gpu_enable_triton_gemm=false "
    "--xla_gpu_autotune_level=0"
)

# Modules without types, which read the environment when they are imported.
mlir = importlib.import_module("jax._src.interpreters.mlir")
xla_client = importlib.import_module("jax._src.lib").xla_client
topologies = importlib.import_module("jax.experimental.topologies")
ir = importlib.import_module("jaxlib.mlir.ir")


def main(source: str, out: str, gpu: str) -> None:
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=pathlib.Path(gpu).read_text(),
        topology="1x1x1",
    )
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    computation = xla_client._xla.XlaComputation(pathlib.Path(source).read_bytes())
    # The conversion to MLIR forgets which parameters, variables, are overwritten by results.
    header = computation.as_hlo_text().split("\n", 1)[0]
    aliases = {int(p): int(r) for r, p in re.findall(r"\{(\d+)\}: \((\d+), \{\}", header)}
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        functions = {op.attributes["sym_name"].value: op for op in module.body.operations}
        number = ir.IntegerType.get_signless(32)
        functions["main"].attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {"tf.aliasing_output": ir.IntegerAttr.get(number, aliases[place])}
                    if place in aliases
                    else {}
                )
                for place in range(len(functions["main"].type.inputs))
            ]
        )
        begin = time.process_time()  # of all threads
        executable = topology.devices[0].client.compile(
            module, xla_client.DeviceList(tuple(topology.devices)), options
        )
        seconds = time.process_time() - begin
    pathlib.Path(out).write_bytes(executable.hlo_modules()[0].as_serialized_hlo_module_proto())
    memory = executable.get_compiled_memory_stats()
    print(json.dumps({"compile_seconds": seconds, "temporary_bytes": memory.temp_size_in_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
