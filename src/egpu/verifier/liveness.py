"""Which registers and stack slots may still be read, by dataflow over the control-flow graph.

Exploration compares states on live parts only, and numbers only where they can matter: where they
may reach a branch, an argument of a helper or the offset of a pointer.  Two states that differ in
other numbers only (sums and counts on their way into a map) are the same to exploration.  Pointers,
and whether something is initialised, always matter.

Registers are exact.  A stack slot is followed as long as every pointer to the frame has a constant
distance from r10; a function that stores such a pointer or passes it to a function has all of its
slots live everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from egpu.bpf import isa
from egpu.bpf.helpers import calls_back
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.verifier import control
from egpu.verifier.control import Block, Graph
from egpu.verifier.distances import SOMEWHERE, Distance, pointers_of
from egpu.verifier.structure import Step, Structure
from egpu.verifier.subsume import HALF, Live

ALL_SLOTS = (1 << isa.STACK_SIZE // HALF) - 1
_ARGUMENTS = 0b111110  # r1 to r5
_KEPT = 0b1111000000  # r6 to r9


class Liveness:
    """What is live before each instruction; ``suspended[pc]``: what of the caller is live while the
    function called at ``pc`` runs."""

    def __init__(self, structure: Structure, graph: Graph) -> None:
        self._graph = graph
        entry = [_NOTHING] * len(graph.blocks)  # by block
        self.suspended: dict[int, Live] = {}
        self._known: dict[int, Live] = {}
        self._functions: dict[int, _Function] = {}
        blocks: list[list[Block]] = [[] for _ in structure.functions]
        for block in graph.blocks:
            blocks[block.function].append(block)
        for function in structure.order:
            flow = _Function(structure, graph, function, entry, self.suspended)
            flow.solve(blocks[function])
            self._functions[function] = flow
        for block in graph.blocks:
            self._known[block.steps[0].pc] = entry[block.index]

    def at(self, pc: int) -> Live:
        """What is live before the instruction at ``pc``."""
        known = self._known.get(pc)
        if known is None:
            block = self._graph.blocks[self._graph.block_of[pc]]
            flow = self._functions[block.function]
            rest = [step for step in block.steps if step.pc >= pc]
            known = self._known[pc] = flow.before(block, rest)
        return known

    @cached_property
    def entry(self) -> tuple[Live, ...]:
        """The same for every instruction; nothing in the second slots of LD_IMM64."""
        found = [_NOTHING] * len(self._graph.block_of)
        for block in self._graph.blocks:
            for step in block.steps:
                found[step.pc] = self.at(step.pc)
        return tuple(found)


def analyse(structure: Structure, graph: Graph | None = None) -> Liveness:
    """Liveness of the whole program, callees first; ``graph`` is the program's, if it is there."""
    return Liveness(structure, graph or control.analyse(structure))


_NOTHING = Live(0, 0, 0, 0)
_ALU, _CALL, _EXIT, _JUMP = Kind.ALU, Kind.CALL, Kind.EXIT, Kind.JUMP
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_STORE_REG, _STORES = Kind.STORE_REG, frozenset({Kind.STORE_IMM, Kind.STORE_REG})
_PLAIN = frozenset({Kind.JUMP_ALWAYS, Kind.LOAD_IMM64, Kind.BYTE_ORDER})
_LOAD_IMM64, _MOV = Kind.LOAD_IMM64, AluOp.MOV
_new = tuple.__new__  # Live(...) without matching arguments to names
_Four = tuple[int, int, int, int]


class _Function:
    """The backward fixpoint of one function, written into ``entry`` by block."""

    def __init__(
        self,
        structure: Structure,
        graph: Graph,
        function: int,
        entry: list[Live],
        suspended: dict[int, Live],
    ) -> None:
        self.graph = graph
        self.entry = entry
        self.suspended = suspended
        self.main = not function
        self.distances, self.reached, self.offsets, escaped = pointers_of(structure, function)
        # In a called function any pointer may be into a caller's stack.
        self.shared = escaped or function > 0
        self.always = ALL_SLOTS if escaped else 0

    def solve(self, own: list[Block]) -> None:
        """Backwards from block to block until nothing changes."""
        blocks, entry, reached = self.graph.blocks, self.entry, self.reached
        work = [block.index for block in own if block.steps[0].pc in reached]
        waiting = set(work)
        while work:
            index = work.pop()
            waiting.discard(index)
            block = blocks[index]
            live = self.before(block, block.steps)
            if live != entry[index]:
                entry[index] = live
                fresh = [p for p in block.predecessors if p not in waiting]
                fresh = [p for p in fresh if blocks[p].steps[0].pc in reached]
                waiting.update(fresh)
                work.extend(fresh)

    def before(self, block: Block, steps: Sequence[Step]) -> Live:
        """What is live before ``steps``, the last ones of a block."""
        offsets, always = self.offsets, self.always
        registers, slots, numbers, slot_numbers = 0, always, 0, always
        if block.steps[0].pc not in self.reached:
            return _NOTHING
        for successor in block.successors:
            after = self.entry[successor]
            registers |= after[0]
            slots |= after[1]
            numbers |= after[2]
            slot_numbers |= after[3]
        for step in reversed(steps):
            kind, reads, writes = step.kind, step.reads, step.writes
            if kind is _ALU:
                if numbers & writes:
                    numbers = (numbers & ~writes if step.op is _MOV else numbers) | reads
                elif step.pc in offsets:
                    numbers |= reads  # what is added to a pointer is an offset
            elif kind is _JUMP:
                numbers |= reads
            elif kind is _EXIT:
                numbers = 0 if self.main else 1
            elif kind not in _PLAIN:
                live = registers, slots, numbers, slot_numbers
                registers, slots, numbers, slot_numbers = self._before(step, live)
                if always:
                    slots = slot_numbers = always
                continue
            elif kind is _LOAD_IMM64:
                numbers &= ~writes
            registers = registers & ~writes | reads
        return _new(Live, (registers, slots, numbers, slot_numbers))

    def _before(self, step: Step, after: _Four) -> _Four:
        """What is live before an access, a call or an exit; what is live after it is given."""
        registers, slots, numbers, slot_numbers = after
        kind, distances = step.kind, self.distances[step.pc]
        size, src, dst = step.width // 8, 1 << step.src, 1 << step.dst
        if kind in _LOADS:
            place = distances[step.src]
            if place is not None:
                read = _from_distance(place + step.off, size)
                slots |= read
                if numbers & dst:
                    slot_numbers |= read
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
            return self._call(step, after)
        else:  # an atomic
            place = distances[step.dst]
            if place is not None:
                slots |= _from_distance(place + step.off, size)
            numbers |= dst
        return registers & ~step.writes | step.reads, slots, numbers, slot_numbers

    def _call(self, step: Step, after: _Four) -> _Four:
        registers, slots, numbers, slot_numbers = after
        read = matters = step.reads
        local = step.src == CallSrc.LOCAL
        if local or calls_back(step.imm):
            self.suspended[step.pc] = Live(registers & _KEPT, slots, numbers & _KEPT, slot_numbers)
        # A helper may read from its pointer upwards; how far is not asked.
        for distance in self.distances[step.pc][1:6]:
            if distance is not None:
                slots |= _from_distance(distance, max(1, -distance))
        if local:
            callee = self.entry[self.graph.block_of[step.target]]
            read, matters = callee.registers & _ARGUMENTS, callee.numbers & _ARGUMENTS
        lost = step.writes
        return registers & ~lost | read, slots, numbers & ~lost | matters, slot_numbers


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
