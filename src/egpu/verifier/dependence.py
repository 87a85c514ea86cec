"""Which loads of shared memory a value, or whether something happens, may depend on.

A dataflow follows what was loaded through registers and stack slots, and through branches: what is
written, and what runs, between a branch and the place where its ways meet depends on what the
branch compared (context of calls is merged).  Sets of loads are bit sets; ``pcs`` reads them.

The tokens of a run's budget carry such dependence, too: how many are left depends on what decided
how often each was taken, on that depends where a may_goto goes, and whether a budgeted loop ends
the program before whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from egpu.bpf.budget import NO_BUDGET, Budget
from egpu.bpf.helpers import HELPERS, Arg
from egpu.bpf.isa import STACK_SIZE, CallSrc, JmpOp, Kind
from egpu.verifier.control import END, Block, Graph
from egpu.verifier.frames import Frames, calls_back
from egpu.verifier.state import SLOT
from egpu.verifier.structure import Step, Structure
from egpu.verifier.verified import Region

_REGISTERS = 11
_ANYWHERE = (-1, 0)  # stack bytes whose place is not known
_CALL, _EXIT, _JUMP = Kind.CALL, Kind.EXIT, Kind.JUMP
_COMPUTED = frozenset({Kind.ALU, Kind.BYTE_ORDER, Kind.LOAD_IMM64})
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_STORES = frozenset({Kind.STORE_IMM, Kind.STORE_REG, Kind.ATOMIC})
_NUMBERS = frozenset({Arg.SCALAR, Arg.ANYTHING})


class Dependence:
    """What depends on the loads at ``sources``, once ``solve`` has run."""

    def __init__(
        self,
        structure: Structure,
        graph: Graph,
        frames: Frames,
        sources: frozenset[int],
        budget: Budget | None = None,
    ) -> None:
        self.structure = structure
        self.graph = graph
        self.frames = frames
        self.sources = sorted(sources)
        self.bits = {pc: 1 << index for index, pc in enumerate(self.sources)}
        count = len(graph.blocks)
        self.entry: list[list[int] | None] = [None] * count  # registers where a block begins
        self.joined: dict[int, list[int]] = {}  # what the ways that meet at a block add to that
        self.parted: dict[int, int] = {}  # block -> loads that the branch at its end depends on
        self.guards = [0] * count  # loads that decide whether a block runs
        functions = len(structure.functions)
        self.called = [0] * functions  # loads that decide whether a function runs
        self.returned = [0] * functions  # r0
        self.slots: dict[tuple[int, int], int] = {}
        self.stored: dict[int, int] = {}  # by pc, of the register that a store writes
        self.budget = budget or NO_BUDGET
        self.tokens = [0]  # loads that decide how many tokens are left
        self.cuts = [0] * count  # loads that decide whether the program ends before a block
        self.cut_calls = [0] * functions  # the same before a function runs
        self.ending = [0] * functions  # loads that decide whether a function ends the program
        self.ending_calls: dict[int, int] = {}  # the same of the functions called at a pc
        self.after: dict[int, frozenset[int]] = {}  # blocks after a block, as asked for
        self.waiting: set[int] = set()  # blocks to be looked at again
        self.order: list[int] = []  # the same as a heap

    def solve(self) -> None:
        """Until no block changes anything."""
        for start in (0, *(self.structure.functions[f][0] for f in self.frames.callbacks)):
            self._merge(self.graph.block_of[start], [0] * _REGISTERS)
        while self.order:
            index = heappop(self.order)
            self.waiting.discard(index)
            registers = self.entry[index]
            if registers is not None:
                self._block(self.graph.blocks[index], registers)

    def pcs(self, loads: int) -> list[int]:
        """The loads of a set by pc."""
        return [pc for index, pc in enumerate(self.sources) if loads >> index & 1]

    def guard(self, pc: int) -> int:
        """The loads that decide whether an instruction runs."""
        return self.guards[self.graph.block_of[pc]] | self.called[self.structure.function_of[pc]]

    def cut(self, pc: int) -> int:
        """The loads that decide whether a budget ends the program before an instruction runs."""
        block_of = self.graph.block_of
        loads = self.cuts[block_of[pc]] | self.cut_calls[self.structure.function_of[pc]]
        for call, ending in self.ending_calls.items():
            if call < pc and block_of[call] == block_of[pc]:
                loads |= ending
        return loads

    def pointed(self, step: Step, register: int, size: int = STACK_SIZE) -> int:
        """What the stack bytes behind ``register`` may depend on; of a helper's buffer, ``size``
        bytes."""
        places = self._places(step, register)
        found = 0
        if _ANYWHERE in places:
            for loads in self.slots.values():
                found |= loads
            return found
        if places:
            found = self.slots.get(_ANYWHERE, 0)
        for place in places:
            found |= self.slots.get(place, 0)
        if step.kind is _CALL:  # a buffer, which may begin inside its first slot
            more = -(-size // SLOT)
            for (function, slot), loads in self.slots.items():
                if any(function == own and 0 <= slot - at <= more for own, at in places):
                    found |= loads
        return found

    def _places(self, step: Step, register: int) -> frozenset[tuple[int, int]]:
        """The stack slots that an instruction may reach through ``register``; none if no stack."""
        operand = self.frames.operand(step.pc, register)
        if operand is None or Region.STACK not in operand.regions:
            return frozenset()
        if len(operand.regions) > 1 or operand.offset is None or operand.frame is None:
            return frozenset({_ANYWHERE})
        offset = operand.offset + (step.off if step.kind is not _CALL else 0)
        functions = self.frames.owners(step, operand.frame)
        return frozenset((function, offset // SLOT) for function in functions)

    # Blocks

    def _again(self, block: int) -> None:
        """Something changed that a block depends on."""
        if block not in self.waiting:
            self.waiting.add(block)
            heappush(self.order, block)

    def _note(self, table: list[int], index: int, loads: int) -> None:
        """Add to an entry of a table that any block may read."""
        if loads & ~table[index]:
            table[index] |= loads
            if len(table) > 1:  # other functions read it
                self._everything()

    def _everything(self) -> None:
        for block in range(len(self.entry)):
            self._again(block)

    def _merge(self, block: int, registers: list[int]) -> None:
        known = self.entry[block]
        if known is None:
            self.entry[block] = registers.copy()
            self._again(block)
        elif registers != known:
            merged = [a | b for a, b in zip(known, registers, strict=True)]
            if merged != known:
                self.entry[block] = merged
                self._again(block)

    def _block(self, block: Block, before: list[int]) -> None:
        joined = self.joined.get(block.index)
        if joined is None:
            registers = before.copy()
        else:
            registers = [a | b for a, b in zip(before, joined, strict=True)]
        held = sum(1 << index for index, loads in enumerate(registers) if loads)
        for step in block.steps:
            kind, reads, writes = step.kind, step.reads, step.writes
            if kind in _COMPUTED:
                if reads & held:
                    loads = registers[step.src] if step.register else 0
                    if reads >> step.dst & 1:
                        loads |= registers[step.dst]
                    registers[step.dst] = loads
                    held |= writes
                elif writes & held:
                    registers[step.dst] = 0
                    held &= ~writes
                continue
            numbers = 0
            if kind in _STORES:
                self._store(step, registers)
            elif kind is _EXIT:
                self._note(self.returned, block.function, registers[0])
            elif kind is _CALL:
                numbers = self._call(block, step, registers)
            if writes:
                loads = self._made(step, numbers)
                if loads or writes & held:
                    for register in range(_REGISTERS):
                        if writes >> register & 1:
                            registers[register] = 0
                    registers[0 if kind is _CALL else writes.bit_length() - 1] = loads
                    held = sum(1 << index for index, loads in enumerate(registers) if loads)
        last = block.last
        if last.op is JmpOp.JCOND or block.steps[0].pc in self.budget.loops:
            self._take(block, self.guard(last.pc))
        if last.kind is _JUMP and last.reads & held and len(block.successors) > 1:
            self._part(block, registers[last.dst] | (registers[last.src] if last.register else 0))
        for successor in block.successors:
            self._merge(successor, registers)

    def _made(self, step: Step, numbers: int) -> int:
        """What a load, a call or an atomic leaves in its register depends on; ``numbers`` are what
        those that a helper takes depend on."""
        if step.kind in _LOADS:
            return self.pointed(step, step.src) | self.bits.get(step.pc, 0)
        if step.kind is _CALL:
            if step.src == CallSrc.LOCAL:
                return self.returned[self.structure.function_of[step.target]]
            return numbers | (self._called_back() if calls_back(step) else 0)
        # The fetched value of a stack atomic is what was stored there.
        return self.pointed(step, step.dst)

    def _called_back(self) -> int:
        """What decides how often a helper calls back: which callback it is, is not asked."""
        found = 0
        for function in self.frames.callbacks:
            found |= self.returned[function]
        return found

    def _store(self, step: Step, registers: list[int]) -> None:
        # Whether the old value stays depends on what led here.
        loads = self.guard(step.pc)
        if step.kind is not Kind.STORE_IMM:
            self.stored[step.pc] = registers[step.src]
            loads |= registers[step.src]
        for place in self._places(step, step.dst):
            if loads & ~self.slots.get(place, 0):
                self.slots[place] = self.slots.get(place, 0) | loads
                self._everything()

    def _call(self, block: Block, step: Step, registers: list[int]) -> int:
        """What a function gets that is called here, itself or by a helper.

        Gives the loads that the numbers depend on which a helper takes."""
        guard, numbers = self.guard(step.pc), 0
        called: Iterable[int] = ()
        if step.src == CallSrc.LOCAL:
            entered = [0, *registers[1:6], 0, 0, 0, 0, 0]
            self._merge(self.graph.block_of[step.target], entered)
            called = (self.structure.function_of[step.target],)
        else:
            helper = HELPERS.get(step.imm)
            for position, kind in enumerate(() if helper is None else helper.args):
                if kind in _NUMBERS:
                    numbers |= registers[position + 1]
            if calls_back(step):
                called = self.frames.callbacks
                guard |= numbers  # how often it calls
            if step.pc in self.budget.calls:
                self._take(block, guard | self._called_back())
        for function in called:
            self._note(self.called, function, guard)
            self._note(self.cut_calls, function, self.cut(step.pc))
            if self.ending[function]:
                known = self.ending_calls.get(step.pc, 0)
                self.ending_calls[step.pc] = known | self.ending[function]
                self._may_end(block, self.ending[function])
        return numbers

    # Budgets

    def _take(self, block: Block, loads: int) -> None:
        """A token is taken in ``block``, as often as ``loads`` decide."""
        if loads & ~self.tokens[0]:
            self.tokens[0] |= loads
            self._everything()
        tokens = self.tokens[0]
        if block.steps[0].pc in self.budget.loops:
            self._may_end(block, tokens)
        if block.last.op is JmpOp.JCOND and len(block.successors) > 1:
            self._part(block, tokens)

    def _may_end(self, block: Block, loads: int) -> None:
        """The program may end in ``block``: whatever comes after it depends on ``loads``."""
        for index in self._after(block.index):
            if loads & ~self.cuts[index]:
                self.cuts[index] |= loads
                self._again(index)
        self._note(self.ending, block.function, loads)

    def _after(self, block: int) -> frozenset[int]:
        """The blocks of a function that may run after ``block`` does: itself too, where it is in a
        loop."""
        found = self.after.get(block)
        if found is None:
            seen: set[int] = set()
            work = [*self.graph.blocks[block].successors]
            while work:
                index = work.pop()
                if index not in seen:
                    seen.add(index)
                    work += self.graph.blocks[index].successors
            found = self.after[block] = frozenset(seen)
        return found

    def _part(self, block: Block, loads: int) -> None:
        """A branch that depends on ``loads``: so does what happens until its ways meet."""
        known = self.parted.get(block.index, 0)
        if not loads & ~known:
            return
        loads = self.parted[block.index] = known | loads
        graph = self.graph
        region, meets = graph.region(block.index), graph.meets[block.index]
        written = 0
        for index in region:
            if loads & ~self.guards[index]:
                self.guards[index] |= loads
                self._again(index)
            for step in graph.blocks[index].steps:
                written |= step.writes
        for index in region | ({meets} if meets != END else set()):
            if index == meets or len(graph.blocks[index].predecessors) > 1:
                joined = self.joined.setdefault(index, [0] * _REGISTERS)
                for register in range(_REGISTERS):
                    if written >> register & 1:
                        joined[register] |= loads
                self._again(index)
        if meets == END and written & 1:
            self._note(self.returned, block.function, loads)
