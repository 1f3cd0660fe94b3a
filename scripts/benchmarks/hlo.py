"""Reads HLO text, XLA's language: the kernels of a compiled program, and the least time they take.

The entry computation of a program that was compiled for a GPU is a list of kernels, some of them in
the body of a loop. A kernel takes at least the time of its bytes, of its matrix products, or of its
launch, whichever is longer: the sum is the program's floor. It is a count, not a measurement:
kernels of an H200 took 1.25 to 1.4 times their floor.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

# Of an H100: what its memory and its matrix units reach, not their peak; and a kernel's launch.
_BYTES_PER_SECOND = 2.85e12
_PRODUCTS_PER_SECOND = {"bf16": 620e12, "f16": 620e12, "f32": 310e12}  # FLOP/s; f32 with TF32
_LAUNCH_SECONDS = 2.5e-6

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4,
          "u32": 4, "f64": 8, "s64": 8, "u64": 8}  # fmt: skip
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)\[([\d,]*)\]")
# Instructions that run no kernel.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota",
         "partition-id", "replica-id", "opt-barrier"}  # fmt: skip
_VIEWS = {"bitcast", "reshape", "convert", "transpose"}

Array = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `%name = type op(operands), attributes`."""

    name: str
    type: str
    op: str
    operands: Sequence[str]
    attributes: str

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the result."""
        return arrays(self.type)

    @property
    def num_bytes(self) -> int:
        return sum(_BYTES.get(dtype, 4) * math.prod(shape) for dtype, shape in self.arrays)

    def called(self, role: str) -> str:
        """Returns the computation that the attribute `role` names; "" if there is none."""
        match = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""


Computation = dict[str, Instruction]  # in order


@dataclasses.dataclass(frozen=True)
class Program:
    """The computations of a module, and the name of the one that it runs."""

    computations: Mapping[str, Computation]
    entry: str

    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation.values()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What a kernel moves and multiplies; `in_loop` tells whether it is in the body of a loop."""

    num_bytes: int
    flops: int
    dtype: str  # of the matrix product, if it is one
    in_loop: bool

    @property
    def floor_seconds(self) -> float:
        rate = _PRODUCTS_PER_SECOND.get(self.dtype, _PRODUCTS_PER_SECOND["f32"])
        return max(self.num_bytes / _BYTES_PER_SECOND, self.flops / rate, _LAUNCH_SECONDS)


def arrays(type_: str) -> list[Array]:
    """Returns the arrays of a type, which may be a tuple of them."""
    return [
        (dtype, tuple(int(size) for size in shape.split(",") if size))
        for dtype, shape in _ARRAY.findall(type_)
    ]


def parse(text: str) -> Program:
    """Reads a module as XLA prints it."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if not line.startswith(" "):
            head = re.match(r"(ENTRY )?%?([\w.\-<>$]+)[ (].*\{$", line)
            if head and not line.startswith("HloModule"):
                current = computations.setdefault(head[2], {})
                entry = head[2] if head[1] else entry
        elif current is not None and (match := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)):
            current[match[1]] = _read(match[1], re.sub(r"/\*.*?\*/", "", line[match.end() :]))
    return Program(computations, entry)


def _read(name: str, text: str) -> Instruction:
    """Reads an instruction from its type on."""
    end = _closing(text) if text.startswith("(") else text.index(" ")
    type_, text = text[:end], text[end:].lstrip()
    op, _, _ = text.partition("(")
    text = text[len(op) :]
    end = _closing(text)
    inner = text[1 : end - 1]
    operands = re.findall(r"%([\w.\-]+)", inner)
    if not operands and op not in ("constant", "parameter", "iota"):  # printed without %
        operands = [part.split(" ")[-1] for part in inner.split(", ") if part]
    number = f", parameter_number={inner}" if op == "parameter" else ""
    return Instruction(name, type_, op.strip(), operands, text[end:] + number)


def _closing(text: str) -> int:
    """Returns the place behind the bracket that closes the first one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place + 1
    return len(text)


def kernels(program: Program) -> list[Kernel]:
    """Returns the kernels of a program that was compiled for a GPU, those of a loop once.

    Of a conditional it takes the largest branch.
    """
    return list(_kernels(program, program.entry, in_loop=False))


