"""Which numbers can still matter, by dataflow over the control-flow graph.

A number matters if it may reach a branch, an argument of a helper or the offset of a pointer.  Two
states that differ in other numbers only (sums and counts on their way into a map) are the same to
exploration.  Pointers, and whether something is initialised, always matter.
"""

from __future__ import annotations

from egpu.bpf.helpers import HELPERS, Ret
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier.structure import Step, Structure

_ARGUMENTS = 0b111110  # r1 to r5
_CLOBBERED = 0b111111  # r0 to r5
_FRAME = 1 << 10
_POINTER_RESULTS = frozenset({Ret.MAP_VALUE_OR_NULL, Ret.RECORD_OR_NULL})
_ALU, _CALL, _EXIT, _LOAD = Kind.ALU, Kind.CALL, Kind.EXIT, Kind.LOAD
_JUMP, _JUMP_ALWAYS, _LOAD_IMM64 = Kind.JUMP, Kind.JUMP_ALWAYS, Kind.LOAD_IMM64
_ADD, _SUB, _MOV = AluOp.ADD, AluOp.SUB, AluOp.MOV


def maybe_pointers(structure: Structure, function: int, stack: frozenset[int]) -> dict[int, int]:
    """For each instruction, the registers that may hold a pointer before it, as a bit set.

    ``stack`` are the loads that may read a stack, where pointers are kept.
    """
    start = structure.functions[function][0]
    found = {start: _FRAME | (_ARGUMENTS if function else 1 << 1)}
    work = [start]
    while work:
        pc = work.pop()
        while True:  # on to the end of the function, or to where nothing is new
            step = structure.step(pc)
            kind, after = step.kind, found[pc]
            if kind is _ALU:
                if after & (step.reads | step.writes):
                    after = _computed(step, after)
            elif step.writes:
                after = _written(step, after, pc in stack)
            elif kind is _EXIT:
                break
            elif kind is _JUMP:
                known = found.get(step.target)
                if known is None or after & ~known:
                    found[step.target] = after | (known or 0)
                    work.append(step.target)
            pc = step.target if kind is _JUMP_ALWAYS else step.following
            known = found.get(pc)
            if known is None:
                found[pc] = after
            elif after & ~known:
                found[pc] = after | known
            else:
                break
    return found


def _computed(step: Step, before: int) -> int:
    """The registers that may hold a pointer after arithmetic."""
    op = step.op
    keeps = step.width == 64 and (op is _MOV or op is _ADD or op is _SUB)
    points = keeps and before & step.reads
    return before | step.writes if points else before & ~step.writes


def _written(step: Step, before: int, from_stack: bool) -> int:
    """The same after another instruction that writes registers."""
    kind, writes = step.kind, step.writes
    if kind is _LOAD_IMM64:
        points = step.src != PseudoSrc.CONST
    elif kind is _LOAD:
        points = from_stack and step.width == 64
    elif kind is _CALL:
        helper = HELPERS.get(step.imm) if step.src == CallSrc.HELPER else None
        returns = helper is None or helper.ret in _POINTER_RESULTS
        return before & ~_CLOBBERED | returns
    elif kind is Kind.ATOMIC:
        return before
    else:
        points = False
    return before | writes if points else before & ~writes


def numbers_before(step: Step, pointers: int, after: int) -> int:
    """The registers whose number matters before arithmetic, a jump or a constant; ``after`` it.

    ``pointers`` are the registers that may hold a pointer before it.
    """
    kind = step.kind
    if kind is _ALU:
        op, writes = step.op, step.writes
        if op is _MOV:
            return after & ~writes | step.reads if after & writes else after
        # A number that is added to a pointer is an offset.
        if after & writes or ((op is _ADD or op is _SUB) and pointers & step.reads):
            return after | step.reads
        return after
    if kind is _JUMP:
        return after | step.reads
    if kind is _LOAD_IMM64:
        return after & ~step.writes
    return after
