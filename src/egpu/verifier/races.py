"""P8: no update of memory that threads share is lost.

Map values are shared by many threads, so load, compute, store loses the updates that come between.
``dependence`` follows every value loaded from a writable map.  A store into the slot that it
depends on is refused, unless it was recognised as a read-modify-write that becomes an atomic, or
one thread alone writes the place (``threads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from egpu.bpf.budget import Budget
from egpu.bpf.helpers import HELPERS, Arg
from egpu.bpf.isa import STACK_SIZE, AluOp, CallSrc, Kind
from egpu.bpf.maptypes import traits
from egpu.verifier import linear, threads
from egpu.verifier.control import Graph
from egpu.verifier.dependence import Dependence
from egpu.verifier.frames import Frames
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.threads import Threads
from egpu.verifier.verified import Operand, Region, Rmw, Uniformity

_Text = Callable[[str, int], str]  # of the map that was loaded from, and where
# Where grids and blocks have one dimension these are all indices that differ.
_LINE = frozenset({"thread_x", "block_x"})
_MAP_VALUE = Region.MAP_VALUE
_MAPS = frozenset({Region.MAP_VALUE, Region.MAP_POINTER, Region.INNER_MAP})


@dataclass(frozen=True)
class Known:
    """What the passes before this one found; ``threads`` and ``launch`` when they are asked for."""

    setting: Setting
    graph: Graph
    frames: Frames
    find_launch: Callable[[], Uniformity]
    rmw: Mapping[int, Rmw]
    budget: Budget | None

    @property
    def launch(self) -> Uniformity:
        return self.find_launch()

    @cached_property
    def threads(self) -> Threads:
        return threads.analyse(self.setting, self.graph, self.frames)


def check(known: Known) -> Iterator[Refusal]:
    """Refuse lost updates (rule P8); gives the warnings."""
    taken = {match.load_pc for match in known.rmw.values()}
    writes = [write for write in _writes(known) if write.step.pc not in known.rmw]
    if all(write.atomic for write in writes):
        return  # nothing can be lost
    operand, structure = known.frames.operand, known.setting.structure
    sources = frozenset(
        step.pc
        for step in structure.of_kind(Kind.LOAD, Kind.LOAD_SIGNED)
        if step.pc not in taken and _is_shared(known.setting, operand(step.pc, step.src))
    )
    if _may_meet(known, writes, sources):
        yield from _Judge(known, writes, sources).check()
    yield from _chances(known, writes)


def _is_shared(setting: Setting, operand: Operand | None) -> bool:
    """Whether memory that other threads may write lies behind a register."""
    if operand is None or _MAP_VALUE not in operand.regions:
        return False
    return operand.map is None or not (
        setting.map(operand.map).read_only or _per_thread(setting, operand)
    )


def _per_thread(setting: Setting, operand: Operand) -> bool:
    """Whether a place is certainly in a map of which each thread has its own values."""
    return operand.map is not None and traits(setting.map(operand.map).type).per_thread


class _Write(NamedTuple):
    """An instruction that writes map memory behind ``register``; ``value`` is the argument that
    points to what a helper writes, 0 for instructions and atomics."""

    step: Step
    register: int
    target: Operand
    value: int = 0

    @property
    def atomic(self) -> bool:
        """Whether it reads and writes in one step."""
        kind = self.step.kind
        return kind is Kind.ATOMIC or (kind is Kind.CALL and not self.value)


_CALL = Kind.CALL
_WRITING = Kind.STORE_REG, Kind.STORE_IMM, Kind.ATOMIC, Kind.CALL


def _writes(known: Known) -> Iterator[_Write]:
    for step in known.setting.structure.of_kind(*_WRITING):
        register, value = step.dst, 0
        if step.kind is _CALL:
            if step.src != CallSrc.HELPER or step.imm not in HELPERS:
                continue
            arguments = HELPERS[step.imm].args
            if Arg.VALUE in arguments and Arg.KEY in arguments:
                register, value = arguments.index(Arg.MAP) + 1, arguments.index(Arg.VALUE) + 1
            elif Arg.ATOMIC_U64 in arguments:
                register = arguments.index(Arg.ATOMIC_U64) + 1
            else:
                continue
        target = known.frames.operand(step.pc, register)
        if target is None or not target.regions & _MAPS:
            continue
        if not _per_thread(known.setting, target):
            yield _Write(step, register, target, value)


class _Judge:
    """Verdicts on the writes of a program."""

    def __init__(self, known: Known, writes: list[_Write], sources: frozenset[int]) -> None:
        self.known = known
        self.setting = known.setting
        self.structure = known.setting.structure
        self.writes = writes
        self.flow = Dependence(self.structure, known.graph, known.frames, sources, known.budget)

    def check(self) -> Iterator[Refusal]:
        """Solve, then look at every store."""
        flow = self.flow
        flow.solve()
        for write in self.writes:
            step = write.step
            if write.atomic or flow.entry[self.known.graph.block_of[step.pc]] is None:
                continue
            loads = flow.stored.get(step.pc, 0)
            if write.value:
                loads = flow.pointed(step, write.value, self._size(write))
            yield from self._judge(write, loads, _lost_text)
            guards = flow.guard(step.pc)
            yield from self._judge(write, guards & ~loads, _guarded_text)
            yield from self._judge(write, flow.cut(step.pc) & ~guards & ~loads, _cut_text)

    def _size(self, write: _Write) -> int:
        """The most bytes that a helper takes from behind ``write.value``."""
        index = write.target.map
        return STACK_SIZE if index is None else self.setting.map(index).value_size

    def _judge(self, write: _Write, loads: int, text: _Text) -> Iterator[Refusal]:
        """Refuse a store that depends on what its own place held; gives warnings."""
        for pc in self.flow.pcs(loads):
            load = self.structure.step(pc)
            if not _same_slot(self.known, write, load):
                continue
            owner = _owner(self.known, self.writes, write, load)
            if owner >= linear.INDICES:
                continue
            source = self.known.frames.operands[load.pc, load.src]
            message = text(_loaded_from(self.setting, source, write.target), pc)
            if owner >= _LINE:
                yield Refusal("P8", message, write.step.pc, _LINE_HINT)
                return
            if text is not _lost_text and write.step.kind is Kind.STORE_IMM:
                yield Refusal("P8", message, write.step.pc, _FLAG_HINT)
                return
            refusal = Refusal("P8", message, write.step.pc, self._hint(write.target, text))
            if not self.setting.limits.lost_updates:
                raise refusal
            yield refusal
            return

    def _hint(self, target: Operand, text: _Text) -> str:
        if text is _guarded_text:
            return _GUARD_HINT
        if text is _cut_text:
            return _CUT_HINT
        if target.map is not None and traits(self.setting.map(target.map).type).per_sm:
            return _PER_SM_HINT
        return _SHARED_HINT


def _may_meet(known: Known, writes: list[_Write], sources: frozenset[int]) -> bool:
    """Whether a plain write may be to a place that was loaded from."""
    loads = [known.setting.structure.step(pc) for pc in sources]
    return any(
        _same_slot(known, write, load) for write in writes if not write.atomic for load in loads
    )


def _same_slot(known: Known, write: _Write, load: Step) -> bool:
    """Whether a write may be to the place that ``load`` reads."""
    step, target = write.step, write.target
    source = known.frames.operands[load.pc, load.src]
    if target.map is not None and source.map is not None and target.map != source.map:
        return False
    if write.value or target.offset is None or source.offset is None:
        return True
    first, other = target.offset + step.off, source.offset + load.off
    return first < other + load.width // 8 and other < first + step.width // 8


def _owner(known: Known, writes: list[_Write], write: _Write, load: Step) -> frozenset[str]:
    """The indices that all threads share that write where ``write`` does, as far as all writes to
    the map agree; none if another thread may."""
    found = known.threads
    slot = found.slots.get((write.step.pc, write.register))
    partition = slot.indices if slot is not None else frozenset()
    if partition and found.slots.get((load.pc, load.src)) != slot:
        return frozenset()
    owner = found.owner(write.step.pc, write.register)
    for other in writes:
        if other.target.map is not None and other.target.map != write.target.map:
            continue
        place = found.slots.get((other.step.pc, other.register))
        if (place.indices if place is not None else frozenset()) != partition:
            return frozenset()
        owner &= found.owner(other.step.pc, other.register)
    return owner


def _chances(known: Known, writes: list[_Write]) -> Iterator[Refusal]:
    """Warn of plain stores of what differs between threads to a place that they share."""
    for write in writes:
        step = write.step
        if step.kind is not Kind.STORE_REG or _stores_constant(known.graph, step):
            continue
        if step.pc not in known.launch.varying:
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


def _stores_constant(graph: Graph, store: Step) -> bool:
    """Whether the register that is stored got a constant in the same basic block."""
    block = graph.blocks[graph.block_of[store.pc]]
    for step in reversed(block.steps):
        if step.pc < store.pc and step.writes >> store.src & 1:
            return step.kind is Kind.LOAD_IMM64 or (step.op is AluOp.MOV and not step.register)
    return False


_SHARED_HINT = "use an atomic, such as __sync_fetch_and_add"
_PER_SM_HINT = (
    "use an atomic, or write *v op= n with one of + - & | ^ on 4 or 8 bytes "
    "and do not use the result"
)
_GUARD_HINT = "test and store in one: __sync_val_compare_and_swap; egpu_atomic_max for a maximum"
_CUT_HINT = "limit the loop, as in if (n > 100) n = 100, or store before it"
_FLAG_HINT = "several threads may pass the test before one stores: let one be enough"
_LINE_HINT = "right in launches of one dimension only: tell y and z of threads and blocks apart too"


def _name(setting: Setting, target: Operand) -> str:
    return "a map" if target.map is None else f"map {setting.map(target.map).name}"


def _loaded_from(setting: Setting, source: Operand, target: Operand) -> str:
    """One instruction may load from several maps, as in the callback of two walks."""
    if source.map is not None or target.map is None:
        return _name(setting, source)
    return f"a map that may be {setting.map(target.map).name}"


def _lost_text(name: str, pc: int) -> str:
    return (
        f"what insn {pc} loaded from {name} is changed and stored back: "
        "updates by other threads in between are lost"
    )


def _cut_text(name: str, pc: int) -> str:
    return (
        f"how often a loop turns depends on what insn {pc} loaded from {name}, "
        "and its budget may end the program before this is stored: updates by other threads in "
        "between are lost"
    )


def _guarded_text(name: str, pc: int) -> str:
    return (
        f"whether this is stored depends on what insn {pc} loaded from "
        f"{name}: updates by other threads in between are lost"
    )
