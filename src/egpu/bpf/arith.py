"""eBPF arithmetic on unsigned 64-bit integers (RFC 9669 section 4): pure functions.

Python's ``//`` and ``%`` round to minus infinity, eBPF's signed division to zero; shift amounts are
masked; division by zero has results.  Whatever runs or checks eBPF takes its arithmetic from here.
"""

from __future__ import annotations

from egpu.bpf.isa import SIGNED, AluOp, AtomicOp, JmpOp
from egpu.errors import InternalError

MASK64 = 0xFFFFFFFFFFFFFFFF


def signed(value: int, bits: int) -> int:
    """The two's complement value of the low ``bits`` bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def extend(imm: int) -> int:
    """A signed immediate as the unsigned 64-bit value that operations see."""
    return imm & MASK64


def alu(op: AluOp, width: int, variant: int, dst: int, src: int) -> int:
    """Result of an ALU (``width`` 32) or ALU64 instruction, zero-extended to 64 bits.

    ``variant`` is the offset field: 1 for signed DIV and MOD, 8/16/32 for sign-extending MOV.
    """
    mask = (1 << width) - 1
    a, b = dst & mask, src & mask
    match op:
        case AluOp.ADD:
            result = a + b
        case AluOp.SUB:
            result = a - b
        case AluOp.MUL:
            result = a * b
        case AluOp.DIV | AluOp.MOD:
            result = _divide(op, width, variant == SIGNED, a, b)
        case AluOp.OR:
            result = a | b
        case AluOp.AND:
            result = a & b
        case AluOp.XOR:
            result = a ^ b
        case AluOp.LSH:
            result = a << (b & width - 1)
        case AluOp.RSH:
            result = a >> (b & width - 1)
        case AluOp.ARSH:
            result = signed(a, width) >> (b & width - 1)
        case AluOp.NEG:
            result = -a
        case AluOp.MOV:
            result = signed(b, variant) if variant else b
        case AluOp.END:
            raise InternalError("byte order conversions go through convert()")
    return result & mask


def _divide(op: AluOp, width: int, is_signed: bool, a: int, b: int) -> int:
    if b == 0:
        return 0 if op is AluOp.DIV else a
    if not is_signed:
        return a // b if op is AluOp.DIV else a % b
    x, y = signed(a, width), signed(b, width)
    quotient = abs(x) // abs(y)
    if (x < 0) != (y < 0):
        quotient = -quotient
    return quotient if op is AluOp.DIV else x - quotient * y


def convert(value: int, width: int, swap: bool) -> int:
    """The low ``width`` bits of ``value``, bytes reversed if ``swap``, zero-extended."""
    low = value & (1 << width) - 1
    return int.from_bytes(low.to_bytes(width // 8, "little"), "big") if swap else low


def compare(op: JmpOp, width: int, dst: int, src: int) -> bool:
    """Whether a conditional JMP (``width`` 64) or JMP32 is taken."""
    mask = (1 << width) - 1
    a, b = dst & mask, src & mask
    if op in (JmpOp.JSGT, JmpOp.JSGE, JmpOp.JSLT, JmpOp.JSLE):
        a, b = signed(a, width), signed(b, width)
    match op:
        case JmpOp.JEQ:
            return a == b
        case JmpOp.JNE:
            return a != b
        case JmpOp.JSET:
            return a & b != 0
        case JmpOp.JGT | JmpOp.JSGT:
            return a > b
        case JmpOp.JGE | JmpOp.JSGE:
            return a >= b
        case JmpOp.JLT | JmpOp.JSLT:
            return a < b
        case JmpOp.JLE | JmpOp.JSLE:
            return a <= b
    raise InternalError(f"{op.name} is not a comparison")


def atomic(op: AtomicOp, width: int, old: int, src: int, expected: int) -> int:
    """What an atomic leaves in memory, ``expected`` being r0 (CMPXCHG)."""
    mask = (1 << width) - 1
    match op:
        case AtomicOp.ADD | AtomicOp.FETCH_ADD:
            return old + src & mask
        case AtomicOp.OR | AtomicOp.FETCH_OR:
            return (old | src) & mask
        case AtomicOp.AND | AtomicOp.FETCH_AND:
            return old & src & mask
        case AtomicOp.XOR | AtomicOp.FETCH_XOR:
            return (old ^ src) & mask
        case AtomicOp.XCHG:
            return src & mask
        case AtomicOp.CMPXCHG:
            return src & mask if old == expected & mask else old
