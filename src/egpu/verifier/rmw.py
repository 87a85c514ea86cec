"""Recogniser of ``*v op= n`` on per-SM maps.

A per-SM map is shared by the warps of an SM.  A read-modify-write as compilers write it (load,
operations of one kind, store, in one basic block) becomes an atomic in code generation; it is
recognised here.  What is not recognised is for ``races`` to refuse.
"""

from __future__ import annotations

from egpu.bpf.isa import AluOp, Kind
from egpu.bpf.maptypes import traits
from egpu.verifier.liveness import Liveness
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region, Rmw, RmwOp, RmwTerm

_OPS = {
    AluOp.ADD: RmwOp.ADD,
    AluOp.SUB: RmwOp.ADD,
    AluOp.AND: RmwOp.AND,
    AluOp.OR: RmwOp.OR,
    AluOp.XOR: RmwOp.XOR,
}
# What may stand between load and store if it leaves the loaded value alone.
_HARMLESS = frozenset({Kind.ALU, Kind.BYTE_ORDER, Kind.LOAD_IMM64, Kind.LOAD, Kind.LOAD_SIGNED})
_STORES = frozenset({Kind.STORE_IMM, Kind.STORE_REG})


def recognise(setting: Setting, liveness: Liveness, recorder: Recorder) -> dict[int, Rmw]:
    """The read-modify-writes on per-SM maps by the pc of their store."""
    found: dict[int, Rmw] = {}
    kinds = [traits(spec.type) for spec in setting.program.maps]
    if not any(kind.per_sm or kind.per_thread for kind in kinds):
        return found
    for step in setting.structure.of_kind(Kind.LOAD, Kind.LOAD_SIGNED):
        operand = recorder.operands.get((step.pc, step.src))
        if _per_sm(setting, operand) and step.width in (32, 64):
            match = _Match(setting, liveness, recorder, step).run()
            if match is not None:
                found[match[0]] = match[1]
    return found


def _map_of(operand: Operand | None) -> int | None:
    """The map of an access that certainly is to one map's values."""
    if operand is None or operand.regions != {Region.MAP_VALUE}:
        return None
    return operand.map


def _per_sm(setting: Setting, operand: Operand | None) -> bool:
    index = _map_of(operand)
    if index is None:
        return False
    kind = traits(setting.map(index).type)
    # The slots of per-thread maps are shared by launches that run at the same time.
    return kind.per_sm or kind.per_thread


class _Match:
    """Follows a loaded value through its basic block to a store into the same place."""

    def __init__(
        self, setting: Setting, liveness: Liveness, recorder: Recorder, load: Step
    ) -> None:
        self.structure = setting.structure
        self.liveness = liveness
        self.recorder = recorder
        self.load = load
        self.carriers = {load.dst}  # registers that hold the value as it is to be stored
        self.absent = {load.dst}  # registers that the transformed program never computes
        self.skipped: list[int] = []
        self.terms: list[RmwTerm] = []
        self.op: RmwOp | None = None

    def run(self) -> tuple[int, Rmw] | None:
        structure, load = self.structure, self.load
        if load.dst == load.src:
            return None
        pc = load.following
        end = structure.functions[structure.function_of[load.pc]][1]
        while pc < end and pc not in structure.checkpoints:
            step = structure.step(pc)
            if self._is_store(step):
                return self._finished(step)
            if not self._follow(step) or step.writes >> load.src & 1:
                return None
            pc = step.following
        return None

    def _is_store(self, step: Step) -> bool:
        return (
            step.kind is Kind.STORE_REG
            and step.dst == self.load.src
            and step.off == self.load.off
            and step.width == self.load.width
            and step.src in self.carriers
        )

    def _follow(self, step: Step) -> bool:
        """Take an instruction between load and store into account; False if it spoils the match."""
        if step.kind not in _HARMLESS and not self._is_stack_store(step):
            return False
        if not step.reads & _bits(self.absent):
            fresh = {register for register in range(10) if step.writes >> register & 1}
            self.carriers -= fresh
            self.absent -= fresh
            return bool(self.carriers)
        if step.kind is not Kind.ALU or step.width < self.load.width:
            return False
        if step.op is AluOp.MOV:
            return self._follow_move(step)
        return self._follow_operation(step)

    def _is_stack_store(self, step: Step) -> bool:
        operand = self.recorder.operands.get((step.pc, step.dst))
        return step.kind in _STORES and operand is not None and operand.regions == {Region.STACK}

    def _follow_move(self, step: Step) -> bool:
        if step.off or step.src not in self.carriers:
            return False
        self.carriers.add(step.dst)
        self._skip(step)
        return True

    def _follow_operation(self, step: Step) -> bool:
        if step.op not in _OPS:
            return False
        assert isinstance(step.op, AluOp), "the keys of _OPS are AluOps"
        op = _OPS[step.op]
        left, right = step.dst in self.absent, step.register and step.src in self.absent
        carrier = step.dst if left else step.src
        if (left and right) or carrier not in self.carriers or self.op not in (None, op):
            return False
        if right:
            if step.op is AluOp.SUB:
                return False  # n - *v is no operation that memory can do
            self.terms.append(RmwTerm(step.pc, step.dst))
        else:
            register = step.src if step.register else None
            negate = step.op is AluOp.SUB
            self.terms.append(RmwTerm(step.pc, register, 0 if step.register else step.imm, negate))
        self.op = op
        self.carriers = {step.dst}
        self._skip(step)
        return True

    def _skip(self, step: Step) -> None:
        self.skipped.append(step.pc)
        self.absent.add(step.dst)

    def _finished(self, store: Step) -> tuple[int, Rmw] | None:
        """The match, unless something absent is read after the store."""
        live = self.liveness.at(store.following).registers
        if self.op is None or live & _bits(self.absent):
            return None
        return store.pc, Rmw(
            self.load.pc, tuple(self.skipped), self.op, store.width // 8, tuple(self.terms)
        )


def _bits(registers: set[int]) -> int:
    return sum(1 << register for register in registers)
