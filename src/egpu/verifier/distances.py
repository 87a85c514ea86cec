"""How far each register is from r10, by dataflow over the control-flow graph."""

from __future__ import annotations

from egpu.bpf.helpers import calls_back
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.verifier.structure import Step, Structure

# Where a register points in the running frame: not at all, at a constant distance from r10, or
# somewhere.
Distance = int | None
SOMEWHERE = 1 << 32
Distances = tuple[Distance, ...]

_ALU, _CALL, _EXIT = Kind.ALU, Kind.CALL, Kind.EXIT
_JUMP, _JUMP_ALWAYS = Kind.JUMP, Kind.JUMP_ALWAYS
_STORES = frozenset({Kind.STORE_REG, Kind.ATOMIC})


def distances_of(structure: Structure, function: int) -> dict[int, Distances]:
    """For each instruction that can be reached, how far each register is from r10 before it."""
    start = structure.functions[function][0]
    found: dict[int, Distances] = {start: (None,) * 10 + (0,)}
    work = [start]
    while work:
        pc = work.pop()
        state = found[pc]
        tracked = _tracked(state)
        while True:  # on to the end of the function, or to where nothing is new
            step = structure.step(pc)
            kind = step.kind
            if step.writes & tracked or (kind is _ALU and step.reads & tracked):
                state = _moved(step, state)
                tracked = _tracked(state)
            if kind is _EXIT:
                break
            if kind is _JUMP and _merge(found, step.target, state) is not None:
                work.append(step.target)
            pc = step.target if kind is _JUMP_ALWAYS else step.following
            merged = _merge(found, pc, state)
            if merged is None:
                break
            if merged is not state:
                state = merged
                tracked = _tracked(state)
    return found


def _tracked(state: Distances) -> int:
    """The registers that may point into the frame, as a bit set."""
    return sum(1 << index for index, distance in enumerate(state) if distance is not None)


def _merge(found: dict[int, Distances], pc: int, state: Distances) -> Distances | None:
    """What is known at ``pc`` now; None if that is what was known before."""
    known = found.get(pc)
    if known is state:
        return None
    if known is not None:
        state = tuple(x if x == y else SOMEWHERE for x, y in zip(known, state, strict=True))
        if state == known:
            return None
    found[pc] = state
    return state


def _moved(step: Step, before: Distances) -> Distances:
    """The distances after ``step``."""
    lost = step.writes
    after = [None if lost >> index & 1 else value for index, value in enumerate(before)]
    if step.kind is _ALU:
        after[step.dst] = _computed(step, before)
    return tuple(after)


def _computed(step: Step, before: Distances) -> Distance:
    own = before[step.dst]
    other = before[step.src] if step.register else None
    if step.op is AluOp.MOV:
        return other
    if own is None and other is None:
        return None
    if step.op is AluOp.ADD and not step.register and own is not None and own != SOMEWHERE:
        return own + step.imm
    return SOMEWHERE


def escapes(structure: Structure, function: int, distances: dict[int, Distances]) -> bool:
    """Whether a pointer to the frame is stored or given to a function."""
    for step in structure.walk(function):
        kind = step.kind
        if kind in _STORES:
            before = distances.get(step.pc)
            if before is not None and before[step.src] is not None:
                return True
        elif kind is _CALL and (step.src == CallSrc.LOCAL or calls_back(step.imm)):
            before = distances.get(step.pc)
            if before is not None and any(distance is not None for distance in before[1:6]):
                return True
    return False
