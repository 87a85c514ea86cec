"""Instruction sites: what ``insn/<class>`` and ``__memcapture`` mean in a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from egpu.bpf.context import LINE_SIZE
from egpu.bpf.program import MEMORY_CAPTURE
from egpu.image.ptx.syntax import Address, Function, Instruction, Module, Symbol
from egpu.splice.ptx_walk import call_target, instructions

# The classes of ``insn/<class>/…`` by the first part of the opcode (PTX ISA 9.0, section 9.7).
# fmt: off
_LOADS = frozenset({"ld", "ldu"})
_STORES = frozenset({"st"})
_CLASSES: dict[str, frozenset[str]] = {
    "load":         _LOADS,
    "store":        _STORES,
    "atomic":       frozenset({"atom", "red"}),
    "barrier":      frozenset({"bar", "barrier"}),
    "branch":       frozenset({"bra", "brx"}),
    "mma":          frozenset({"mma", "wmma", "wgmma", "tcgen05"}),
    MEMORY_CAPTURE: _LOADS | _STORES,
}
# fmt: on
# bpftime: an entry probe replaces the calls of this function where the kernel has any.
TRACE_STUB = "__bpftime_cuda__kernel_trace"


@dataclass(frozen=True, slots=True)
class InstructionSites:
    """The instructions of the kernel that a class means, in source order.

    ``uncovered`` says how many there are in functions that the kernel calls, by function: probes
    are put into kernels only.
    """

    instructions: tuple[Instruction, ...]
    uncovered: tuple[str, ...]


def find_instructions(
    kernel: Function, reached: Sequence[Function], wanted: str
) -> InstructionSites:
    """The sites of class ``wanted``: a name of the table, else a prefix of the opcode.

    Loads and stores of a call's parameters are none: they are no accesses of memory, and nothing
    may stand between them and the call (PTX ISA 9.0, section 7.1).
    """
    uncovered: list[str] = []
    for function in reached:
        if function is not kernel:
            count = sum(1 for _ in _matching(function, wanted))
            if count:
                uncovered.append(f"{count} {_called(wanted)} in {function.name}")
    return InstructionSites(tuple(_matching(kernel, wanted)), tuple(uncovered))


def _called(wanted: str) -> str:
    return "loads and stores" if wanted == MEMORY_CAPTURE else f"{wanted} instructions"


def _matching(function: Function, wanted: str) -> Iterator[Instruction]:
    parameters = {each.name for each in function.parameters} if function.is_entry else set()
    for instruction in instructions(function):
        if _means(instruction, wanted) and not _passes_parameter(instruction, parameters):
            yield instruction


def _means(instruction: Instruction, wanted: str) -> bool:
    opcodes = _CLASSES.get(wanted)
    if opcodes is not None:
        return instruction.parts[0] in opcodes
    return instruction.opcode == wanted or instruction.opcode.startswith(f"{wanted}.")


def _passes_parameter(instruction: Instruction, parameters: set[str]) -> bool:
    """Whether it moves an argument or a result of a call (or of a function, to its caller)."""
    if not any(part == "param" or part.startswith("param::func") for part in instruction.parts):
        return False
    for operand in instruction.operands:
        if isinstance(operand, Address):
            return not (isinstance(operand.base, Symbol) and operand.base.name in parameters)
    return False


def line_bytes(module: Module, instruction: Instruction) -> bytes:
    """The text of an instruction as a program sees it: blanks joined, cut to LINE_SIZE - 1 bytes,
    NUL-padded to LINE_SIZE."""
    text = " ".join(module.text[instruction.span.start : instruction.span.end].split())
    data = text.encode("utf-8", "replace")[: LINE_SIZE - 1]
    return data.ljust(LINE_SIZE, b"\0")


def stub_calls(function: Function) -> tuple[Instruction, ...]:
    """The calls of bpftime's trace stub in a function."""
    return tuple(
        each
        for each in instructions(function)
        if each.parts[0] == "call"
        and isinstance(target := call_target(each), Symbol)
        and target.name == TRACE_STUB
    )
