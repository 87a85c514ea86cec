"""Who executes an instruction, and whose memory it touches: single writers and slots of one thread.

A dataflow that follows numbers made of thread and block indices, pointers into maps reached by
such numbers, and the indices that comparisons have pinned to one value.  A store under
``thread_x == 0 && block_x == 0 ...`` is made by one thread of a launch; a slot whose key is the
number of the thread belongs to one thread.  Everything is what holds on every way.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from egpu.bpf.context import field_at
from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import AluOp, CallSrc, JmpOp, Kind
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import Level, PseudoSrc
from egpu.verifier import linear
from egpu.verifier.control import Block, Graph
from egpu.verifier.frames import Frames, byte_mask
from egpu.verifier.linear import Linear
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region


class Zero(NamedTuple):
    """A number that is 0 only if all of these indices are."""

    indices: frozenset[str]


class Slot(NamedTuple):
    """A place in a map: the reference in it that the pointer was made from, its distance from
    there, the indices that tell such places apart, and how far apart they are (0: whole values)."""

    origin: int
    offset: int
    indices: frozenset[str]
    step: int


Symbol = Linear | Zero | Slot | None
_Stack = dict[tuple[int, int], Symbol]  # (offset, size) in the running frame


class _State(NamedTuple):
    registers: tuple[Symbol, ...]
    stack: tuple[tuple[tuple[int, int], Symbol], ...]
    pinned: frozenset[str]


class Threads(NamedTuple):
    """Before each instruction: the pinned indices, and where its base register points in a map."""

    pinned: dict[int, frozenset[str]]
    slots: dict[tuple[int, int], Slot]

    def owner(self, pc: int, register: int) -> frozenset[str]:
        """The indices in which two threads that touch the same place must be equal."""
        slot = self.slots.get((pc, register))
        own = self.pinned.get(pc, frozenset())
        return own | slot.indices if slot is not None else own


_UNKNOWN: tuple[Symbol, ...] = (None,) * 11
_KEY = 4  # bytes of an array's key
# Looking a member up in its class takes longer than comparing with it.
_ALU, _CALL, _LOAD, _LOAD_IMM64 = Kind.ALU, Kind.CALL, Kind.LOAD, Kind.LOAD_IMM64
_STORES = frozenset({Kind.STORE_REG, Kind.STORE_IMM, Kind.ATOMIC})
# Helpers that give indices or extents through their three pointers.
_VECTORS = {503: "block_", 504: "block_dim_", 505: "thread_", 508: "grid_"}
_LOOKUP = 1


def analyse(setting: Setting, graph: Graph, frames: Frames) -> Threads:
    """The threads of every instruction."""
    return _Flow(setting, graph, frames).run()


class _Flow:
    def __init__(self, setting: Setting, graph: Graph, frames: Frames) -> None:
        self.setting = setting
        self.graph = graph
        self.frames = frames
        self.entry: list[_State | None] = [None] * len(graph.blocks)
        self.waiting: set[int] = set()  # blocks to be looked at again
        self.order: list[int] = []  # the same as a heap

    def run(self) -> Threads:
        points = self.setting.program.attach
        one_a_block = bool(points) and all(point.level is Level.BLOCK for point in points)
        pinned = linear.THREADS if one_a_block else frozenset()
        self._merge(0, _State(_UNKNOWN, (), pinned))
        for function in self.frames.callbacks:
            start = self.setting.structure.functions[function][0]
            self._merge(self.graph.block_of[start], _State(_UNKNOWN, (), frozenset()))
        while self.order:
            index = heappop(self.order)
            self.waiting.discard(index)
            state = self.entry[index]
            if state is not None:
                self._block(self.graph.blocks[index], state)
        return self._result()

    def _result(self) -> Threads:
        found = Threads({}, {})
        for block in self.graph.blocks:
            state = self.entry[block.index]
            if state is None:
                continue
            registers, stack = list(state.registers), dict(state.stack)
            for step in block.steps:
                found.pinned[step.pc] = state.pinned
                if step.kind is not _ALU:
                    for register, symbol in enumerate(registers):
                        if type(symbol) is Slot:
                            found.slots[step.pc, register] = symbol
                self._step(step, registers, stack)
        return found

    def _merge(self, block: int, state: _State) -> None:
        known = self.entry[block]
        merged = state
        if known is not None:
            other = dict(state.stack)
            merged = _State(
                tuple(
                    a if a == b else None
                    for a, b in zip(known.registers, state.registers, strict=True)
                ),
                tuple((place, s) for place, s in known.stack if other.get(place) == s),
                known.pinned & state.pinned,
            )
        if merged != known:
            self.entry[block] = merged
            if block not in self.waiting:
                self.waiting.add(block)
                heappush(self.order, block)

    def _block(self, block: Block, state: _State) -> None:
        registers, stack = list(state.registers), dict(state.stack)
        for step in block.steps:
            if step.kind is _CALL and step.src == CallSrc.LOCAL:
                entered = (None, *registers[1:6], *(None,) * 5)
                target = self.graph.block_of[step.target]
                self._merge(target, _State(entered, (), state.pinned))
            self._step(step, registers, stack)
        for successor in block.successors:
            pinned = state.pinned
            if block.last.kind is Kind.JUMP and len(block.successors) > 1:
                jumps = self.graph.block_of[block.last.target] == successor
                pinned |= _pinned_by(block.last, registers, jumps=jumps)
            kept = tuple(
                sorted((item for item in stack.items() if item[1] is not None), key=_place)
            )
            self._merge(successor, _State(tuple(registers), kept, pinned))

    # Instructions

    def _step(self, step: Step, registers: list[Symbol], stack: _Stack) -> None:
        """Apply ``step`` in place."""
        kind = step.kind
        if kind is _ALU:
            registers[step.dst] = _computed(step, registers)
        elif kind is _LOAD:
            registers[step.dst] = self._loaded(step, stack)
        elif kind is _LOAD_IMM64:
            registers[step.dst] = self._constant(step)
        elif kind is _CALL:
            registers[0] = self._call(step, stack)
            registers[1:6] = _UNKNOWN[1:6]
        else:
            if kind in _STORES:
                self._store(step, registers, stack)
            lost = step.writes
            for register in range(11 if lost else 0):
                if lost >> register & 1:
                    registers[register] = None

    def _loaded(self, step: Step, stack: _Stack) -> Symbol:
        operand = self.frames.operand(step.pc, step.src)
        if operand is None or operand.offset is None or len(operand.regions) != 1:
            return None
        offset, size = operand.offset + step.off, step.width // 8
        if operand.regions == {Region.CONTEXT}:
            found = field_at(offset, size, self.setting.fields)
            if found is not None and found.name in linear.NAMES and found.size == size:
                return linear.field(found.name)
        if operand.regions == {Region.STACK} and operand.frame == 0:
            symbol = stack.get((offset, size))
            if symbol is None and size == _KEY:  # the low half of a number of 8 bytes
                symbol = stack.get((offset, 2 * _KEY))
                return symbol if isinstance(symbol, Linear) else None
            return symbol
        return None

    def _constant(self, step: Step) -> Symbol:
        if step.src == PseudoSrc.CONST:
            high = self.setting.program.code[step.pc + 1].imm
            return linear.number((high & 0xFFFFFFFF) << 32 | step.imm & 0xFFFFFFFF)
        if step.src == PseudoSrc.MAP_INDEX_VALUE:
            offset = self.setting.program.code[step.pc + 1].imm
            return Slot(-1 - step.imm, offset, frozenset(), 0)
        return None

    def _store(self, step: Step, registers: list[Symbol], stack: _Stack) -> None:
        place = self.frames.place(step, step.dst, step.width // 8)
        if place is None or self.setting.structure.function_of[step.pc] not in place.functions:
            return
        operand = self.frames.operand(step.pc, step.dst)
        if not place.exact or operand is None or operand.offset is None:
            stack.clear()
            return
        offset, size = operand.offset + step.off, step.width // 8
        _forget(stack, offset, size)
        if step.kind is Kind.STORE_IMM:
            stack[offset, size] = linear.number(step.imm)
        elif step.kind is Kind.STORE_REG:
            stack[offset, size] = registers[step.src]

    def _call(self, step: Step, stack: _Stack) -> Symbol:
        helper = HELPERS.get(step.imm) if step.src == CallSrc.HELPER else None
        if helper is None:
            stack.clear()  # a function that is called may have a pointer to it
            return None
        found = self._looked_up(step, stack) if helper.id == _LOOKUP else None
        if self.frames.callbacks:
            stack.clear()
        written = 0
        for place in self.frames.written(step):
            written |= place.bytes
        for known in [place for place in stack if byte_mask(*place) & written]:
            del stack[known]
        for position, axis in enumerate(linear.AXES if helper.id in _VECTORS else ""):
            operand = self.frames.operand(step.pc, position + 1)
            if operand is not None and operand.offset is not None:
                exact = operand.regions == {Region.STACK} and operand.frame == 0
                if exact:
                    stack[operand.offset, 8] = linear.field(_VECTORS[helper.id] + axis)
        return found

    def _looked_up(self, step: Step, stack: _Stack) -> Symbol:
        target, key = self.frames.operand(step.pc, 1), self.frames.operand(step.pc, 2)
        if target is None or target.map is None or key is None or key.offset is None:
            return None
        if traits(self.setting.map(target.map).type).storage is not Storage.ARRAY:
            return None
        if key.regions != {Region.STACK} or key.frame != 0:
            return None
        symbol = stack.get((key.offset, _KEY)) or stack.get((key.offset, 2 * _KEY))
        told = linear.digits(symbol) if isinstance(symbol, Linear) else None
        return Slot(step.pc, 0, told.indices if told else frozenset(), 0)


def _place(item: tuple[tuple[int, int], Symbol]) -> tuple[int, int]:
    return item[0]


def _forget(stack: _Stack, offset: int, size: int) -> None:
    for place in [p for p in stack if p[0] < offset + size and offset < p[0] + p[1]]:
        del stack[place]


def _computed(step: Step, registers: list[Symbol]) -> Symbol:
    right: Symbol = registers[step.src] if step.register else linear.number(step.imm)
    if step.op is AluOp.MOV:
        # A sign-extending move of an index, which is below 2^31, changes nothing.
        return right if not step.off or step.off == 32 else None
    left = registers[step.dst]
    if step.op is AluOp.ADD and isinstance(left, Linear) and isinstance(right, Slot):
        left, right = right, left
    if isinstance(left, Slot):
        return _advanced(step, left, right)
    if step.op is AluOp.OR:
        return _either(left, right)
    if not isinstance(left, Linear) or not isinstance(right, Linear):
        return None
    constant = right.constant
    match step.op:
        case AluOp.ADD:
            return linear.add(left, right)
        case AluOp.SUB:
            return linear.add(left, right, -1)
        case AluOp.MUL:
            return linear.multiply(left, right)
        case AluOp.LSH if constant is not None and 0 <= constant < 64:
            return linear.multiply(left, linear.number(1 << constant))
        # Exact only: of x << 32 >> 32, as compilers write a zero extension.
        case AluOp.RSH | AluOp.ARSH if constant is not None and 0 <= constant < 64:
            return linear.divide(left, 1 << constant)
        case _:
            return None


def _advanced(step: Step, slot: Slot, by: Symbol) -> Symbol:
    """A pointer into a map plus or minus a number."""
    if not isinstance(by, Linear) or step.op not in (AluOp.ADD, AluOp.SUB):
        return None
    sign = -1 if step.op is AluOp.SUB else 1
    if by.constant is not None:
        return slot._replace(offset=slot.offset + sign * by.constant)
    fixed = dict(by.terms).get((), 0)
    told = linear.digits(by)
    if told is None or slot.step:
        return slot._replace(indices=frozenset(), step=0, offset=0, origin=step.pc)
    return Slot(slot.origin, slot.offset + sign * fixed, slot.indices | told.indices, told.step)


def _either(left: Symbol, right: Symbol) -> Symbol:
    """a | b is 0 only if both are."""
    both = [_zero_means(left), _zero_means(right)]
    return Zero(both[0] | both[1]) if any(both) else None


def _zero_means(symbol: Symbol) -> frozenset[str]:
    if isinstance(symbol, Zero):
        return symbol.indices
    return linear.zero_means(symbol) if isinstance(symbol, Linear) else frozenset()


def _pinned_by(step: Step, registers: list[Symbol], *, jumps: bool) -> frozenset[str]:
    """The indices that have one value on one way of a comparison with a constant."""
    equal = (JmpOp.JEQ, JmpOp.JNE)
    if step.register or step.op not in equal or jumps != (step.op is JmpOp.JEQ):
        return frozenset()
    symbol = registers[step.dst]
    if not step.imm and (found := _zero_means(symbol)):
        return found
    told = linear.digits(symbol) if isinstance(symbol, Linear) else None
    return told.indices if told else frozenset()
