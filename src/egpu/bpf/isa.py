"""The instruction set as tables (RFC 9669), and the structural check that reads them.

``FORMS`` has a row for every opcode that egpu knows; it says what the instruction is and what each
of its four fields may hold.  Whatever has no row is invalid, and ``refused`` names what exists
somewhere but not here (callx, legacy packet access, arena casts, …), so that nothing is
ever taken for something else.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egpu.bpf.program import Insn, PseudoSrc

FRAME_POINTER = 10
STACK_SIZE = 512  # bytes per frame
MAX_CALL_DEPTH = 8  # frames, the main function's included


class Class(enum.IntEnum):
    """The low three bits of an opcode (RFC 9669 section 3.1)."""

    LD = 0
    LDX = 1
    ST = 2
    STX = 3
    ALU = 4
    JMP = 5
    JMP32 = 6
    ALU64 = 7


class AluOp(enum.IntEnum):
    """The high four bits in ALU and ALU64 (RFC 9669 section 4.1)."""

    __hash__ = int.__hash__  # equal as numbers; Enum's own is written in Python and slow

    ADD = 0x00
    SUB = 0x10
    MUL = 0x20
    DIV = 0x30
    OR = 0x40
    AND = 0x50
    LSH = 0x60
    RSH = 0x70
    NEG = 0x80
    MOD = 0x90
    XOR = 0xA0
    MOV = 0xB0
    ARSH = 0xC0
    END = 0xD0


class JmpOp(enum.IntEnum):
    """The high four bits in JMP and JMP32 (RFC 9669 section 4.3)."""

    __hash__ = int.__hash__

    JA = 0x00
    JEQ = 0x10
    JGT = 0x20
    JGE = 0x30
    JSET = 0x40
    JNE = 0x50
    JSGT = 0x60
    JSGE = 0x70
    CALL = 0x80
    EXIT = 0x90
    JLT = 0xA0
    JLE = 0xB0
    JSLT = 0xC0
    JSLE = 0xD0
    JCOND = 0xE0  # may_goto of Linux: jumps once the budget of the run is used up


class Size(enum.IntEnum):
    """Access size in load and store opcodes (RFC 9669 section 5)."""

    W = 0x00
    H = 0x08
    B = 0x10
    DW = 0x18


class Mode(enum.IntEnum):
    """Mode in load and store opcodes (RFC 9669 section 5)."""

    IMM = 0x00
    ABS = 0x20
    IND = 0x40
    MEM = 0x60
    MEMSX = 0x80
    ATOMIC = 0xC0


class AtomicOp(enum.IntEnum):
    """The immediate of atomics (RFC 9669 section 5.3)."""

    ADD = 0x00
    OR = 0x40
    AND = 0x50
    XOR = 0xA0
    FETCH_ADD = 0x01
    FETCH_OR = 0x41
    FETCH_AND = 0x51
    FETCH_XOR = 0xA1
    XCHG = 0xE1
    CMPXCHG = 0xF1


class CallSrc(enum.IntEnum):
    """The source register field of CALL (RFC 9669 section 4.3.1)."""

    HELPER = 0
    LOCAL = 1
    KFUNC = 2


SIZE_BYTES: dict[Size, int] = {Size.B: 1, Size.H: 2, Size.W: 4, Size.DW: 8}
SOURCE_REGISTER = 0x08  # the X bit of ALU and JMP opcodes
LD_IMM64 = Class.LD | Mode.IMM | Size.DW
CALL = Class.JMP | JmpOp.CALL
EXIT = Class.JMP | JmpOp.EXIT
CALLX = CALL | SOURCE_REGISTER
FETCH = 1  # bit of an atomic's immediate: the old value is loaded (into src; CMPXCHG: r0)
SIGNED = 1  # the offset field of SDIV and SMOD
ADDR_SPACE_CAST = 1  # the offset field of a MOV that is Linux's arena cast

MAY_GOTO = Class.JMP | JmpOp.JCOND
_NO_COMPARISONS = (JmpOp.JA, JmpOp.CALL, JmpOp.EXIT, JmpOp.JCOND)
COMPARISONS = tuple(op for op in JmpOp if op not in _NO_COMPARISONS)
ARITHMETIC = tuple(op for op in AluOp if op not in (AluOp.NEG, AluOp.END))


class Kind(enum.Enum):
    """What an instruction is, for whoever dispatches on it."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python and slow

    ALU = "arithmetic"
    BYTE_ORDER = "byte order"
    LOAD = "load"
    LOAD_SIGNED = "sign-extending load"
    STORE_IMM = "store of an immediate"
    STORE_REG = "store of a register"
    ATOMIC = "atomic"
    JUMP = "conditional jump"
    JUMP_ALWAYS = "jump"
    CALL = "call"
    EXIT = "exit"
    LOAD_IMM64 = "64-bit immediate"


