"""Which numbers can still matter, by dataflow over the control-flow graph.

A number matters if it may reach a branch, an argument of a helper or the offset of a pointer.  Two
states that differ in other numbers only (sums and counts on their way into a map) are the same to
exploration.  Pointers, and whether something is initialised, always matter.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.helpers import HELPERS, Ret
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier.structure import Step, Structure

_ARGUMENTS = 0b111110  # r1 to r5
_CLOBBERED = 0b111111  # r0 to r5
_FRAME = 1 << 10
_POINTER_RESULTS = frozenset({Ret.MAP_VALUE_OR_NULL, Ret.RECORD_OR_NULL})

Matters = Callable[[int, int], tuple[int, int]]


def maybe_pointers(structure: Structure, function: int, stack: frozenset[int]) -> dict[int, int]:
    """For each instruction, the registers that may hold a pointer before it, as a bit set.

    ``stack`` are the loads that may read a stack, where pointers are kept.
    """
    start = structure.functions[function][0]
    found = {start: _FRAME | (_ARGUMENTS if function else 1 << 1)}
    work = [start]
    while work:
        step = structure.step(work.pop())
        after = _after(step, found[step.pc], step.pc in stack)
        for successor in structure.successors(step):
            known = found.get(successor)
            if known is None or after & ~known:
                found[successor] = after | (known or 0)
                work.append(successor)
    return found


def _after(step: Step, before: int, from_stack: bool) -> int:
    dst, src = 1 << step.dst, 1 << step.src
    match step.kind:
        case Kind.ALU:
            points = bool(before & src) if step.register else False
            if step.op in (AluOp.ADD, AluOp.SUB):
                points = points or bool(before & dst)
            elif step.op is not AluOp.MOV:
                points = False
            return before | dst if points and step.width == 64 else before & ~dst
        case Kind.LOAD_IMM64:
            return before & ~dst if step.src == PseudoSrc.CONST else before | dst
        case Kind.LOAD:
            return before | dst if from_stack and step.width == 64 else before & ~dst
        case Kind.LOAD_SIGNED | Kind.BYTE_ORDER:
            return before & ~dst
        case Kind.CALL:
            helper = HELPERS.get(step.imm) if step.src == CallSrc.HELPER else None
            returns = helper is None or helper.ret in _POINTER_RESULTS
            return before & ~_CLOBBERED | returns
        case _:
            return before


def moves(
    step: Step, pointers: int, *, main: bool, read: int, hit: int, lost: int, arguments: int
) -> Matters:
    """What matters before ``step`` as a function of what matters after it (registers, slots).

    ``read``, ``hit`` and ``lost`` are the stack slots that it may read, may write, and overwrites
    whole; ``arguments`` are the registers that matter to a local function that it calls.
    """
    dst, src = 1 << step.dst, 1 << step.src
    second = src if step.register else 0
    match step.kind:
        case Kind.ALU:
            if step.op is AluOp.MOV:
                return lambda r, s: (r & ~dst | (second if r & dst else 0), s)
            points = step.op in (AluOp.ADD, AluOp.SUB) and pointers & (dst | second)
            if points:
                return lambda r, s: (r | dst | second, s)
            return lambda r, s: (r | (second if r & dst else 0), s)
        case Kind.LOAD | Kind.LOAD_SIGNED:
            return lambda r, s: (r & ~dst | src, s | (read if r & dst else 0))
        case Kind.STORE_REG:
            return lambda r, s: (r | dst | (src if s & hit else 0), s & ~lost)
        case Kind.STORE_IMM:
            return lambda r, s: (r | dst, s & ~lost)
        case Kind.LOAD_IMM64:
            return lambda r, s: (r & ~dst, s)
        case Kind.ATOMIC:
            return lambda r, s: (r | dst, s)
        case Kind.JUMP:
            return lambda r, s: (r | dst | second, s)
        case Kind.CALL:
            if step.src == CallSrc.LOCAL:
                return lambda r, s: (r & ~_CLOBBERED | arguments, s)
            helper = HELPERS.get(step.imm)
            used = _ARGUMENTS if helper is None else (1 << len(helper.args) + 1) - 2
            return lambda r, s: (r & ~_CLOBBERED | used, s)
        case Kind.EXIT:
            returned = 0 if main else 1
            return lambda r, s: (returned, 0)
        case _:  # jumps that are always taken, byte swaps
            return lambda r, s: (r, s)
