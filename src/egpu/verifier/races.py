"""P8, the part that is checked now: no store of what was computed from the same slot.

Map values are shared by many threads, so load, compute, store loses the updates that come between.
A dataflow follows every value loaded from a writable map through registers and stack slots (context
of calls is merged); a store into the slot it came from is refused, unless it was recognised as a
read-modify-write that becomes an atomic.  Stores of other values (constants, clocks) pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, Kind
from egpu.bpf.maptypes import traits
from egpu.verifier.liveness import defines
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import SLOT
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region, Rmw

_MAP_UPDATE = 2  # bpf_map_update_elem: its r3 is a value that is stored
_Loads = frozenset[int]  # pcs of loads that a value depends on
_NONE: _Loads = frozenset()
_Registers = tuple[_Loads, ...]
_ANYWHERE = (-1, 0)  # stack bytes whose place is not known


def check(setting: Setting, recorder: Recorder, rmw: Mapping[int, Rmw]) -> None:
    """Refuse lost updates (rule P8)."""
    taken = {match.load_pc for match in rmw.values()}
    sources = {
        pc
        for (pc, register), operand in recorder.operands.items()
        if pc not in taken and _is_shared_load(setting, pc, register, operand)
    }
    if sources:
        _Flow(setting, recorder, sources).check()


def _is_shared_load(setting: Setting, pc: int, register: int, operand: Operand) -> bool:
    step = setting.structure.step(pc)
    if step.kind not in (Kind.LOAD, Kind.LOAD_SIGNED) or register != step.src:
        return False
    if Region.MAP_VALUE not in operand.regions:
        return False
    return operand.map is None or not setting.map(operand.map).read_only


class _Flow:
    """The dataflow: which loads each register and stack slot may depend on."""

    def __init__(self, setting: Setting, recorder: Recorder, sources: set[int]) -> None:
        self.setting = setting
        self.structure = setting.structure
        self.operands = recorder.operands
        self.sources = sources
        self.before: dict[int, _Registers] = {0: (_NONE,) * 11}
        self.slots: dict[tuple[int, int], _Loads] = {}
        self.returned: dict[int, _Loads] = {}  # function -> r0

    def check(self) -> None:
        """Solve, then look at every store."""
        while self._round():
            pass
        for pc in sorted(self.before):
            step = self.structure.step(pc)
            if step.kind is Kind.STORE_REG:
                self._check_store(step, self.before[pc][step.src], step.dst, step.off)
            elif step.kind is Kind.CALL and step.src == CallSrc.HELPER and step.imm == _MAP_UPDATE:
                self._check_store(step, self._pointed(step, 3), 1, None)

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
            if step.kind is Kind.EXIT:
                function = self.structure.function_of[pc]
                known = self.returned.get(function, _NONE)
                self.returned[function] = known | before[0]
                changed |= self.returned[function] != known
            for successor in self.structure.successors(step):
                changed |= self._merge(successor, after)
        return changed

    def _merge(self, pc: int, registers: _Registers) -> bool:
        known = self.before.get(pc)
        if known is None:
            self.before[pc] = registers
            return True
        merged = tuple(a | b for a, b in zip(known, registers, strict=True))
        self.before[pc] = merged
        return merged != known

    def _after(self, step: Step, before: _Registers) -> _Registers:
        lost = defines(step)
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
        if step.kind not in (Kind.STORE_REG, Kind.ATOMIC):
            return False
        place = self._place(step, step.dst)
        if place is None:
            return False
        known = self.slots.get(place, _NONE)
        self.slots[place] = known | before[step.src]
        return self.slots[place] != known

    def _check_store(self, step: Step, loads: _Loads, register: int, off: int | None) -> None:
        """A store through ``register``; ``off`` None is a helper that stores a whole value."""
        target = self.operands.get((step.pc, register))
        if target is None or not target.regions & {Region.MAP_VALUE, Region.MAP_POINTER}:
            return
        for pc in sorted(loads):
            load = self.structure.step(pc)
            source = self.operands[pc, load.src]
            if self._same_slot(target, step, off, source, load):
                raise self._lost(step, target, pc)

    def _same_slot(
        self, target: Operand, step: Step, off: int | None, source: Operand, load: Step
    ) -> bool:
        if target.map is not None and source.map is not None and target.map != source.map:
            return False
        if off is None or target.offset is None or source.offset is None:
            return True
        first, other = target.offset + off, source.offset + load.off
        return first < other + load.width // 8 and other < first + step.width // 8

    def _lost(self, step: Step, target: Operand, pc: int) -> Refusal:
        if target.map is None:
            return Refusal("P8", _lost_text("a map", pc), step.pc, _SHARED_HINT)
        spec = self.setting.map(target.map)
        hint = _PER_SM_HINT if traits(spec.type).per_sm else _SHARED_HINT
        return Refusal("P8", _lost_text(f"map {spec.name}", pc), step.pc, hint)


_SHARED_HINT = "use an atomic, such as __sync_fetch_and_add"
_PER_SM_HINT = (
    "use an atomic, or write *v op= n with one of + - & | ^ on 4 or 8 bytes "
    "and do not use the result"
)


def _lost_text(name: str, pc: int) -> str:
    return (
        f"what insn {pc} loaded from {name} is changed and stored back: "
        "updates by other threads in between are lost"
    )