class Use(enum.Enum):
    """What a field may hold where it is not a set of values."""

    ZERO = "must be zero"
    READ = "a register that is read"
    WRITE = "a register that is written"
    ANY = "any value"


Rule = Use | frozenset[int]


@dataclass(frozen=True, slots=True)
class Form:
    """One opcode.

    ``op`` is the AluOp or JmpOp, None for memory instructions; ``width`` the bits of the operation
    or access (of the distance for JUMP_ALWAYS); ``register`` whether the second operand is a
    register.  ``dst``, ``src``, ``off`` and ``imm`` say what each field may hold.
    """

    opcode: int
    kind: Kind
    op: AluOp | JmpOp | None
    width: int
    register: bool
    dst: Rule
    src: Rule
    off: Rule
    imm: Rule


def _set(*values: int) -> frozenset[int]:
    return frozenset(values)


_Z, _R, _W, _ANY = Use.ZERO, Use.READ, Use.WRITE, Use.ANY
_SWAPS = _set(16, 32, 64)
_ATOMICS = frozenset(int(op) for op in AtomicOp)
_PSEUDO = frozenset(int(src) for src in PseudoSrc)
_CALLS = frozenset(int(src) for src in CallSrc)

# Offsets that select a variant: (op, by register, width) -> allowed values (RFC 9669 section 4.1).
_ALU_OFFSETS: dict[tuple[AluOp, bool, int], frozenset[int]] = {
    **{
        (op, register, width): _set(0, SIGNED)
        for op in (AluOp.DIV, AluOp.MOD)
        for register in (False, True)
        for width in (32, 64)
    },
    (AluOp.MOV, True, 32): _set(0, 8, 16),
    (AluOp.MOV, True, 64): _set(0, 8, 16, 32),
}


def _alu_forms() -> Iterator[Form]:
    for cls, width in ((Class.ALU, 32), (Class.ALU64, 64)):
        for op in ARITHMETIC:
            for register in (False, True):
                opcode = cls | op | (SOURCE_REGISTER if register else 0)
                off: Rule = _ALU_OFFSETS.get((op, register, width), _Z)
                src, imm = (_R, _Z) if register else (_Z, _ANY)
                yield Form(opcode, Kind.ALU, op, width, register, _W, src, off, imm)
        yield Form(cls | AluOp.NEG, Kind.ALU, AluOp.NEG, width, False, _W, _Z, _Z, _Z)
    order = Kind.BYTE_ORDER
    for opcode in (  # to little endian, to big endian, unconditional swap
        Class.ALU | AluOp.END,
        Class.ALU | AluOp.END | SOURCE_REGISTER,
        Class.ALU64 | AluOp.END,
    ):
        yield Form(opcode, order, AluOp.END, 64, False, _W, _Z, _Z, _SWAPS)


def _jump_forms() -> Iterator[Form]:
    for cls, width in ((Class.JMP, 64), (Class.JMP32, 32)):
        for op in COMPARISONS:
            yield Form(cls | op, Kind.JUMP, op, width, False, _R, _Z, _ANY, _ANY)
            opcode = cls | op | SOURCE_REGISTER
            yield Form(opcode, Kind.JUMP, op, width, True, _R, _R, _ANY, _Z)
    yield Form(MAY_GOTO, Kind.JUMP, JmpOp.JCOND, 64, False, _Z, _Z, _ANY, _Z)
    always = Kind.JUMP_ALWAYS
    yield Form(Class.JMP | JmpOp.JA, always, JmpOp.JA, 16, False, _Z, _Z, _ANY, _Z)
    yield Form(Class.JMP32 | JmpOp.JA, always, JmpOp.JA, 32, False, _Z, _Z, _Z, _ANY)
    yield Form(CALL, Kind.CALL, JmpOp.CALL, 64, False, _Z, _CALLS, _Z, _ANY)
    yield Form(EXIT, Kind.EXIT, JmpOp.EXIT, 64, False, _Z, _Z, _Z, _Z)


