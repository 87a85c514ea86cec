"""What instructions do to uniformity, as far as it is the same in both scopes.

Most are decided by what they read and write; those with a row by that; ``uniform`` looks closer at
calls and at what reaches a stack.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.bpf.context import Field, field_at
from egpu.bpf.isa import Kind
from egpu.verifier.control import Block, Graph
from egpu.verifier.frames import Frames
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region


class Row(NamedTuple):
    """The registers that vary after an instruction whatever it reads, by scope.

    ``step`` is the instruction where that is not all, None where it is.
    """

    varying: tuple[int, int]
    step: Step | None


_NEVER = 0, 0
_LOADS = Kind.LOAD, Kind.LOAD_SIGNED
_STORES = Kind.STORE_IMM, Kind.STORE_REG, Kind.ATOMIC
_CALL = Kind.CALL
_MEMORY = frozenset({*_STORES, _CALL})
_STACK, _CONTEXT, _MAP_VALUE = Region.STACK, Region.CONTEXT, Region.MAP_VALUE
_new = tuple.__new__  # Row(...) without matching arguments to names


class Rows:
    """The instructions of a program that are not decided by what they read and write, by pc."""

    def __init__(self, setting: Setting, graph: Graph, frames: Frames) -> None:
        self.setting = setting
        self.graph = graph
        self.frames = frames
        self.foreign_writes = frames.foreign_writes()
        self.rows: dict[int, Row] = {}
        self._written: dict[int, tuple[int, int]] = {}  # by block, as asked for
        by_kind = setting.structure.by_kind
        for kind in _LOADS:
            for step in by_kind.get(kind, ()):
                self._load(step)
        for kind in _STORES:
            for step in by_kind.get(kind, ()):
                if self._reaches_stack(step):
                    self.rows[step.pc] = _new(Row, (_NEVER, step))
                elif step.writes:  # what an atomic gives always varies
                    self._varies(step)
        for step in by_kind.get(_CALL, ()):
            self.rows[step.pc] = _new(Row, (_NEVER, step))

    def _varies(self, step: Step) -> None:
        writes = step.writes
        self.rows[step.pc] = _new(Row, ((writes, writes), None))

    def written(self, block: Block) -> tuple[int, int]:
        """The registers and the bytes of the own frame that a block may write."""
        found = self._written.get(block.index)
        if found is None:
            registers = stack = 0
            for step in block.steps:
                registers |= step.writes
                if step.kind in _MEMORY and step.pc in self.rows:
                    stack |= self._bytes(block.function, step)
            found = self._written[block.index] = registers, stack
        return found

    def _reaches_stack(self, step: Step) -> bool:
        operand = self.frames.operand(step.pc, step.dst)
        return operand is not None and _STACK in operand.regions

    def _bytes(self, function: int, step: Step) -> int:
        """The bytes of ``function``'s frame that an instruction of it may write."""
        written = 0
        for place in self.frames.written(step):
            if function in place.functions:
                written |= place.bytes
        if step.kind is _CALL:  # of a function, or of a helper that calls back
            written |= self.foreign_writes.get(function, 0)
        return written

    def _load(self, step: Step) -> None:
        writes = step.writes
        operand = self.frames.operand(step.pc, step.src)
        if operand is None:
            self._varies(step)
            return
        regions = operand.regions
        if len(regions) > 1 or _STACK in regions:
            self.rows[step.pc] = _new(Row, (_NEVER, step))
        elif _CONTEXT in regions:
            found = field_of(self.setting, step, operand, step.width // 8)
            if found is None:
                self._varies(step)
                return
            varying = 0 if found.uniform else writes, 0 if found.launch else writes
            self.rows[step.pc] = _new(Row, (varying, None))
        elif (
            operand.map is None
            or _MAP_VALUE not in regions
            or not self.setting.map(operand.map).read_only
        ):
            self._varies(step)


def field_of(setting: Setting, step: Step, operand: Operand, size: int | None) -> Field | None:
    """The context field that a load of ``size`` bytes reads, if it is one."""
    if operand.offset is None or size is None:
        return None
    return field_at(operand.offset + step.off, size, setting.fields)
