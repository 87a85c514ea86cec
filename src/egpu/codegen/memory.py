"""Loads, stores and atomics (RFC 9669 section 5), by the region that the verifier proved.

Every access says its alignment: LLVM splits what is less aligned than wide.  A constant place in a
frame is addressed as such, so that the stack becomes registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from egpu.bpf.isa import AtomicOp, Form, Kind
from egpu.bpf.program import Insn
from egpu.codegen.atomics import Atomic, MemoryScope, Operands, emit, plain
from egpu.codegen.context import load_context
from egpu.codegen.ir import GENERIC, GLOBAL
from egpu.codegen.scope import Scope
from egpu.codegen.targets import Machine
from egpu.errors import InternalError
from egpu.verifier.verified import Operand, Region, Rmw, RmwOp

_GLOBAL_REGIONS = frozenset({Region.MAP_VALUE, Region.RECORD, Region.MEMORY})
# Reached by generic addresses: variables of the running thread, and what may be either.
_GENERIC_REGIONS = _GLOBAL_REGIONS | {Region.STACK, Region.MAP_KEY}
_FRAME_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A pointer with its address space and the alignment it is proven to have.

    ``shared``: other threads may write it meanwhile."""

    pointer: str
    space: str
    align: int
    shared: bool = False


def place_of(scope: Scope, pc: int, register: int, offset: int, size: int) -> Place:
    """Where ``register + offset`` points at ``pc``, ``size`` bytes being accessed."""
    operand = scope.operand(pc, register)
    body = scope.body
    constant = scope.stack_offset(operand, offset, size)
    if constant is not None and operand.frame is not None:
        top = scope.frame_top(operand.frame)
        pointer = body.value(f"getelementptr i8, ptr {top}, i64 {constant}")
        return Place(pointer, GENERIC, math.gcd(constant, _FRAME_ALIGNMENT) or _FRAME_ALIGNMENT)
    address = body.add(scope.get(register), offset)
    if operand.regions <= _GLOBAL_REGIONS:
        shared = Region.MAP_VALUE in operand.regions and not _read_only(scope, operand)
        return Place(body.pointer(address, GLOBAL), GLOBAL, operand.align, shared)
    if operand.regions <= _GENERIC_REGIONS:
        shared = Region.MAP_VALUE in operand.regions
        return Place(body.pointer(address, GENERIC), GENERIC, operand.align, shared)
    names = ", ".join(sorted(region.value for region in operand.regions))
    raise InternalError(f"instruction {pc} accesses memory through r{register}, which is {names}")


def _read_only(scope: Scope, operand: Operand) -> bool:
    maps = scope.unit.verified.program.maps
    return operand.map is not None and maps[operand.map].read_only


def load_from(scope: Scope, place: Place, bits: int) -> str:
    """Load ``bits`` bits.

    What other threads may write is loaded as LLVM's ``unordered`` in block scope (PTX
    ``ld.relaxed.cta``, which the L1 cache may answer): a plain load may be done twice, and a bound
    that was checked on the first value would not hold for the second."""
    kind = f"i{bits}"
    if place.shared and place.align >= bits // 8:
        return scope.body.value(
            f'load atomic {kind}, {place.space} {place.pointer} syncscope("block") unordered, '
            f"align {place.align}"
        )
    return scope.body.load(kind, place.space, place.pointer, place.align)


