"""Atomics with the scope and order that the place of their memory needs (RFC 9669 section 5.3).

LLVM's NVPTX back end drops scope and order of ``atomicrmw``, so on PTX each is inline assembly:
what gives no value back is ``red.relaxed``, what does is ``atom.acq_rel`` (Linux's memory model:
FETCH forms are ordered, others not).  Device memory is seen by the device alone while kernels run
(``.gpu``), ring records also by the host (``.sys``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from egpu.bpf.isa import FETCH, AtomicOp
from egpu.codegen.ir import Body
from egpu.codegen.targets import Machine
from egpu.errors import InternalError


class MemoryScope(enum.Enum):
    """Who else may look at the memory meanwhile (PTX ISA 9.0, section 8.5)."""

    GPU = "gpu"
    SYS = "sys"
    THREAD = "thread"  # nobody: the running thread's own stack


@dataclass(frozen=True, slots=True)
class _Row:
    """PTX operation and type letter (section 9.7.13), LLVM operation."""

    ptx: str
    letter: str
    llvm: str


# fmt: off
_ROWS: dict[AtomicOp, _Row] = {
    AtomicOp.ADD:     _Row("add",  "u", "add"),
    AtomicOp.OR:      _Row("or",   "b", "or"),
    AtomicOp.AND:     _Row("and",  "b", "and"),
    AtomicOp.XOR:     _Row("xor",  "b", "xor"),
    AtomicOp.XCHG:    _Row("exch", "b", "xchg"),
    AtomicOp.CMPXCHG: _Row("cas",  "b", ""),
}
# fmt: on


def base_of(op: AtomicOp) -> AtomicOp:
    """``op`` without FETCH; XCHG and CMPXCHG stay."""
    return op if op in _ROWS else AtomicOp(op & ~FETCH)


@dataclass(frozen=True, slots=True)
class Atomic:
    """One atomic: ``op``, operand width in bits, and who may look."""

    op: AtomicOp
    bits: int
    scope: MemoryScope

    @property
    def gives_old(self) -> bool:
        """Whether the program gets the old value."""
        return bool(self.op & FETCH)


@dataclass(frozen=True, slots=True)
class Operands:
    """IR values of an atomic: a 64-bit address; value and, for CMPXCHG, what is compared with, of
    the atomic's width."""

    address: str
    value: str
    compare: str = ""


def emit(body: Body, machine: Machine, atomic: Atomic, operands: Operands) -> str | None:
    """Write the atomic; the old value, None for forms that give none."""
    if machine is Machine.X86_64:
        return _emit_llvm(body, atomic, operands)
    if atomic.scope is MemoryScope.THREAD:
        return plain(body, atomic, body.pointer(operands.address, "ptr"), operands)
    return _emit_ptx(body, atomic, operands)


def _emit_ptx(body: Body, atomic: Atomic, operands: Operands) -> str | None:
    row, kind = _ROWS[base_of(atomic.op)], f"i{atomic.bits}"
    letter = "l" if atomic.bits == 64 else "r"
    suffix = f"{atomic.scope.value}.global.{row.ptx}.{row.letter}{atomic.bits}"
    address, value = f"i64 {operands.address}", f"{kind} {operands.value}"
    if not atomic.gives_old:
        body.line(
            f'call void asm sideeffect "red.relaxed.{suffix} [$0], $1;", "l,{letter},~{{memory}}"'
            f"({address}, {value}) nounwind"
        )
        return None
    if atomic.op is AtomicOp.CMPXCHG:
        return body.value(
            f'call {kind} asm sideeffect "atom.acq_rel.{suffix} $0, [$1], $2, $3;", '
            f'"={letter},l,{letter},{letter},~{{memory}}"'
            f"({address}, {kind} {operands.compare}, {value}) nounwind"
        )
    return body.value(
        f'call {kind} asm sideeffect "atom.acq_rel.{suffix} $0, [$1], $2;", '
        f'"={letter},l,{letter},~{{memory}}"({address}, {value}) nounwind'
    )


def _emit_llvm(body: Body, atomic: Atomic, operands: Operands) -> str | None:
    kind, align = f"i{atomic.bits}", atomic.bits // 8
    pointer = body.pointer(operands.address, "ptr")
    if atomic.op is AtomicOp.CMPXCHG:
        pair = body.value(
            f"cmpxchg ptr {pointer}, {kind} {operands.compare}, {kind} {operands.value} "
            f"seq_cst seq_cst, align {align}"
        )
        return body.value(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    op = _ROWS[base_of(atomic.op)].llvm
    old = body.value(
        f"atomicrmw {op} ptr {pointer}, {kind} {operands.value} seq_cst, align {align}"
    )
    return old if atomic.gives_old else None


def plain(body: Body, atomic: Atomic, pointer: str, operands: Operands) -> str | None:
    """The same on the thread's own stack, which PTX atomics cannot reach and nobody else sees."""
    kind, align = f"i{atomic.bits}", atomic.bits // 8
    op = base_of(atomic.op)
    old = body.load(kind, "ptr", pointer, align)
    match op:
        case AtomicOp.XCHG:
            new = operands.value
        case AtomicOp.CMPXCHG:
            equal = body.compare("eq", kind, old, operands.compare)
            new = body.select(equal, kind, operands.value, old)
        case AtomicOp.ADD | AtomicOp.OR | AtomicOp.AND | AtomicOp.XOR:
            new = body.binary(_ROWS[op].llvm, kind, old, operands.value)
        case _:
            raise InternalError(f"no plain form of {atomic.op.name}")
    body.store(kind, new, "ptr", pointer, align)
    return old if atomic.gives_old else None
