"""Which registers and stack slots may still be read, by dataflow over the control-flow graph.

Exploration compares states on live parts only, and numbers only where they can matter
(``relevance``).  Registers are exact.  A stack slot is followed as
long as every pointer to the frame has a constant distance from r10; a function that stores such a
pointer or passes it to a function has all of its slots live everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from egpu.bpf import isa
from egpu.bpf.helpers import HELPERS, calls_back
from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, Kind
from egpu.verifier.relevance import maybe_pointers, moves
from egpu.verifier.structure import Step, Structure
from egpu.verifier.subsume import Live

ALL_SLOTS = (1 << isa.STACK_SIZE // 8) - 1
_ARGUMENTS = 0b111110  # r1 to r5
_CLOBBERED = 0b111111  # r0 to r5
_KEPT = 0b1111000000  # r6 to r9

# Where a register points in the running frame: not at all, at a constant distance from r10, or
# somewhere.
Distance = int | None
SOMEWHERE = 1 << 32


@dataclass(frozen=True, slots=True)
class Liveness:
    """``entry[pc]``: what is live before the instruction; ``suspended[pc]``: what of the caller is
    live while the function called at ``pc`` runs."""

    entry: tuple[Live, ...]
    suspended: dict[int, Live]


def uses(step: Step) -> int:
    """The registers that an instruction reads, as a bit set (a local call's are its callee's)."""
    dst, src = 1 << step.dst, 1 << step.src
    match step.kind:
        case Kind.ALU:
            first = 0 if step.op is AluOp.MOV else dst
            return first | (src if step.register else 0)
        case Kind.BYTE_ORDER | Kind.STORE_IMM:
            return dst
        case Kind.LOAD | Kind.LOAD_SIGNED:
            return src
        case Kind.STORE_REG:
            return dst | src
        case Kind.ATOMIC:
            return dst | src | (1 if step.imm == AtomicOp.CMPXCHG else 0)
        case Kind.JUMP:
            return dst | (src if step.register else 0)
        case Kind.CALL:
            helper = HELPERS.get(step.imm) if step.src == CallSrc.HELPER else None
            return _ARGUMENTS if helper is None else (1 << len(helper.args) + 1) - 2
        case Kind.EXIT:
            return 1
        case _:
            return 0


def defines(step: Step) -> int:
    """The registers whose old value is gone after an instruction, as a bit set."""
    match step.kind:
        case Kind.ALU | Kind.BYTE_ORDER | Kind.LOAD | Kind.LOAD_SIGNED | Kind.LOAD_IMM64:
            return 1 << step.dst
        case Kind.ATOMIC:
            if step.imm == AtomicOp.CMPXCHG:
                return 1
            return 1 << step.src if step.imm & 1 else 0
        case Kind.CALL:
            return _CLOBBERED
        case _:
            return 0


def analyse(structure: Structure) -> Liveness:
    """Liveness of the whole program, callees first."""
    size = len(structure.steps)
    entry = [Live(0, 0, 0, 0)] * size
    suspended: dict[int, Live] = {}
    for function in structure.order:
        distances = distances_of(structure, function)
        escaped = escapes(structure, function, distances)
        _solve(structure, function, distances, escaped, entry)
        for step in structure.walk(function):
            if step.kind is Kind.CALL and (step.src == CallSrc.LOCAL or calls_back(step.imm)):
                after = entry[step.following]
                suspended[step.pc] = Live(
                    after.registers & _KEPT, after.slots, after.numbers & _KEPT, after.slot_numbers
                )
    return Liveness(tuple(entry), suspended)


def distances_of(structure: Structure, function: int) -> dict[int, tuple[Distance, ...]]:
    """For each instruction, how far each register is from r10 before it."""
    start = structure.functions[function][0]
    first: tuple[Distance, ...] = (None,) * 10 + (0,)
    found = {start: first}
    work = [start]
    while work:
        step = structure.step(work.pop())
        after = _moved(step, found[step.pc])
        for successor in structure.successors(step):
            known = found.get(successor)
            merged = after if known is None else _merge(known, after)
            if merged != known:
                found[successor] = merged
                work.append(successor)
    return found


def _merge(a: tuple[Distance, ...], b: tuple[Distance, ...]) -> tuple[Distance, ...]:
    return tuple(x if x == y else SOMEWHERE for x, y in zip(a, b, strict=True))


def _moved(step: Step, before: tuple[Distance, ...]) -> tuple[Distance, ...]:
    """The distances after ``step``."""
    lost = defines(step)
    after = [None if lost >> index & 1 else value for index, value in enumerate(before)]
    if step.kind is Kind.ALU:
        after[step.dst] = _computed(step, before)
    return tuple(after)


def _computed(step: Step, before: tuple[Distance, ...]) -> Distance:
    own = before[step.dst]
    other = before[step.src] if step.register else None
    if step.op is AluOp.MOV:
        return other
    if own is None and other is None:
        return None
    if step.op is AluOp.ADD and not step.register and own is not None and own != SOMEWHERE:
        return own + step.imm
    return SOMEWHERE


def escapes(
    structure: Structure, function: int, distances: dict[int, tuple[Distance, ...]]
) -> bool:
    """Whether a pointer to the frame is stored or given to a function."""
    for step in structure.walk(function):
        before = distances.get(step.pc)
        if before is None:
            continue
        if step.kind in (Kind.STORE_REG, Kind.ATOMIC) and before[step.src] is not None:
            return True
        local = step.kind is Kind.CALL and (step.src == CallSrc.LOCAL or calls_back(step.imm))
        if local and any(distance is not None for distance in before[1:6]):
            return True
    return False


def _from_distance(distance: int, size: int) -> int:
    """The slots that ``size`` bytes at ``distance`` from r10 touch, as a bit set."""
    if distance >= SOMEWHERE // 2 or distance < -isa.STACK_SIZE or distance + size > 0:
        return ALL_SLOTS
    first, last = -1 - (distance + size - 1) // 8, -1 - distance // 8
    return sum(1 << bit for bit in range(first, last + 1))


def _slot_effects(step: Step, before: tuple[Distance, ...]) -> tuple[int, int]:
    """The slots that an instruction reads and those that it overwrites whole."""
    size = step.width // 8
    match step.kind:
        case Kind.LOAD | Kind.LOAD_SIGNED:
            distance = before[step.src]
            return (0 if distance is None else _from_distance(distance + step.off, size)), 0
        case Kind.ATOMIC:
            distance = before[step.dst]
            return (0 if distance is None else _from_distance(distance + step.off, size)), 0
        case Kind.STORE_IMM | Kind.STORE_REG:
            distance = before[step.dst]
            whole = size == 8 and distance is not None and distance != SOMEWHERE
            if whole and distance is not None and not (distance + step.off) % 8:
                slots = _from_distance(distance + step.off, size)
                return 0, slots if slots != ALL_SLOTS else 0
            return 0, 0
        case Kind.CALL:
            # A helper may read from its pointer upwards; how far is not asked.
            reads = 0
            for distance in before[1:6]:
                if distance is not None:
                    reads |= _from_distance(distance, max(1, -distance))
            return reads, 0
        case _:
            return 0, 0


def _solve(
    structure: Structure,
    function: int,
    distances: dict[int, tuple[Distance, ...]],
    escaped: bool,
    entry: list[Live],
) -> None:
    """The backward fixpoint of one function, written into ``entry``."""
    steps = [step for step in structure.walk(function) if step.pc in distances]
    before = _predecessors(structure, steps)
    # In a called function any pointer may be into a caller's stack.
    shared = escaped or function > 0
    stack = frozenset(
        step.pc
        for step in steps
        if step.kind is Kind.LOAD and (shared or distances[step.pc][step.src] is not None)
    )
    pointers = maybe_pointers(structure, function, stack)
    transfer = {
        step.pc: _transfer(
            step, distances[step.pc], pointers[step.pc], entry, main=not function, shared=shared
        )
        for step in steps
    }
    always = ALL_SLOTS if escaped else 0
    work = {step.pc for step in steps}
    pending = sorted(work)
    while pending:
        pc = pending.pop()
        work.discard(pc)
        registers, slots, numbers, slot_numbers = 0, always, 0, always
        for successor in structure.successors(structure.step(pc)):
            after = entry[successor]
            registers |= after[0]
            slots |= after[1]
            numbers |= after[2]
            slot_numbers |= after[3]
        live = transfer[pc](registers, slots, numbers, slot_numbers)
        if always:
            live = Live(live.registers, always, live.numbers, always)
        if live != entry[pc]:
            entry[pc] = live
            fresh = [p for p in before.get(pc, ()) if p not in work]
            work.update(fresh)
            pending.extend(fresh)


def _predecessors(structure: Structure, steps: list[Step]) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {}
    for step in steps:
        for successor in structure.successors(step):
            before.setdefault(successor, []).append(step.pc)
    return before


def _transfer(
    step: Step,
    before: tuple[Distance, ...],
    pointers: int,
    entry: list[Live],
    *,
    main: bool,
    shared: bool,
) -> Callable[[int, int, int, int], Live]:
    read, lost, arguments = uses(step), defines(step), 0
    if step.kind is Kind.CALL and step.src == CallSrc.LOCAL:
        read = entry[step.target].registers & _ARGUMENTS
        arguments = entry[step.target].numbers & _ARGUMENTS
    slots_read, slots_lost = _slot_effects(step, before)
    hit = ALL_SLOTS if shared else 0
    place = before[step.dst]
    if place is not None and step.kind is Kind.STORE_REG:
        hit |= _from_distance(place + step.off, step.width // 8)
    matters = moves(
        step,
        pointers,
        main=main,
        read=slots_read,
        hit=hit,
        lost=slots_lost,
        arguments=arguments,
    )

    def apply(registers: int, slots: int, numbers: int, slot_numbers: int) -> Live:
        numbers, slot_numbers = matters(numbers, slot_numbers)
        return Live(
            registers & ~lost | read, slots & ~slots_lost | slots_read, numbers, slot_numbers
        )

    return apply
