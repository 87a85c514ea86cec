"""Which registers and stack slots may still be read, by dataflow over the control-flow graph.

Exploration compares states on live parts only, and numbers only where they can matter
(``relevance``).  Registers are exact.  A stack slot is followed as
long as every pointer to the frame has a constant distance from r10; a function that stores such a
pointer or passes it to a function has all of its slots live everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf import isa
from egpu.bpf.helpers import calls_back
from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier import control
from egpu.verifier.control import Block, Graph
from egpu.verifier.distances import SOMEWHERE, Distance, distances_of, escapes
from egpu.verifier.relevance import maybe_pointers, numbers_before
from egpu.verifier.structure import Step, Structure
from egpu.verifier.subsume import HALF, Live

ALL_SLOTS = (1 << isa.STACK_SIZE // HALF) - 1
_ARGUMENTS = 0b111110  # r1 to r5
_KEPT = 0b1111000000  # r6 to r9


@dataclass(frozen=True, slots=True)
class Liveness:
    """``entry[pc]``: what is live before the instruction; ``suspended[pc]``: what of the caller is
    live while the function called at ``pc`` runs."""

    entry: tuple[Live, ...]
    suspended: dict[int, Live]


def analyse(structure: Structure, graph: Graph | None = None) -> Liveness:
    """Liveness of the whole program, callees first; ``graph`` is the program's, if it is there."""
    graph = graph or control.analyse(structure)
    entry = [NOTHING_LIVE] * len(structure.steps)
    suspended: dict[int, Live] = {}
    blocks: list[list[Block]] = [[] for _ in structure.functions]
    for block in graph.blocks:
        blocks[block.function].append(block)
    for function in structure.order:
        _Function(structure, graph, function, entry).solve(blocks[function])
        for block in blocks[function]:
            for step in block.steps:
                if step.kind is _CALL and (step.src == CallSrc.LOCAL or calls_back(step.imm)):
                    registers, slots, numbers, slot_numbers = entry[step.following]
                    suspended[step.pc] = Live(
                        registers & _KEPT, slots, numbers & _KEPT, slot_numbers
                    )
    return Liveness(tuple(entry), suspended)


NOTHING_LIVE = Live(0, 0, 0, 0)
_ALU, _CALL, _EXIT, _LOAD = Kind.ALU, Kind.CALL, Kind.EXIT, Kind.LOAD
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_STORE_REG, _STORES = Kind.STORE_REG, frozenset({Kind.STORE_IMM, Kind.STORE_REG})
_PLAIN = frozenset({Kind.ALU, Kind.JUMP, Kind.JUMP_ALWAYS, Kind.LOAD_IMM64, Kind.BYTE_ORDER})
_new = tuple.__new__  # Live(...) without matching arguments to names


