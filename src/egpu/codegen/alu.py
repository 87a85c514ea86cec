"""Arithmetic and jumps (RFC 9669 sections 4.1-4.3): one row per operation.

Builders take operands of ``bits`` width and give a result of the same width.  Divisors and shift
amounts are made harmless before LLVM sees them.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.isa import SIGNED, SOURCE_REGISTER, AluOp, Class, Form, JmpOp, Kind
from egpu.bpf.program import Insn
from egpu.codegen.ir import Body
from egpu.codegen.scope import Scope
from egpu.errors import InternalError

Builder = Callable[[Body, str, str, int], str]


def _plain(op: str) -> Builder:
    return lambda body, left, right, bits: body.binary(op, f"i{bits}", left, right)


def _shift(op: str) -> Builder:
    def build(body: Body, left: str, right: str, bits: int) -> str:
        amount = body.binary("and", f"i{bits}", right, str(bits - 1))
        return body.binary(op, f"i{bits}", left, amount)

    return build


def _unsigned(op: str, *, by_zero: Callable[[str], str]) -> Builder:
    def build(body: Body, left: str, right: str, bits: int) -> str:
        kind = f"i{bits}"
        zero = body.compare("eq", kind, right, "0")
        divisor = body.select(zero, kind, "1", right)
        result = body.binary(op, kind, left, divisor)
        return body.select(zero, kind, by_zero(left), result)

    return build


def _signed_division(body: Body, left: str, right: str, bits: int) -> str:
    kind = f"i{bits}"
    zero = body.compare("eq", kind, right, "0")
    minus = body.compare("eq", kind, right, "-1")  # MIN / -1 overflows: negate instead
    unsafe = body.binary("or", "i1", zero, minus)
    divisor = body.select(unsafe, kind, "1", right)
    quotient = body.binary("sdiv", kind, left, divisor)
    negated = body.binary("sub", kind, "0", left)
    return body.select(zero, kind, "0", body.select(minus, kind, negated, quotient))


def _signed_remainder(body: Body, left: str, right: str, bits: int) -> str:
    kind = f"i{bits}"
    zero = body.compare("eq", kind, right, "0")
    minus = body.compare("eq", kind, right, "-1")
    unsafe = body.binary("or", "i1", zero, minus)
    divisor = body.select(unsafe, kind, "1", right)  # x % 1 = x % -1 = 0
    remainder = body.binary("srem", kind, left, divisor)
    return body.select(zero, kind, left, remainder)


def _negate(body: Body, left: str, _right: str, bits: int) -> str:
    return body.binary("sub", f"i{bits}", "0", left)


def _move(_body: Body, _left: str, right: str, _bits: int) -> str:
    return right


# fmt: off
_OPERATIONS: dict[AluOp, Builder] = {
    AluOp.ADD:  _plain("add"),
    AluOp.SUB:  _plain("sub"),
    AluOp.MUL:  _plain("mul"),
    AluOp.DIV:  _unsigned("udiv", by_zero=lambda _left: "0"),
    AluOp.OR:   _plain("or"),
    AluOp.AND:  _plain("and"),
    AluOp.LSH:  _shift("shl"),
    AluOp.RSH:  _shift("lshr"),
    AluOp.NEG:  _negate,
    AluOp.MOD:  _unsigned("urem", by_zero=lambda left: left),
    AluOp.XOR:  _plain("xor"),
    AluOp.MOV:  _move,
    AluOp.ARSH: _shift("ashr"),
}
_SIGNED_OPERATIONS: dict[AluOp, Builder] = {
    AluOp.DIV: _signed_division,
    AluOp.MOD: _signed_remainder,
}
_PREDICATES: dict[JmpOp, str] = {
    JmpOp.JEQ:  "eq",
    JmpOp.JNE:  "ne",
    JmpOp.JGT:  "ugt",
    JmpOp.JGE:  "uge",
    JmpOp.JLT:  "ult",
    JmpOp.JLE:  "ule",
    JmpOp.JSGT: "sgt",
    JmpOp.JSGE: "sge",
    JmpOp.JSLT: "slt",
    JmpOp.JSLE: "sle",
}
# fmt: on


def second(scope: Scope, insn: Insn, form: Form) -> str:
    """The second operand, ``form.width`` bits: immediates are sign-extended to 64 bits."""
    if not form.register:
        return str(insn.imm)
    return scope.body.resize(scope.get(insn.src), 64, form.width)


def lower_alu(scope: Scope, insn: Insn, form: Form) -> None:
    """ALU and ALU64; a 32-bit result zeroes the upper half."""
    body, bits = scope.body, form.width
    if not isinstance(form.op, AluOp):
        raise InternalError(f"opcode 0x{insn.opcode:02x} is not arithmetic")
    right = second(scope, insn, form) if form.op is not AluOp.NEG else "0"
    if form.op is AluOp.MOV:
        if form.register and insn.off:  # MOVSX: off is the width that is extended
            right = body.resize(body.resize(right, bits, insn.off), insn.off, bits, signed=True)
        result = right
    else:
        signed = form.op in _SIGNED_OPERATIONS and insn.off == SIGNED
        build = (_SIGNED_OPERATIONS if signed else _OPERATIONS)[form.op]
        result = build(body, body.resize(scope.get(insn.dst), 64, bits), right, bits)
    if result.lstrip("-").isdigit() and bits == 32:
        scope.set(insn.dst, str(int(result) & 0xFFFFFFFF))
    else:
        scope.set(insn.dst, body.resize(result, bits, 64))


def lower_byte_order(scope: Scope, insn: Insn, _form: Form) -> None:
    """END: to little endian truncates, to big endian and BSWAP (ALU64) swap ``imm`` bits."""
    body, bits = scope.body, insn.imm
    value = body.resize(scope.get(insn.dst), 64, bits)
    keeps = insn.opcode & 7 == Class.ALU and not insn.opcode & SOURCE_REGISTER
    if not keeps:
        value = body.value(f"call i{bits} @llvm.bswap.i{bits}(i{bits} {value})")
    scope.set(insn.dst, body.resize(value, bits, 64))


def condition(scope: Scope, insn: Insn, form: Form) -> str:
    """Whether a conditional jump is taken, an i1."""
    body, kind = scope.body, f"i{form.width}"
    if form.kind is not Kind.JUMP or not isinstance(form.op, JmpOp):
        raise InternalError(f"opcode 0x{insn.opcode:02x} is not a conditional jump")
    left = body.resize(scope.get(insn.dst), 64, form.width)
    right = second(scope, insn, form)
    if form.op is JmpOp.JSET:
        return body.compare("ne", kind, body.binary("and", kind, left, right), "0")
    return body.compare(_PREDICATES[form.op], kind, left, right)
