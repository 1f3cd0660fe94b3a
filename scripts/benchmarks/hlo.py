"""Counts the kernels of a compiled program (XLA's protocol buffers), and the least time they take.

The entry computation of a program that was compiled for a GPU is a list of kernels, some of them in
the body of a loop. A kernel takes at least the time of its bytes, of its matrix products, or of its
launch, whichever is longer: the sum is the program's floor. It is a count, not a measurement:
kernels of an H200 took 1.25 to 1.4 times their floor.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

# Of an H100: what its memory and its matrix units reach, not their peak; and a kernel's launch.
_BYTES_PER_SECOND = 2.85e12
_FLOPS_PER_SECOND = {2: 620e12, 4: 310e12}  # by bytes of an operand; float32 as TF32
_LAUNCH_SECONDS = 2.5e-6

# Bytes of xla.PrimitiveType: PRED, S8 to S64, U8 to U64, F16, F32, F64, BF16.
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 16: 2}
_TUPLE = 13
# Instructions that run no kernel.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota",
         "partition-id", "replica-id", "opt-barrier"}  # fmt: skip
_VIEWS = {"bitcast", "reshape", "convert", "transpose"}
_PARTS = {"dynamic-slice", "gather", "slice"}
_UPDATED = {"dynamic-update-slice": 1, "scatter": -1}  # the operand that holds the new values

Instructions = Mapping[int, Any]  # an HloInstructionProto by its id


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a kernel moves and multiplies, and whether it is in the body of a loop.

    `operand_bytes` is the size of one number that it multiplies, 0 without a matrix product.
    """

    num_bytes: int
    flops: int
    operand_bytes: int
    in_loop: bool

    @property
    def floor_seconds(self) -> float:
        product_seconds = self.flops / _FLOPS_PER_SECOND.get(self.operand_bytes, 310e12)
        return max(self.num_bytes / _BYTES_PER_SECOND, product_seconds, _LAUNCH_SECONDS)


def arrays(shape: Any) -> list[Any]:
    """Returns the arrays of a shape, which may be a tuple of them."""
    if shape.element_type != _TUPLE:
        return [shape]
    return [array for part in shape.tuple_shapes for array in arrays(part)]


def kernels(module: Any) -> list[Kernel]:
    """Returns the kernels of an HloModuleProto that was compiled for a GPU, those of a loop once.

    Of a conditional it takes the largest branch.
    """
    computations = {
        each.id: {instruction.id: instruction for instruction in each.instructions}
        for each in module.computations
    }

    def of(computation: int, in_loop: bool) -> Iterator[Kernel]:
        instructions = computations[computation]
        for each in instructions.values():
            called = each.called_computation_ids
            if each.opcode == "while":
                for part in called:  # body and condition
                    yield from of(part, True)
            elif each.opcode == "conditional":
                yield from max((list(of(part, in_loop)) for part in called), key=len)
            elif each.opcode == "call":
                yield from of(called[0], in_loop)
            elif each.opcode not in _FREE and not each.opcode.endswith("-done"):
                fused = computations[called[0]] if each.opcode == "fusion" else {}
                products = [_matrix_product(fused, part) for part in fused.values()]
                products.append(_matrix_product(instructions, each))
                flops = sum(number for number, _ in products)
                operand_bytes = max(size for _, size in products)
                yield Kernel(_moved(instructions, each, fused), flops, operand_bytes, in_loop)

    return list(of(module.entry_computation_id, False))


def _num_bytes(instruction: Any) -> int:
    return sum(
        _BYTES.get(array.element_type, 4) * math.prod(array.dimensions)
        for array in arrays(instruction.shape)
    )


def _moved(instructions: Instructions, kernel: Any, fused: Instructions) -> int:
    """Returns the bytes that a kernel reads and writes; of a slice that it takes, those alone."""
    operands = [instructions[number] for number in kernel.operand_ids]
    if kernel.opcode == "dynamic-update-slice":
        return 2 * _num_bytes(operands[1])
    if not fused:
        return _num_bytes(kernel) + sum(map(_num_bytes, operands))
    parameters = {
        each.parameter_number: each.id for each in fused.values() if each.opcode == "parameter"
    }
    read, written = 0, _num_bytes(kernel)
    for number, operand in enumerate(operands):
        users = list(_users(fused, parameters[number]))
        updates = [
            _num_bytes(fused[user.operand_ids[_UPDATED[user.opcode]]])
            for user, value in users
            if user.opcode in _UPDATED and user.operand_ids[0] == value
        ]
        if users and all(user.opcode in _PARTS for user, _ in users):
            read += min(_num_bytes(operand), sum(_num_bytes(user) for user, _ in users))
        elif users and len(updates) == len(users):
            written -= _num_bytes(operand) - sum(updates)  # it is written in place
        else:
            read += _num_bytes(operand)
    return read + max(written, 0)


def _users(instructions: Instructions, value: int) -> Iterator[tuple[Any, int]]:
    """Yields the instructions that use a value or a view of it, with what they use."""
    for user in instructions.values():
        if value in user.operand_ids:
            if user.opcode in _VIEWS:
                yield from _users(instructions, user.id)
            else:
                yield user, value


def _matrix_product(instructions: Instructions, each: Any) -> tuple[int, int]:
    """Returns the floating-point operations of a matrix product, and the bytes of an operand."""
    is_library_call = any(name in each.custom_call_target for name in ("gemm", "matmul"))
    if each.opcode == "dot":
        contracted = each.dot_dimension_numbers.lhs_contracting_dimensions
    elif each.opcode == "custom-call" and is_library_call:
        config = json.loads(each.backend_config)["gemm_backend_config"]
        contracted = config["dot_dimension_numbers"]["lhs_contracting_dimensions"]
    else:
        return 0, 0
    (left,) = arrays(instructions[each.operand_ids[0]].shape)
    (result, *_) = arrays(each.shape)
    depth = math.prod(left.dimensions[int(place)] for place in contracted)
    return 2 * math.prod(result.dimensions) * depth, _BYTES[left.element_type]