class _Function:
    """The backward fixpoint of one function, written into ``entry``."""

    def __init__(
        self, structure: Structure, graph: Graph, function: int, entry: list[Live]
    ) -> None:
        self.graph = graph
        self.entry = entry
        self.main = not function
        self.distances = distances_of(structure, function)
        escaped = escapes(structure, function, self.distances)
        # In a called function any pointer may be into a caller's stack.
        self.shared = escaped or function > 0
        self.always = ALL_SLOTS if escaped else 0
        stack = frozenset(
            step.pc
            for step in structure.walk(function)
            if step.kind is _LOAD and (self.shared or self._into_frame(step))
        )
        self.pointers = maybe_pointers(structure, function, stack)

    def _into_frame(self, step: Step) -> bool:
        before = self.distances.get(step.pc)
        return before is not None and before[step.src] is not None

    def solve(self, own: list[Block]) -> None:
        """Backwards from block to block until nothing changes."""
        blocks, entry = self.graph.blocks, self.entry
        work = [block.index for block in own if block.steps[0].pc in self.distances]
        waiting = set(work)
        while work:
            index = work.pop()
            waiting.discard(index)
            block = blocks[index]
            first = block.steps[0].pc
            before = entry[first]
            self._block(block)
            if entry[first] != before:
                fresh = [p for p in block.predecessors if p not in waiting]
                fresh = [p for p in fresh if blocks[p].steps[0].pc in self.distances]
                waiting.update(fresh)
                work.extend(fresh)

    def _block(self, block: Block) -> None:
        """What is live before each instruction of a block."""
        entry, pointers, always = self.entry, self.pointers, self.always
        registers, slots, numbers, slot_numbers = 0, always, 0, always
        for successor in block.successors:
            after = entry[self.graph.blocks[successor].steps[0].pc]
            registers |= after[0]
            slots |= after[1]
            numbers |= after[2]
            slot_numbers |= after[3]
        for step in reversed(block.steps):
            pc, kind = step.pc, step.kind
            if kind in _PLAIN:
                reads, writes = step.reads, step.writes
                if kind is not _ALU or numbers & writes or pointers[pc] & reads:
                    numbers = numbers_before(step, pointers[pc], numbers)
                registers = registers & ~writes | reads
                entry[pc] = _new(Live, (registers, slots, numbers, slot_numbers))
                continue
            live = self._before(step, registers, slots, numbers, slot_numbers)
            if always:
                live = Live(live.registers, always, live.numbers, always)
            registers, slots, numbers, slot_numbers = entry[pc] = live

    def _before(
        self, step: Step, registers: int, slots: int, numbers: int, slot_numbers: int
    ) -> Live:
        """What is live before an access, a call or an exit; what is live after it is given."""
        kind, distances = step.kind, self.distances[step.pc]
        size, src, dst = step.width // 8, 1 << step.src, 1 << step.dst
        if kind in _LOADS:
            place = distances[step.src]
            read = 0 if place is None else _from_distance(place + step.off, size)
            if numbers & dst:
                slot_numbers |= read
            slots |= read
            numbers = numbers & ~dst | src
        elif kind in _STORES:
            place = distances[step.dst]
            touched = 0 if place is None else _from_distance(place + step.off, size)
            hit = ALL_SLOTS if self.shared else touched
            if kind is _STORE_REG and slot_numbers & hit:
                numbers |= src
            lost = _overwritten(place, step, touched)
            slots &= ~lost
            numbers |= dst
            slot_numbers &= ~lost
        elif kind is _CALL:
            return self._call(step, registers, slots, numbers, slot_numbers)
        elif kind is _EXIT:
            return Live(1, slots, 0 if self.main else 1, 0)
        else:  # an atomic
            place = distances[step.dst]
            if place is not None:
                slots |= _from_distance(place + step.off, size)
            numbers |= dst
        return Live(registers & ~step.writes | step.reads, slots, numbers, slot_numbers)

    def _call(
        self, step: Step, registers: int, slots: int, numbers: int, slot_numbers: int
    ) -> Live:
        # A helper may read from its pointer upwards; how far is not asked.
        for distance in self.distances[step.pc][1:6]:
            if distance is not None:
                slots |= _from_distance(distance, max(1, -distance))
        read = matters = step.reads
        if step.src == CallSrc.LOCAL:
            callee = self.entry[step.target]
            read, matters = callee.registers & _ARGUMENTS, callee.numbers & _ARGUMENTS
        lost = step.writes
        return Live(registers & ~lost | read, slots, numbers & ~lost | matters, slot_numbers)


def _from_distance(distance: int, size: int) -> int:
    """The halves of slots that ``size`` bytes at ``distance`` from r10 touch, as a bit set."""
    if distance >= SOMEWHERE // 2 or distance < -isa.STACK_SIZE or distance + size > 0:
        return ALL_SLOTS
    first, last = -1 - (distance + size - 1) // HALF, -1 - distance // HALF
    return (1 << last + 1) - (1 << first)


def _overwritten(distance: Distance, step: Step, touched: int) -> int:
    """The halves of slots of which a store at ``distance`` leaves nothing."""
    if distance is None or distance == SOMEWHERE or touched == ALL_SLOTS:
        return 0
    size = step.width // 8
    whole = size >= HALF and not (distance + step.off) % size
    return touched if whole else 0
