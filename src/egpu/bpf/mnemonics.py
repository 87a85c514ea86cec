"""Names of instructions, in the syntax of the public conformance suite: one table for both ways."""

from __future__ import annotations

import enum

from egpu.bpf.isa import (
    ARITHMETIC,
    COMPARISONS,
    MAY_GOTO,
    SIGNED,
    SIZE_BYTES,
    SOURCE_REGISTER,
    AluOp,
    AtomicOp,
    Class,
    JmpOp,
    Mode,
    Size,
)


class Shape(enum.Enum):
    """What operands a mnemonic takes."""

    BINARY = "dst, src or immediate"
    REGISTERS = "dst, src"
    UNARY = "dst"
    LOAD = "dst, [src+off]"
    STORE_IMM = "[dst+off], immediate"
    STORE_REG = "[dst+off], src"
    COMPARE = "dst, src or immediate, target"


# Shape, opcode without the X bit, offset field, immediate field.
Row = tuple[Shape, int, int, int]

_SUFFIXES = {Size.B: "b", Size.H: "h", Size.W: "w", Size.DW: "dw"}


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for cls, tail in ((Class.ALU64, ""), (Class.ALU, "32")):
        for op in ARITHMETIC:
            rows[op.name.lower() + tail] = (Shape.BINARY, cls | op, 0, 0)
        for op in (AluOp.DIV, AluOp.MOD):
            rows["s" + op.name.lower() + tail] = (Shape.BINARY, cls | op, SIGNED, 0)
        rows["neg" + tail] = (Shape.UNARY, cls | AluOp.NEG, 0, 0)
    moved = AluOp.MOV | SOURCE_REGISTER
    for cls, width in ((Class.ALU, 32), (Class.ALU64, 64)):
        for narrow in (8, 16, 32):
            if narrow < width:
                rows[f"movsx{narrow}{width}"] = (Shape.REGISTERS, cls | moved, narrow, 0)
    for prefix, opcode in (
        ("le", Class.ALU | AluOp.END),
        ("be", Class.ALU | AluOp.END | SOURCE_REGISTER),
        ("bswap", Class.ALU64 | AluOp.END),
        ("swap", Class.ALU64 | AluOp.END),  # the later row is what is printed
    ):
        for width in (16, 32, 64):
            rows[f"{prefix}{width}"] = (Shape.UNARY, opcode, 0, width)
    for cls, tail in ((Class.JMP, ""), (Class.JMP32, "32")):
        for jump in COMPARISONS:
            rows[jump.name.lower() + tail] = (Shape.COMPARE, cls | jump, 0, 0)
    for size in SIZE_BYTES:
        tail = _SUFFIXES[size]
        rows["ldx" + tail] = (Shape.LOAD, Class.LDX | Mode.MEM | size, 0, 0)
        if size is not Size.DW:
            rows["ldxs" + tail] = (Shape.LOAD, Class.LDX | Mode.MEMSX | size, 0, 0)
        rows["st" + tail] = (Shape.STORE_IMM, Class.ST | Mode.MEM | size, 0, 0)
        rows["stx" + tail] = (Shape.STORE_REG, Class.STX | Mode.MEM | size, 0, 0)
    return rows


ROWS: dict[str, Row] = _rows()

ATOMICS: dict[str, AtomicOp] = {
    "add": AtomicOp.ADD,
    "or": AtomicOp.OR,
    "and": AtomicOp.AND,
    "xor": AtomicOp.XOR,
    "fetch add": AtomicOp.FETCH_ADD,
    "fetch or": AtomicOp.FETCH_OR,
    "fetch and": AtomicOp.FETCH_AND,
    "fetch xor": AtomicOp.FETCH_XOR,
    "xchg": AtomicOp.XCHG,
    "cmpxchg": AtomicOp.CMPXCHG,
}
ATOMIC_NAMES: dict[int, str] = {int(op): name for name, op in ATOMICS.items()}
JUMPS: dict[str, int] = {
    "ja": Class.JMP | JmpOp.JA,
    "ja32": Class.JMP32 | JmpOp.JA,
    "may_goto": MAY_GOTO,
}


def name_of(opcode: int, off: int, imm: int) -> tuple[str, Shape] | None:
    """Mnemonic and shape of an instruction with these fields, None if the table has none."""
    return _NAMES.get(_key(opcode, off, imm))


def _key(opcode: int, off: int, imm: int) -> tuple[int, int]:
    """The opcode and what else selects the mnemonic: the offset of ALU, the immediate of END."""
    if opcode & 0x07 in (Class.ALU, Class.ALU64):
        return opcode, imm if opcode & 0xF0 == AluOp.END else off
    return opcode, 0


def _names() -> dict[tuple[int, int], tuple[str, Shape]]:
    names: dict[tuple[int, int], tuple[str, Shape]] = {}
    for name, (shape, opcode, off, imm) in ROWS.items():
        names[_key(opcode, off, imm)] = (name, shape)
        if shape in (Shape.BINARY, Shape.COMPARE):
            names[_key(opcode | SOURCE_REGISTER, off, imm)] = (name, shape)
    return names


_NAMES = _names()
