"""P8: no update of memory that threads share is lost.

Map values are shared by many threads, so load, compute, store loses the updates that come between.
A dataflow follows every value loaded from a writable map through registers and stack slots, and
through branches: what is written, and whether a store happens, between a branch and the place where
its ways meet depends on what the branch compared (context of calls is merged).  A store into the
slot that it depends on is refused, unless it was recognised as a read-modify-write that becomes an
atomic, or one thread alone writes the place (``threads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from egpu.bpf.helpers import HELPERS, Arg
from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, Kind
from egpu.bpf.maptypes import traits
from egpu.verifier import linear
from egpu.verifier.control import END, Graph
from egpu.verifier.frames import Frames, calls_back
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Setting
from egpu.verifier.state import SLOT
from egpu.verifier.structure import Step
from egpu.verifier.threads import Threads
from egpu.verifier.verified import Operand, Region, Rmw, Uniformity

_Loads = frozenset[int]  # pcs of loads that a value depends on
_NONE: _Loads = frozenset()
_Registers = tuple[_Loads, ...]
_NOTHING: _Registers = (_NONE,) * 11
_Text = Callable[[Setting, Operand, int], str]
_Key = TypeVar("_Key")
_ANYWHERE = (-1, 0)  # stack bytes whose place is not known
# Where grids and blocks have one dimension these are all indices that differ.
_LINE = frozenset({"thread_x", "block_x"})


@dataclass(frozen=True, slots=True)
class Known:
    """What the passes before this one found."""

    setting: Setting
    graph: Graph
    frames: Frames
    threads: Threads
    launch: Uniformity
    rmw: Mapping[int, Rmw]


def check(known: Known) -> Iterator[Refusal]:
    """Refuse lost updates (rule P8); gives the warnings."""
    taken = {match.load_pc for match in known.rmw.values()}
    sources = {
        pc
        for (pc, register), operand in known.frames.operands.items()
        if pc not in taken and _is_shared_load(known.setting, pc, register, operand)
    }
    writes = [write for write in _writes(known) if write.step.pc not in known.rmw]
    if sources:
        yield from _Flow(known, sources, writes).check()
    yield from _chances(known, writes)


def _is_shared_load(setting: Setting, pc: int, register: int, operand: Operand) -> bool:
    step = setting.structure.step(pc)
    if step.kind not in (Kind.LOAD, Kind.LOAD_SIGNED) or register != step.src:
        return False
    if Region.MAP_VALUE not in operand.regions:
        return False
    return operand.map is None or not (
        setting.map(operand.map).read_only or _per_thread(setting, operand)
    )


def _per_thread(setting: Setting, operand: Operand) -> bool:
    """Whether a place is certainly in a map of which each thread has its own values."""
    return operand.map is not None and traits(setting.map(operand.map).type).per_thread


@dataclass(frozen=True, slots=True)
class _Write:
    """An instruction that writes map memory behind ``register``; ``value`` is the argument that
    points to what a helper writes, 0 for instructions."""

    step: Step
    register: int
    target: Operand
    value: int = 0


def _writes(known: Known) -> Iterator[_Write]:
    for step in known.setting.structure.steps:
        if step is None:
            continue
        register, value = step.dst, 0
        if step.kind is Kind.CALL and step.src == CallSrc.HELPER and step.imm in HELPERS:
            arguments = HELPERS[step.imm].args
            if Arg.VALUE not in arguments:
                continue
            register, value = arguments.index(Arg.MAP) + 1, arguments.index(Arg.VALUE) + 1
        elif step.kind not in (Kind.STORE_REG, Kind.STORE_IMM, Kind.ATOMIC):
            continue
        target = known.frames.operand(step.pc, register)
        if target is None or _per_thread(known.setting, target):
            continue
        if target.regions & {Region.MAP_VALUE, Region.MAP_POINTER}:
            yield _Write(step, register, target, value)


class _Flow:
    """The dataflow: which loads each register, stack slot and place in the code may depend on."""

    def __init__(self, known: Known, sources: set[int], writes: list[_Write]) -> None:
        self.known = known
        self.setting = known.setting
        self.structure = known.setting.structure
        self.operands = known.frames.operands
        self.sources = sources
        self.writes = writes
        self.before: dict[int, _Registers] = {0: (_NONE,) * 11}
        self.slots: dict[tuple[int, int], _Loads] = {}
        self.returned: dict[int, _Loads] = {}  # function -> r0
        self.regions: dict[int, frozenset[int]] = {}  # blocks that a branch decides about
        self.joined: dict[int, _Registers] = {}  # first pc of a block -> what its ways bring
        self.parted: dict[int, _Loads] = {}  # branch -> loads that it depends on
        self.guards: dict[int, _Loads] = {}  # block -> loads that decide whether it runs
        self.called: dict[int, _Loads] = {}  # function -> loads that decide whether it runs
        for function in known.frames.callbacks:
            self.before[self.structure.functions[function][0]] = (_NONE,) * 11

    def check(self) -> Iterator[Refusal]:
        """Solve, then look at every store."""
        while self._round():
            pass
        for write in self.writes:
            step = write.step
            if step.kind is Kind.ATOMIC or step.pc not in self.before:
                continue
            loads = _NONE
            if step.kind is Kind.STORE_REG:
                loads = self.before[step.pc][step.src]
            elif write.value:
                loads = self._pointed(step, write.value)
            yield from self._judge(write, loads, _lost_text)
            yield from self._judge(write, self._guard(step.pc) - loads, _guarded_text)

    def _guard(self, pc: int) -> _Loads:
        block = self.known.graph.block_of[pc]
        function = self.structure.function_of[pc]
        return self.guards.get(block, _NONE) | self.called.get(function, _NONE)

    def _round(self) -> bool:
        """Propagate once through every instruction; whether anything changed."""
        changed = False
        for pc in range(len(self.structure.steps)):
            step = self.structure.steps[pc]
            if step is None or pc not in self.before:
                continue
            before = self.before[pc]
            changed |= self._store(step, before)
            after = self._after(step, before)
            if step.kind is Kind.CALL and step.src == CallSrc.LOCAL:
                entered = (_NONE, *before[1:6], *(_NONE,) * 5)
                changed |= self._merge(step.target, entered)
                callee = self.structure.function_of[step.target]
                changed |= _grow(self.called, callee, self._guard(pc))
            if calls_back(step):
                for function in self.known.frames.callbacks:
                    changed |= _grow(self.called, function, self._guard(pc))
            if step.kind is Kind.EXIT:
                function = self.structure.function_of[pc]
                changed |= _grow(self.returned, function, before[0])
            if step.kind is Kind.JUMP:
                compared = before[step.dst] | (before[step.src] if step.register else _NONE)
                changed |= self._part(step, compared)
            for successor in self.structure.successors(step):
                changed |= self._merge(successor, after)
        return changed

    def _part(self, step: Step, loads: _Loads) -> bool:
        """A branch that depends on ``loads``: so does what happens until its ways meet."""
        graph = self.known.graph
        block = graph.block_of[step.pc]
        if len(graph.blocks[block].successors) < 2 or not _grow(self.parted, block, loads):
            return False
        loads = self.parted[block]
        if block not in self.regions:
            self.regions[block] = graph.region(block)
        region, meets = self.regions[block], graph.meets[block]
        written = 0
        for index in region:
            _grow(self.guards, index, loads)
            for inside in graph.blocks[index].steps:
                written |= inside.writes
        for index in region | ({meets} if meets != END else set()):
            if index == meets or len(graph.blocks[index].predecessors) > 1:
                first = graph.blocks[index].steps[0].pc
                known = self.joined.get(first, _NOTHING)
                self.joined[first] = tuple(
                    own | loads if written >> register & 1 else own
                    for register, own in enumerate(known)
                )
        if meets == END and written & 1:
            _grow(self.returned, self.structure.function_of[step.pc], loads)
        return True

    def _merge(self, pc: int, registers: _Registers) -> bool:
        known = self.before.get(pc)
        if registers == known and pc not in self.joined:
            return False
        joined = self.joined.get(pc, _NOTHING)
        merged = tuple(
            a | b | c for a, b, c in zip(known or _NOTHING, registers, joined, strict=True)
        )
        self.before[pc] = merged
        return merged != known

    def _after(self, step: Step, before: _Registers) -> _Registers:
        lost = step.writes
        after = [_NONE if lost >> index & 1 else loads for index, loads in enumerate(before)]
        match step.kind:
            case Kind.ALU:
                own = _NONE if step.op is AluOp.MOV else before[step.dst]
                after[step.dst] = own | (before[step.src] if step.register else _NONE)
            case Kind.BYTE_ORDER:
                after[step.dst] = before[step.dst]
            case Kind.LOAD | Kind.LOAD_SIGNED:
                loads = self._pointed(step, step.src)
                after[step.dst] = loads | ({step.pc} if step.pc in self.sources else _NONE)
            case Kind.ATOMIC if step.imm & 1:
                # The fetched value of a stack atomic is what was stored there.
                after[0 if step.imm == AtomicOp.CMPXCHG else step.src] = self._pointed(
                    step, step.dst
                )
            case Kind.CALL if step.src == CallSrc.LOCAL:
                callee = self.structure.function_of[step.target]
                after[0] = self.returned.get(callee, _NONE)
        return tuple(after)

    def _place(self, step: Step, register: int) -> tuple[int, int] | None:
        """The stack slot that an instruction reaches through ``register``, None if no stack."""
        operand = self.operands.get((step.pc, register))
        if operand is None or Region.STACK not in operand.regions:
            return None
        if operand.regions != {Region.STACK} or operand.offset is None or operand.frame != 0:
            return _ANYWHERE
        offset = step.off if step.kind is not Kind.CALL else 0
        return self.structure.function_of[step.pc], (operand.offset + offset) // SLOT

    def _pointed(self, step: Step, register: int) -> _Loads:
        """What the stack bytes behind ``register`` may depend on."""
        place = self._place(step, register)
        if place is None:
            return _NONE
        if place == _ANYWHERE:
            return _NONE.union(*self.slots.values())
        found = self.slots.get(place, _NONE) | self.slots.get(_ANYWHERE, _NONE)
        if step.kind is Kind.CALL:  # a buffer: from its first slot upwards
            found = found.union(
                *(
                    loads
                    for (function, slot), loads in self.slots.items()
                    if function == place[0] and slot >= place[1]
                )
            )
        return found

    def _store(self, step: Step, before: _Registers) -> bool:
        if step.kind not in (Kind.STORE_REG, Kind.STORE_IMM, Kind.ATOMIC):
            return False
        place = self._place(step, step.dst)
        if place is None:
            return False
        # Whether the old value stays depends on what led here.
        loads = self._guard(step.pc)
        if step.kind is not Kind.STORE_IMM:
            loads |= before[step.src]
        return _grow(self.slots, place, loads)

    # Verdicts

    def _judge(self, write: _Write, loads: _Loads, text: _Text) -> Iterator[Refusal]:
        """Refuse a store that depends on what its own place held; gives warnings."""
        for pc in sorted(loads):
            load = self.structure.step(pc)
            if not self._same_slot(write, load):
                continue
            owner = _owner(self.known, self.writes, write, load)
            if owner >= linear.INDICES:
                continue
            message = text(self.setting, write.target, pc)
            if owner >= _LINE:
                yield Refusal("P8", message, write.step.pc, _LINE_HINT)
                return
            if text is _guarded_text and write.step.kind is Kind.STORE_IMM:
                yield Refusal("P8", message, write.step.pc, _FLAG_HINT)
                return
            raise Refusal("P8", message, write.step.pc, self._hint(write.target, text))

    def _hint(self, target: Operand, text: _Text) -> str:
        if text is _guarded_text:
            return _GUARD_HINT
        if target.map is not None and traits(self.setting.map(target.map).type).per_sm:
            return _PER_SM_HINT
        return _SHARED_HINT

    def _same_slot(self, write: _Write, load: Step) -> bool:
        step, target, source = write.step, write.target, self.operands[load.pc, load.src]
        if target.map is not None and source.map is not None and target.map != source.map:
            return False
        if write.value or target.offset is None or source.offset is None:
            return True
        first, other = target.offset + step.off, source.offset + load.off
        return first < other + load.width // 8 and other < first + step.width // 8


def _owner(known: Known, writes: list[_Write], write: _Write, load: Step) -> frozenset[str]:
    """The indices that all threads share that write where ``write`` does, as far as all writes to
    the map agree; none if another thread may."""
    threads = known.threads
    slot = threads.slots.get((write.step.pc, write.register))
    partition = slot.indices if slot is not None else frozenset()
    if partition and threads.slots.get((load.pc, load.src)) != slot:
        return frozenset()
    owner = threads.owner(write.step.pc, write.register)
    for other in writes:
        if other.target.map is not None and other.target.map != write.target.map:
            continue
        place = threads.slots.get((other.step.pc, other.register))
        if (place.indices if place is not None else frozenset()) != partition:
            return frozenset()
        owner &= threads.owner(other.step.pc, other.register)
    return owner


def _chances(known: Known, writes: list[_Write]) -> Iterator[Refusal]:
    """Warn of plain stores of what differs between threads to a place that they share."""
    for write in writes:
        step = write.step
        if step.kind is not Kind.STORE_REG or step.pc not in known.launch.varying:
            continue
        if known.launch.register_varies(step.pc, step.src):
            if known.threads.owner(step.pc, write.register) >= _LINE:
                continue
            name = _name(known.setting, write.target)
            yield Refusal(
                "P8",
                f"threads store different values to one place of {name}: which one stays is chance",
                step.pc,
                "use an atomic, let one thread store, or give each thread its place",
            )


def _grow(table: dict[_Key, _Loads], key: _Key, loads: _Loads) -> bool:
    """Add to an entry of a table; whether that changed it."""
    known = table.get(key, _NONE)
    if loads <= known:
        return False
    table[key] = known | loads
    return True


_SHARED_HINT = "use an atomic, such as __sync_fetch_and_add"
_PER_SM_HINT = (
    "use an atomic, or write *v op= n with one of + - & | ^ on 4 or 8 bytes "
    "and do not use the result"
)
_GUARD_HINT = "test and store in one: __sync_val_compare_and_swap, in a bounded loop for a maximum"
_FLAG_HINT = "several threads may pass the test before one stores: let one be enough"
_LINE_HINT = "right in launches of one dimension only: tell y and z of threads and blocks apart too"


def _name(setting: Setting, target: Operand) -> str:
    return "a map" if target.map is None else f"map {setting.map(target.map).name}"


def _lost_text(setting: Setting, target: Operand, pc: int) -> str:
    return (
        f"what insn {pc} loaded from {_name(setting, target)} is changed and stored back: "
        "updates by other threads in between are lost"
    )


def _guarded_text(setting: Setting, target: Operand, pc: int) -> str:
    return (
        f"whether this is stored depends on what insn {pc} loaded from "
        f"{_name(setting, target)}: updates by other threads in between are lost"
    )
