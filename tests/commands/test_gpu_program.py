"""benchmark.py gpu_program: what is counted, of small programs compiled for a CPU."""

import importlib.util
import pathlib
import sys

import pytest

_SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(_SCRIPTS))

from benchmarks import gpu_program, hlo  # noqa: E402

PROGRAM = """\
HloModule program, entry_computation_layout={...}

%fused (p.0: bf16[8,4], p.1: s32[]) -> bf16[2,4] {
  %p.0 = bf16[8,4]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  ROOT %slice = bf16[2,4]{1,0} dynamic-slice(%p.0, %p.1, %p.1), dynamic_slice_sizes={2,4}
}

%body (state: (f32[1000,1000], f32[1000,1000])) -> (f32[1000,1000], f32[1000,1000]) {
  %state = (f32[1000,1000]{1,0}, f32[1000,1000]{1,0}) parameter(0)
  %x = f32[1000,1000]{1,0} get-tuple-element(%state), index=0
  %y = f32[1000,1000]{1,0} get-tuple-element(%state), index=1
  %dot = f32[1000,1000]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (f32[1000,1000]{1,0}, f32[1000,1000]{1,0}) tuple(%dot, %y)
}

%condition (state.1: (f32[1000,1000], f32[1000,1000])) -> pred[] {
  %state.1 = (f32[1000,1000]{1,0}, f32[1000,1000]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: bf16[8,4], b: s32[], c: (f32[1000,1000], f32[1000,1000])) -> bf16[2,4] {
  %a = bf16[8,4]{1,0} parameter(0)
  %b = s32[] parameter(1)
  %c = (f32[1000,1000]{1,0}, f32[1000,1000]{1,0}) parameter(2)
  %loop = (f32[1000,1000]{1,0}, f32[1000,1000]{1,0}) while(%c), condition=%condition, body=%body
  ROOT %part = bf16[2,4]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused
}
"""


def test_kernels_have_their_bytes_products_and_floor():
    in_loop, part = hlo.kernels(hlo.parse(PROGRAM))
    assert in_loop.in_loop and not part.in_loop
    assert (in_loop.num_bytes, in_loop.flops, in_loop.dtype) == (12_000_000, 2 * 10**9, "f32")
    assert in_loop.floor_seconds == pytest.approx(2e9 / 310e12)  # longer than its bytes, 4.2 us
    # Of a slice a kernel reads what it takes: 16 bytes, and 4 of the index. It is over at once.
    assert (part.num_bytes, part.flops) == (16 + 4 + 16, 0)
    assert part.floor_seconds == 2.5e-6


@pytest.mark.slow
def test_update_has_no_branch_and_few_arrays_of_logits():
    function, arguments = gpu_program.make_update(
        gpu_program.Case("update", "tiny", "float32", 2, 6, 50)
    )
    update = hlo.parse(function.experimental_get_compiler_ir(*arguments)(stage="hlo"))
    ops = hlo.count_ops(update)
    assert ops["dot"] > 0
    assert ops["conditional"] == ops["rng-bit-generator"] == 0
    logits = [
        each
        for each in update.instructions()
        if each.op not in ("parameter", "get-tuple-element", "tuple", "constant", "broadcast")
        and any(shape in ((12, 50), (2, 6, 50)) for _, shape in each.arrays)
    ]
    assert 0 < len(logits) <= 20  # before fusion, forward and backward


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax_cuda12_plugin"), reason="needs the extra aot")
def test_row_of_a_program_compiled_for_a_gpu():
    row = gpu_program.measure(
        gpu_program.Case("search", "tiny", "float32", 2, 6, 50), sys.executable
    )
    assert row["branches"] == 0
    assert row["floor_ms"] >= 2.5e-3 * row["kernels"] > 0