def _kernels(program: Program, name: str, in_loop: bool) -> Iterator[Kernel]:
    computation = program.computations[name]
    for instruction in computation.values():
        if instruction.op in _FREE or instruction.op.endswith("-done"):
            continue
        if instruction.op == "while":
            yield from _kernels(program, instruction.called("condition"), True)
            yield from _kernels(program, instruction.called("body"), True)
        elif instruction.op == "conditional":
            branches = [
                list(_kernels(program, branch, in_loop)) for branch in _branches(instruction)
            ]
            yield from max(branches, key=len)
        elif instruction.op == "call":
            yield from _kernels(program, instruction.called("to_apply"), in_loop)
        else:
            flops, dtype = _matrix_product(program, computation, instruction)
            yield Kernel(_moved(program, computation, instruction), flops, dtype, in_loop)


def _branches(conditional: Instruction) -> list[str]:
    match = re.search(r"branch_computations=\{([^}]*)\}", conditional.attributes)
    if match:
        return [name.strip().lstrip("%") for name in match[1].split(",")]
    return [conditional.called(f"{side}_computation") for side in ("true", "false")]


def _moved(program: Program, computation: Computation, kernel: Instruction) -> int:
    """Returns the bytes that a kernel reads and writes; of a slice that it takes, those alone."""
    fused = program.computations.get(kernel.called("calls"), {})
    operands = [computation[name] for name in kernel.operands if name in computation]
    if kernel.op == "dynamic-update-slice":
        return 2 * operands[1].num_bytes
    if not fused:
        return kernel.num_bytes + sum(operand.num_bytes for operand in operands)
    parameters = {
        int(each.called("parameter_number")): each
        for each in fused.values()
        if each.op == "parameter"
    }
    read, written = 0, kernel.num_bytes
    for number, operand in enumerate(operands):
        users = _users(fused, parameters[number].name)
        if users and all(user.op in ("dynamic-slice", "gather", "slice") for user in users):
            read += min(operand.num_bytes, sum(user.num_bytes for user in users))
        elif users and all(_updates(fused, user, parameters[number].name) for user in users):
            places = [-1 if user.op == "scatter" else 1 for user in users]
            updates = [
                fused[user.operands[place]].num_bytes
                for user, place in zip(users, places, strict=True)
            ]
            written -= operand.num_bytes - sum(updates)  # it is written in place
        else:
            read += operand.num_bytes
    return read + max(written, 0)


def _users(computation: Computation, name: str) -> list[Instruction]:
    """Returns the instructions that use a value, or a view of it."""
    users = []
    for user in computation.values():
        if name in user.operands:
            users += _users(computation, user.name) if user.op in _VIEWS else [user]
    return users


def _updates(computation: Computation, user: Instruction, name: str) -> bool:
    """Returns whether an instruction overwrites a part of the value, or of a view of it."""
    if user.op not in ("dynamic-update-slice", "scatter"):
        return False
    target = user.operands[0]
    while target in computation and computation[target].op in ("bitcast", "reshape"):
        target = computation[target].operands[0]
    return target == name


def _matrix_product(
    program: Program, computation: Computation, kernel: Instruction
) -> tuple[int, str]:
    """Returns the floating-point operations of a matrix product, and the dtype of its operands."""
    if kernel.op == "fusion":
        fused = program.computations.get(kernel.called("calls"), {})
        parts = [_matrix_product(program, fused, each) for each in fused.values()]
        return sum(flops for flops, _ in parts), max((dtype for _, dtype in parts), default="")
    is_product = kernel.op == "dot" or (
        kernel.op == "custom-call" and re.search("gemm|matmul", kernel.attributes)
    )
    if not is_product or kernel.operands[0] not in computation:
        return 0, ""
    match = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)', kernel.attributes)
    dtype, shape = computation[kernel.operands[0]].arrays[0]
    contracted = [shape[int(place)] for place in re.findall(r"\d+", match[1] if match else "")]
    _, result = kernel.arrays[0]
    return 2 * math.prod(result) * math.prod(contracted), dtype


def count_ops(program: Program) -> collections.Counter[str]:
    """Returns how many instructions of each kind a program has."""
    return collections.Counter(instruction.op for instruction in program.instructions())