def lower_load(scope: Scope, pc: int, insn: Insn, form: Form) -> None:
    """LDX MEM and MEMSX."""
    operand = scope.operand(pc, insn.src)
    if Region.CONTEXT in operand.regions:
        if operand.regions != {Region.CONTEXT} or operand.offset is None:
            raise InternalError(f"instruction {pc} reads the context at no constant offset")
        value = load_context(scope, operand.offset + insn.off, form.width)
    else:
        place = place_of(scope, pc, insn.src, insn.off, form.width // 8)
        value = load_from(scope, place, form.width)
    signed = form.kind is Kind.LOAD_SIGNED
    scope.set(insn.dst, scope.body.resize(value, form.width, 64, signed=signed))


def lower_store(scope: Scope, pc: int, insn: Insn, form: Form) -> None:
    """ST (the immediate is sign-extended to the width) and STX."""
    bits = form.width
    if form.kind is Kind.STORE_IMM:
        value = str(insn.imm) if bits >= 32 else str(insn.imm & ((1 << bits) - 1))
    else:
        value = scope.body.resize(scope.get(insn.src), 64, bits)
    place = place_of(scope, pc, insn.dst, insn.off, bits // 8)
    scope.body.store(f"i{bits}", value, place.space, place.pointer, place.align)


def lower_atomic(scope: Scope, pc: int, insn: Insn, form: Form) -> None:
    """STX ATOMIC; CMPXCHG compares with r0 and always loads the old value into it."""
    body, bits = scope.body, form.width
    op = AtomicOp(insn.imm)
    value = body.resize(scope.get(insn.src), 64, bits)
    compare = body.resize(scope.get(0), 64, bits) if op is AtomicOp.CMPXCHG else ""
    old = _Target(scope, pc, insn).perform(op, bits, value, compare)
    if old is not None:
        scope.set(0 if op is AtomicOp.CMPXCHG else insn.src, body.resize(old, bits, 64))


@dataclass(frozen=True, slots=True)
class _Target:
    """The memory that an atomic at ``pc`` works on: ``insn.dst + insn.off``."""

    scope: Scope
    pc: int
    insn: Insn

    def perform(self, op: AtomicOp, bits: int, value: str, compare: str = "") -> str | None:
        """Write ``op``; the old value if it gives one."""
        scope, body, machine = self.scope, self.scope.body, self.scope.unit.machine
        regions = scope.operand(self.pc, self.insn.dst).regions
        if not regions <= _GLOBAL_REGIONS | {Region.STACK}:
            names = ", ".join(sorted(region.value for region in regions))
            raise InternalError(f"instruction {self.pc}: atomic on {names}")
        atomic = Atomic(op, bits, _memory_scope(regions))
        if atomic.scope is MemoryScope.THREAD and machine is Machine.NVPTX:
            place = place_of(scope, self.pc, self.insn.dst, self.insn.off, bits // 8)
            return plain(body, atomic, place.pointer, Operands("", value, compare))
        address = body.add(scope.get(self.insn.dst), self.insn.off)
        operands = Operands(address, value, compare)
        if Region.STACK in regions and machine is Machine.NVPTX:
            return _either(scope, atomic, operands)
        return emit(body, machine, atomic, operands)


def _memory_scope(regions: frozenset[Region]) -> MemoryScope:
    if regions == {Region.STACK}:
        return MemoryScope.THREAD
    return MemoryScope.SYS if Region.RECORD in regions else MemoryScope.GPU


def _either(scope: Scope, atomic: Atomic, operands: Operands) -> str | None:
    """An atomic on what may be the stack: PTX atomics cannot reach local memory."""
    body, kind = scope.body, f"i{atomic.bits}"
    local, shared, after = body.fresh("local"), body.fresh("global"), body.fresh("after")
    result = body.variable(body.fresh("old"), kind)
    pointer = body.pointer(operands.address, "ptr")
    is_local = body.value(f"call i1 @llvm.nvvm.isspacep.local(ptr {pointer})")
    body.branch_if(is_local, local, shared)
    body.label(local)
    first = plain(body, atomic, pointer, operands)
    if first is not None:
        body.store(kind, first, "ptr", result, 8)
    body.branch(after)
    body.label(shared)
    second = emit(body, Machine.NVPTX, atomic, operands)
    if second is not None:
        body.store(kind, second, "ptr", result, 8)
    body.branch(after)
    body.label(after)
    return body.load(kind, "ptr", result, 8) if atomic.gives_old else None


_RMW_OPS: dict[RmwOp, AtomicOp] = {
    RmwOp.ADD: AtomicOp.ADD,
    RmwOp.AND: AtomicOp.AND,
    RmwOp.OR: AtomicOp.OR,
    RmwOp.XOR: AtomicOp.XOR,
}


def lower_rmw(scope: Scope, pc: int, insn: Insn, rmw: Rmw, terms: list[str]) -> None:
    """``*p op= n`` at its store: one atomic without a result (``terms`` are the 64-bit operands).

    LLVM would merge a loop of the plain form into one load and one store, so this happens before it
    sees any of them."""
    body, bits = scope.body, 8 * rmw.size
    value = terms[0]
    for term in terms[1:]:
        value = body.binary(rmw.op.value, "i64", value, term)
    target = _Target(scope, pc, insn)
    target.perform(_RMW_OPS[rmw.op], bits, body.resize(value, 64, bits))
