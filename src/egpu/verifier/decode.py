"""The program decoded once, in the form that every later stage walks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from egpu.bpf import isa
from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, JmpOp, Kind
from egpu.bpf.program import Insn, PseudoSrc
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.verified import Policy


@dataclass(slots=True, eq=False)  # never changed; frozen ones take three times as long to make
class Step:
    """One decoded instruction; ``width`` are its bits, ``swaps`` tells a byte swap from a no-op.

    ``reads`` and ``writes`` are bit sets of registers: those whose value it takes (of a local call
    all that may be arguments), and those whose old value is gone afterwards.
    """

    pc: int
    kind: Kind
    op: AluOp | JmpOp | None
    width: int
    register: bool
    dst: int
    src: int
    off: int
    imm: int
    following: int  # pc of the next instruction
    target: int  # of a jump or a local call, -1 for others
    swaps: bool
    constant: Scalar  # the immediate as a second operand, or as a move leaves it
    reads: int
    writes: int


# Looking a member up in its class takes longer than comparing with it.
_JUMP, _LOAD_IMM64, _MOV = Kind.JUMP, Kind.LOAD_IMM64, AluOp.MOV
_ATOMIC, _CALL, _JUMP_ALWAYS = Kind.ATOMIC, Kind.CALL, Kind.JUMP_ALWAYS
_HELPER, _LOCAL = int(CallSrc.HELPER), int(CallSrc.LOCAL)
_CLOBBERED = 0b111111  # r0 to r5


class _Row(NamedTuple):
    """What decoding takes from a form; what it reads and writes of fields is 0 or 1."""

    kind: Kind
    op: AluOp | JmpOp | None
    width: int
    register: bool
    swaps: bool
    reads_dst: int
    reads_src: int
    writes_dst: int


def decode(code: tuple[Insn, ...], policy: Policy) -> tuple[Step | None, ...]:
    """The instructions by pc, None in the second slot of LD_IMM64.

    Raises Refusal (rule P1) for the first that is not well formed.
    """
    steps: list[Step | None] = [None] * len(code)
    pc, end, rows = 0, len(code), _ROWS
    while pc < end:
        insn = code[pc]
        dst, src, off, imm = insn.dst, insn.src, insn.off, insn.imm
        row, plain = rows.get(insn.opcode, _NO_FORM)
        kind, op, width, register, swaps, reads, reads_src, writes = row
        most_dst, most_src, offs, imms = plain
        if not (
            0 <= dst <= most_dst
            and 0 <= src <= most_src
            and (offs is None or off in offs)
            and (imms is None or imm in imms)
        ):
            _check(code, pc, policy)
        reads, writes = reads << dst | reads_src << src, writes << dst
        after, target = pc + 1, -1
        if kind is _JUMP:
            target = after + off
        elif kind is _CALL:
            reads, writes = _call_reads(imm, src), _CLOBBERED
            target = after + imm if src == _LOCAL else -1
        elif kind is _LOAD_IMM64:
            after += 1
        elif kind is _JUMP_ALWAYS:
            target = after + (off if width == 16 else imm)
        elif kind is _ATOMIC:
            reads, writes = _atomic_registers(insn)
        constant = _ZERO
        if imm:
            constant = _constant(imm if op is not _MOV or width == 64 else imm & 0xFFFFFFFF)
        # fmt: off
        steps[pc] = Step(
            pc, kind, op, width, register, dst, src, off, imm, after, target, swaps,
            constant, reads, writes,
        )
        # fmt: on
        pc = after
    return tuple(steps)


def _check(code: tuple[Insn, ...], pc: int, policy: Policy) -> None:
    """Refuse an instruction that is not well formed."""
    insn, following = code[pc], code[pc + 1] if pc + 1 < len(code) else None
    if _is_plain_wide(insn, following):
        return
    reason = isa.check_fields(insn, following)
    if reason is not None:
        raise Refusal("P1", reason, pc, _ENCODING)
    _check_operand(pc, insn, policy)


_UPPER_HALF = frozenset({int(PseudoSrc.CONST), int(PseudoSrc.MAP_INDEX_VALUE)})


def _is_plain_wide(insn: Insn, following: Insn | None) -> bool:
    """Whether this is an LD_IMM64 as most are, and surely well formed."""
    if insn.opcode != isa.LD_IMM64 or following is None:
        return False
    if insn.off or following.opcode or following.dst or following.src or following.off:
        return False
    return 0 <= insn.dst < isa.FRAME_POINTER and (
        insn.src in _UPPER_HALF or (insn.src == PseudoSrc.MAP_INDEX and not following.imm)
    )


_ZERO = S64.zero
_constant = functools.lru_cache(1 << 12)(S64.constant)


def _call_reads(number: int, src: int) -> int:
    """The registers that a call takes arguments from."""
    helper = HELPERS.get(number) if src == _HELPER else None
    return (1 << (5 if helper is None else len(helper.args)) + 1) - 2


def _atomic_registers(insn: Insn) -> tuple[int, int]:
    """``reads`` and ``writes`` of an atomic."""
    dst, src = 1 << insn.dst, 1 << insn.src
    if insn.imm == AtomicOp.CMPXCHG:
        return dst | src | 1, 1
    return dst | src, src if insn.imm & isa.FETCH else 0


_TO_LITTLE_ENDIAN = isa.Class.ALU | AluOp.END
_SHIFTS = frozenset({AluOp.LSH, AluOp.RSH, AluOp.ARSH})
_STORES = frozenset({Kind.STORE_IMM, Kind.STORE_REG})
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})


_ZERO_ONLY = frozenset({0})
# Of what has no plain form: nothing passes.
_NEVER = isa.Plain(-1, -1, None, None)


def _row(form: isa.Form) -> tuple[_Row, isa.Plain]:
    """The row of a form, and the fields that need no further check."""
    kind, plain = form.kind, isa.PLAIN.get(form.opcode)
    if kind is Kind.ALU and not form.register and plain is not None:
        # What _check_operand looks at is not plain.
        if form.op in _SHIFTS:
            plain = plain._replace(imm=frozenset(range(form.width)))
        elif form.op in (AluOp.DIV, AluOp.MOD):
            plain = plain._replace(imm=frozenset())
    elif kind is Kind.CALL:  # of a helper
        plain = isa.Plain(0, CallSrc.HELPER, _ZERO_ONLY, None)
    elif kind is Kind.ATOMIC and isinstance(form.imm, frozenset):
        # What is fetched goes to the source register, which is not r10 then.
        plain = isa.Plain(isa.FRAME_POINTER, isa.FRAME_POINTER - 1, None, form.imm)
    # EXIT reads r0, and its destination field is 0; so is that of may_goto, which reads nothing.
    always = kind in _STORES or kind in (Kind.BYTE_ORDER, Kind.JUMP, Kind.EXIT)
    row = _Row(
        kind,
        form.op,
        form.width,
        form.register,
        # To little endian does not swap: the machine is little-endian.
        kind is Kind.BYTE_ORDER and form.opcode != _TO_LITTLE_ENDIAN,
        int(
            (always and form.op is not JmpOp.JCOND)
            or (kind is Kind.ALU and form.op is not AluOp.MOV)
        ),
        int(form.register),
        int(kind in _LOADS or kind in (Kind.ALU, Kind.BYTE_ORDER, Kind.LOAD_IMM64)),
    )
    return row, plain or _NEVER


_ROWS = {opcode: _row(form) for opcode, form in isa.FORMS.items()}
# check_fields refuses opcodes without a form.
_NO_FORM = _Row(Kind.EXIT, None, 0, False, False, 0, 0, 0), _NEVER


def _check_operand(pc: int, insn: Insn, policy: Policy) -> None:
    """Immediates that are defined but surely a mistake: Linux refuses them too."""
    form = isa.form_of(insn)
    if form is None or form.register or form.kind is not Kind.ALU or policy is Policy.EXECUTOR:
        return
    if form.op in _SHIFTS and not 0 <= insn.imm < form.width:
        raise Refusal(
            "P1",
            f"shift of a {form.width}-bit value by {insn.imm}, must be 0 to {form.width - 1}",
            pc,
            "shift by less, or use 0 for what would be shifted out",
        )
    if form.op in (AluOp.DIV, AluOp.MOD) and not insn.imm:
        raise Refusal("P1", "division by the constant 0", pc, "divide by another number")


_ENCODING = "compile or assemble it again: RFC 9669 does not define this encoding"


def code_reference(step: Step) -> int | None:
    """The pc of the function whose address an instruction loads, None for others."""
    if step.kind is Kind.LOAD_IMM64 and step.src == PseudoSrc.CODE:
        return step.pc + 1 + step.imm
    return None


def map_reference(step: Step) -> int | None:
    """The map index of an LD_IMM64 that names a map, None for others."""
    if step.kind is Kind.LOAD_IMM64 and step.src in (
        PseudoSrc.MAP_INDEX,
        PseudoSrc.MAP_INDEX_VALUE,
    ):
        return step.imm
    return None
