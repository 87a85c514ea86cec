"""Where instructions touch stack memory, from the facts of the walk: for the dataflow passes.

Stack bytes of one frame are a bit set: bit i is the byte at r10 - 512 + i.  A pointer into another
frame belongs to a caller; which of them, the call graph says.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.bpf import isa
from egpu.bpf.helpers import HELPERS, Arg
from egpu.bpf.isa import CallSrc, Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.structure import Step, Structure
from egpu.verifier.verified import Operand, Region

_new = tuple.__new__  # Place(...) without matching arguments to names
EVERY_BYTE = (1 << isa.STACK_SIZE) - 1


class Place(NamedTuple):
    """Stack bytes behind a register: of which ``functions``' frames, ``exact`` if it is these bytes
    of the running function's frame and nothing else."""

    functions: frozenset[int]
    bytes: int
    exact: bool


def byte_mask(offset: int, size: int) -> int:
    """``size`` bytes from ``offset`` below r10 as a bit set; what is outside the frame is cut."""
    first, end = (
        max(0, offset + isa.STACK_SIZE),
        min(isa.STACK_SIZE, offset + size + isa.STACK_SIZE),
    )
    return ((1 << end) - 1) & ~((1 << first) - 1) if first < end else 0


# Arguments behind which helpers write.
OUTPUTS = frozenset({Arg.OUT_U64, Arg.OUT_VALUE, Arg.WRITE})


class Frames:
    """Stack places of a program's instructions; ``callers`` are the functions that may be running
    above each function, ``callbacks`` those whose address is taken."""

    def __init__(self, setting: Setting, recorder: Recorder) -> None:
        self.setting = setting
        self.structure = setting.structure
        self.operands = recorder.operands
        self.callbacks = _callbacks(setting.structure)
        self.callers = _callers(setting.structure, self.callbacks)
        self.above = _above(self.callers)
        self.own = [frozenset({function}) for function in range(len(setting.structure.functions))]
        self.places: dict[tuple[int, int, int | None], Place | None] = {}  # as asked for

    def operand(self, pc: int, register: int) -> Operand | None:
        """What a register is there; None where no way leads."""
        return self.operands.get((pc, register))

    def place(self, step: Step, register: int, size: int | None) -> Place | None:
        """Stack bytes of an access of ``size`` bytes (None: up to the top of the frame)."""
        key = step.pc, register, size
        if key not in self.places:
            self.places[key] = self._place(step, register, size)
        return self.places[key]

    def _place(self, step: Step, register: int, size: int | None) -> Place | None:
        operand = self.operands.get((step.pc, register))
        if operand is None or Region.STACK not in operand.regions:
            return None
        function = self.structure.function_of[step.pc]
        own = self.own[function]
        touched = EVERY_BYTE
        if operand.offset is not None:
            offset = operand.offset + (step.off if step.kind is not Kind.CALL else 0)
            touched = byte_mask(offset, -offset if size is None else size)
        if operand.frame == 0:
            exact = operand.offset is not None and len(operand.regions) == 1
            return _new(Place, (own, touched, exact))
        if operand.frame is None:
            return Place(self.above[function] | own, touched, False)
        return Place(self._higher(function, operand.frame), touched, False)

    def _higher(self, function: int, levels: int) -> frozenset[int]:
        found = frozenset({function})
        for _ in range(levels):
            found = frozenset(c for f in found for c in self.callers[f])
        return found

    def owners(self, step: Step, levels: int) -> frozenset[int]:
        """The functions whose frame is ``levels`` above the one that runs ``step``."""
        return self._higher(self.structure.function_of[step.pc], levels)

    def written(self, step: Step) -> tuple[Place, ...]:
        """Stack bytes that an instruction other than a local call may write."""
        if step.kind in (Kind.STORE_IMM, Kind.STORE_REG, Kind.ATOMIC):
            place = self.place(step, step.dst, step.width // 8)
            return () if place is None else (place,)
        if step.kind is Kind.CALL and step.src == CallSrc.HELPER and step.imm in HELPERS:
            outputs = (
                self.place(step, position + 1, self.output_size(step, position))
                for position, kind in enumerate(HELPERS[step.imm].args)
                if kind in OUTPUTS
            )
            return tuple(place for place in outputs if place is not None)
        return ()

    def output_size(self, step: Step, position: int) -> int | None:
        """Bytes that a helper writes behind its argument ``position``; None: it is not known."""
        if HELPERS[step.imm].args[position] is Arg.OUT_U64:
            return 8
        if HELPERS[step.imm].args[position] is Arg.OUT_VALUE:
            target = self.operand(step.pc, 1)
            if target is None or target.map is None:
                return None
            return self.setting.map(target.map).value_size
        size = self.operand(step.pc, position + 2)  # the register after the pointer's
        return None if size is None else size.value

    def foreign_writes(self) -> dict[int, int]:
        """For each function, the bytes of its frame that functions below it may write."""
        found: dict[int, int] = {}
        if len(self.structure.functions) == 1:
            return found
        for step in self.structure.steps:
            if step is None:
                continue
            own = self.structure.function_of[step.pc]
            for place in self.written(step):
                for function in place.functions - {own}:
                    found[function] = found.get(function, 0) | place.bytes
        return found


def code_reference(step: Step) -> int | None:
    """The pc of the function whose address an instruction loads, None for others."""
    if step.kind is Kind.LOAD_IMM64 and step.src == PseudoSrc.CODE:
        return step.pc + 1 + step.imm
    return None


def _callbacks(structure: Structure) -> frozenset[int]:
    return frozenset(
        structure.function_of[target]
        for step in structure.of_kind(Kind.LOAD_IMM64)
        if (target := code_reference(step)) is not None and 0 <= target < len(structure.function_of)
    )


def calls_back(step: Step) -> bool:
    """Whether an instruction calls a helper that calls a function of the program."""
    if step.kind is not Kind.CALL or step.src != CallSrc.HELPER or step.imm not in HELPERS:
        return False
    return Arg.CALLBACK in HELPERS[step.imm].args


def _callers(structure: Structure, callbacks: frozenset[int]) -> dict[int, frozenset[int]]:
    """The functions that call each function, themselves or through a helper."""
    if len(structure.functions) == 1:
        return {0: frozenset()}
    found: dict[int, set[int]] = {index: set() for index in range(len(structure.functions))}
    for step in structure.of_kind(Kind.CALL):
        own = structure.function_of[step.pc]
        if step.src == CallSrc.LOCAL:
            found[structure.function_of[step.target]].add(own)
        elif calls_back(step):
            # Which callback it calls is not asked: an address may come from another function.
            for callback in callbacks:
                found[callback].add(own)
    return {function: frozenset(callers) for function, callers in found.items()}


def _above(callers: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    """Direct and indirect callers."""
    found = {}
    for function, direct in callers.items():
        seen: set[int] = set()
        work = list(direct)
        while work:
            index = work.pop()
            if index not in seen:
                seen.add(index)
                work.extend(callers[index])
        found[function] = frozenset(seen)
    return found
