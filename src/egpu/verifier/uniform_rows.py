"""What instructions do to uniformity, as far as it is the same in both scopes: rows by block.

Most instructions are decided by their row alone; ``uniform`` looks closer at calls and at what
reaches a stack.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.bpf.context import Field, field_at
from egpu.bpf.isa import AluOp, Kind
from egpu.verifier.control import Block, Graph
from egpu.verifier.frames import Frames
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region

_Fields = tuple[int, int, int, tuple[int, int], Step | None]  # of a Row


class Row(NamedTuple):
    """What an instruction does to registers: those of ``writes`` vary afterwards if one of
    ``sources`` does, those of ``always`` (by scope) in any case.

    ``step`` is the instruction where that is not all, None where it is.
    """

    pc: int
    writes: int
    sources: int
    always: tuple[int, int]
    step: Step | None


_NEVER = 0, 0
_PLAIN = frozenset({Kind.ALU, Kind.LOAD_IMM64, Kind.BYTE_ORDER})
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_STORES = frozenset({Kind.STORE_IMM, Kind.STORE_REG, Kind.ATOMIC})
_CALL = Kind.CALL
_new = tuple.__new__  # Row(...) without matching arguments to names


class Rows:
    """The instructions of a program by block, as far as both scopes share what they do.

    ``written`` are the registers and the bytes of the own frame that each block may write.
    """

    def __init__(self, setting: Setting, graph: Graph, frames: Frames) -> None:
        self.setting = setting
        self.graph = graph
        self.frames = frames
        self.foreign_writes = frames.foreign_writes()
        self.blocks: list[list[Row]] = []
        self.written: list[tuple[int, int]] = []
        for block in graph.blocks:
            self._block(block)

    def _block(self, block: Block) -> None:
        rows: list[Row] = []
        registers = stack = 0
        for step in block.steps:
            row: _Fields
            kind, writes = step.kind, step.writes
            registers |= writes
            if kind in _PLAIN:
                # x ^ x and x - x are 0 whatever x is.
                same = step.register and step.dst == step.src
                zero = same and (step.op is AluOp.XOR or step.op is AluOp.SUB)
                row = (step.pc, writes, 0 if zero else step.reads, _NEVER, None)
            elif kind in _LOADS:
                row = self._load(step)
            elif kind is _CALL or (kind in _STORES and self._reaches_stack(step)):
                row = (step.pc, writes, 0, _NEVER, step)
                stack |= self._written(block.function, step)
            else:  # what an atomic gives always varies
                row = (step.pc, writes, 0, (writes, writes), None)
            rows.append(_new(Row, row))
        self.blocks.append(rows)
        self.written.append((registers, stack))

    def _reaches_stack(self, step: Step) -> bool:
        operand = self.frames.operand(step.pc, step.dst)
        return operand is not None and Region.STACK in operand.regions

    def _written(self, function: int, step: Step) -> int:
        """The bytes of ``function``'s frame that an instruction of it may write."""
        written = 0
        for place in self.frames.written(step):
            if function in place.functions:
                written |= place.bytes
        if step.kind is _CALL:  # of a function, or of a helper that calls back
            written |= self.foreign_writes.get(function, 0)
        return written

    def _load(self, step: Step) -> _Fields:
        pc, writes = step.pc, step.writes
        operand = self.frames.operand(pc, step.src)
        if operand is None:
            return pc, writes, 0, (writes, writes), None
        regions = operand.regions
        if len(regions) > 1 or Region.STACK in regions:
            return pc, writes, 0, _NEVER, step
        if Region.CONTEXT in regions:
            found = field_of(self.setting, step, operand, step.width // 8)
            if found is None:
                return pc, writes, 0, (writes, writes), None
            always = 0 if found.uniform else writes, 0 if found.launch else writes
            return pc, writes, 0, always, None
        constant = operand.map is not None and self.setting.map(operand.map).read_only
        if constant and Region.MAP_VALUE in regions:
            return pc, writes, step.reads, _NEVER, None
        return pc, writes, 0, (writes, writes), None


def field_of(setting: Setting, step: Step, operand: Operand, size: int | None) -> Field | None:
    """The context field that a load of ``size`` bytes reads, if it is one."""
    if operand.offset is None or size is None:
        return None
    return field_at(operand.offset + step.off, size, setting.fields)