def _memory_forms() -> Iterator[Form]:
    for size, count in SIZE_BYTES.items():
        bits = 8 * count
        load, store, put = (cls | Mode.MEM | size for cls in (Class.LDX, Class.STX, Class.ST))
        yield Form(load, Kind.LOAD, None, bits, True, _W, _R, _ANY, _Z)
        yield Form(store, Kind.STORE_REG, None, bits, True, _R, _R, _ANY, _Z)
        yield Form(put, Kind.STORE_IMM, None, bits, False, _R, _Z, _ANY, _ANY)
        if size is not Size.DW:
            signed = Class.LDX | Mode.MEMSX | size
            yield Form(signed, Kind.LOAD_SIGNED, None, bits, True, _W, _R, _ANY, _Z)
        if size in (Size.W, Size.DW):
            atomic = Class.STX | Mode.ATOMIC | size
            yield Form(atomic, Kind.ATOMIC, None, bits, True, _R, _R, _ANY, _ATOMICS)
    yield Form(LD_IMM64, Kind.LOAD_IMM64, None, 64, False, _W, _PSEUDO, _Z, _ANY)


FORMS: dict[int, Form] = {
    form.opcode: form for make in (_alu_forms, _jump_forms, _memory_forms) for form in make()
}

# What exists in Linux or in the RFC's optional groups and egpu refuses by name.
_CALLX = "callx (call through a register)"
_PACKET = "legacy packet access"
_REFUSED_OPCODES: dict[int, str] = {
    CALLX: _CALLX,
    Class.JMP32 | JmpOp.CALL | SOURCE_REGISTER: _CALLX,
    Class.JMP | JmpOp.JA | SOURCE_REGISTER: "gotox (jump through a register)",
    **{Class.LD | mode | size: _PACKET for mode in (Mode.ABS, Mode.IND) for size in SIZE_BYTES},
    **{Class.STX | Mode.ATOMIC | size: "8-bit and 16-bit atomics" for size in (Size.B, Size.H)},
}
_REFUSED_ATOMICS: dict[int, str] = {0x100: "load-acquire", 0x110: "store-release"}
# A second LD_IMM64 slot may hold something only for these sources.
_HIGH_WORD = _set(PseudoSrc.CONST, PseudoSrc.MAP_FD_VALUE, PseudoSrc.MAP_INDEX_VALUE)


def form_of(insn: Insn) -> Form | None:
    """The row of ``insn``'s opcode, None if egpu knows no such instruction."""
    return FORMS.get(insn.opcode)


def is_wide(insn: Insn) -> bool:
    """Whether ``insn`` takes two slots."""
    return insn.opcode == LD_IMM64


def refused(insn: Insn) -> str | None:
    """The name of the feature that ``insn`` needs and egpu does not have, None if none."""
    name = _REFUSED_OPCODES.get(insn.opcode)
    if insn.opcode & ~Size.DW == Class.STX | Mode.ATOMIC and insn.imm in _REFUSED_ATOMICS:
        return _REFUSED_ATOMICS[insn.imm]
    if name is not None:
        return name
    if insn.opcode == Class.ALU64 | AluOp.MOV | SOURCE_REGISTER and insn.off == ADDR_SPACE_CAST:
        return "arena cast (addr_space_cast)"
    if insn.opcode == CALL and insn.src == CallSrc.KFUNC:
        return "kernel function call (kfunc)"
    if insn.opcode == LD_IMM64 and insn.src == PseudoSrc.VARIABLE:
        return "address of a kernel variable (ksym)"
    return None


class Plain(NamedTuple):
    """Fields with which an instruction of some opcode is surely well formed: registers from 0 to
    ``dst`` and ``src``, the given values (None: any)."""

    dst: int
    src: int
    off: frozenset[int] | None
    imm: frozenset[int] | None


_HIGHEST = {Use.ZERO: 0, Use.READ: FRAME_POINTER, Use.WRITE: FRAME_POINTER - 1}
_VALUES = {Use.ZERO: _set(0), Use.ANY: None}
# Kinds whose forms say all there is to check.
_PLAIN_KINDS = frozenset(Kind) - {Kind.ATOMIC, Kind.CALL, Kind.LOAD_IMM64}


def _plain(form: Form) -> Plain:
    dst, src, off, imm = (
        rule if isinstance(rule, frozenset) else rules[rule]
        for rule, rules in (
            (form.dst, _HIGHEST),
            (form.src, _HIGHEST),
            (form.off, _VALUES),
            (form.imm, _VALUES),
        )
    )
    assert isinstance(dst, int), "registers are not listed in plain forms"
    assert isinstance(src, int), "registers are not listed in plain forms"
    assert not isinstance(off, int), "offsets are sets"
    assert not isinstance(imm, int), "immediates are sets"
    return Plain(dst, src, off, imm)


PLAIN: dict[int, Plain] = {
    form.opcode: _plain(form) for form in FORMS.values() if form.kind in _PLAIN_KINDS
}


def check_fields(insn: Insn, following: Insn | None) -> str | None:
    """Why ``insn`` is malformed, None if it is well formed.

    ``following`` is the next slot (None at the end), looked at for LD_IMM64.  Checks the opcode,
    every reserved field, register numbers, writes to the frame pointer and both slots of LD_IMM64;
    jump targets are a matter of the whole program.  (``PLAIN`` answers faster, where it does.)
    """
    feature = refused(insn)
    if feature is not None:
        return f"{feature} is not supported"
    form = FORMS.get(insn.opcode)
    if form is None:
        if insn.opcode == 0:
            return "opcode 0x00 is the second half of a 64-bit immediate and cannot stand alone"
        return f"unknown opcode 0x{insn.opcode:02x}"
    for name, value, rule in (
        ("destination register", insn.dst, form.dst),
        ("source register", insn.src, form.src),
        ("offset", insn.off, form.off),
        ("immediate", insn.imm, form.imm),
    ):
        reason = _check_field(name, value, rule)
        if reason is not None:
            return reason
    if form.kind is Kind.ATOMIC and insn.imm & FETCH and insn.imm != AtomicOp.CMPXCHG:
        return _check_field("source register", insn.src, Use.WRITE)
    return _check_wide(insn, following) if insn.opcode == LD_IMM64 else None


def _check_field(name: str, value: int, rule: Rule) -> str | None:
    if isinstance(rule, frozenset):
        if value in rule:
            return None
        allowed = ", ".join(map(str, sorted(rule)))
        return f"{name} field is {value}, must be one of {allowed}"
    match rule:
        case Use.ANY:
            return None
        case Use.ZERO:
            return f"reserved {name} field is {value}, must be 0" if value else None
        case Use.READ:
            return f"{name} r{value} does not exist" if value > FRAME_POINTER else None
        case Use.WRITE:
            if value == FRAME_POINTER:
                return "r10 is the frame pointer and read-only"
            return f"{name} r{value} does not exist" if value > FRAME_POINTER else None


def _check_wide(insn: Insn, following: Insn | None) -> str | None:
    if following is None:
        return "64-bit immediate lacks its second half"
    if following.opcode or following.dst or following.src or following.off:
        return "second half of a 64-bit immediate has reserved fields that are not 0"
    if following.imm and insn.src not in _HIGH_WORD:
        return f"reserved upper immediate is {following.imm}, must be 0"
    return None


def instructions(code: Sequence[Insn]) -> Iterator[tuple[int, Insn, Insn | None]]:
    """Each instruction of ``code`` as (pc, insn, next slot), second slots of LD_IMM64 skipped."""
    pc = 0
    while pc < len(code):
        insn = code[pc]
        yield pc, insn, code[pc + 1] if pc + 1 < len(code) else None
        pc += 2 if is_wide(insn) else 1


def jump_target(pc: int, insn: Insn) -> int | None:
    """The slot a jump or local call at ``pc`` may go to, None for other instructions."""
    form = FORMS.get(insn.opcode)
    if form is None:
        return None
    if form.kind is Kind.JUMP or (form.kind is Kind.JUMP_ALWAYS and form.width == 16):
        return pc + 1 + insn.off
    if form.kind is Kind.JUMP_ALWAYS or (form.kind is Kind.CALL and insn.src == CallSrc.LOCAL):
        return pc + 1 + insn.imm
    return None
