"""Assembler and disassembler.

The syntax is the public conformance suite's; four things are added so that every program can be
written and read back: ``may_goto target``, ``lddw %r1, map_index 0`` (and the other sources of
LD_IMM64), ``call runtime N`` (a kfunc), and ``.insn opcode, dst, src, off, imm`` for any other
slot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from egpu.bpf import isa
from egpu.bpf.insn import imm64
from egpu.bpf.mnemonics import ATOMIC_NAMES, ATOMICS, JUMPS, ROWS, Shape, name_of
from egpu.bpf.program import Insn, PseudoSrc
from egpu.errors import InputError

_RAW = ".insn"  # any slot by its fields
_LABEL = re.compile(r"([A-Za-z_.][\w.]*)\s*:")
_REGISTER = re.compile(r"%r(\d+)$")
_MEMORY = re.compile(r"\[\s*%r(\d+)\s*(?:([+-])\s*(\w+)\s*)?\]$")
_ATOMIC = re.compile(r"((?:fetch\s+)?[a-z]+)(32)?$")
_NUMBER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|\d+)$")
_DW = int(isa.Class.STX | isa.Mode.ATOMIC | isa.Size.DW)
_W = int(isa.Class.STX | isa.Mode.ATOMIC | isa.Size.W)
# LD_IMM64 sources other than a constant; the second says whether "+offset" may follow.
_SOURCES: dict[str, tuple[PseudoSrc, bool]] = {
    "map_fd": (PseudoSrc.MAP_FD, False),
    "map_fd_value": (PseudoSrc.MAP_FD_VALUE, True),
    "code": (PseudoSrc.CODE, False),
    "map_index": (PseudoSrc.MAP_INDEX, False),
    "map_index_value": (PseudoSrc.MAP_INDEX_VALUE, True),
}
_SOURCE_NAMES = {int(src): (name, offset) for name, (src, offset) in _SOURCES.items()}


@dataclass(frozen=True, slots=True)
class _Line:
    """One instruction's text, the slot it starts at, and its line number for messages."""

    text: str
    pc: int
    number: int


def assemble(text: str) -> tuple[Insn, ...]:
    """The slots of ``text``, one instruction a line, ``#`` and ``;`` starting comments.

    Jump targets are ``+n``, ``-n`` (slots past the next one) or labels; ``exit``, if no line has
    that label, means the first exit instruction.  Hexadecimal immediates are unsigned, decimal
    ones signed.  Raises InputError with the line.
    """
    lines, labels = _layout(text)
    code: list[Insn] = []
    for line in lines:
        try:
            code += _Assembler(line.pc, labels).encode(line.text)
        except InputError as error:
            raise InputError(
                f"{error.message} in {line.text!r}", where=f"line {line.number}"
            ) from error
    return tuple(code)


def _layout(text: str) -> tuple[list[_Line], dict[str, int]]:
    """The instructions with their slots, and the labels."""
    lines: list[_Line] = []
    labels: dict[str, int] = {}
    pc = 0
    first_exit: int | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        rest = re.split("[#;]", raw, maxsplit=1)[0].strip()
        while label := _LABEL.match(rest):
            if label[1] in labels:
                raise InputError(f"label {label[1]!r} is defined twice", where=f"line {number}")
            labels[label[1]] = pc
            rest = rest[label.end() :].strip()
        if not rest:
            continue
        if rest == "exit" and first_exit is None:
            first_exit = pc
        lines.append(_Line(rest, pc, number))
        pc += 2 if rest.split()[0] == "lddw" else 1
    if first_exit is not None:
        labels.setdefault("exit", first_exit)
    return lines, labels


class _Assembler:
    """Encodes one line."""

    def __init__(self, pc: int, labels: dict[str, int]) -> None:
        self._pc = pc
        self._labels = labels

    def encode(self, text: str) -> list[Insn]:
        word, _, rest = text.partition(" ")
        operands = [part.strip() for part in rest.split(",")] if rest.strip() else []
        match word:
            case "exit":
                _count(operands, 0)
                return [Insn(isa.EXIT)]
            case "ja" | "ja32" | "may_goto":
                _count(operands, 1)
                field, bits = ("imm", 32) if word == "ja32" else ("off", 16)
                return [Insn(JUMPS[word], **{field: self._target(operands[0], bits)})]
            case "call":
                return [self._call(rest.split())]
            case "lddw":
                _count(operands, 2)
                return self._wide(*operands)
            case "lock":
                return [_atomic(rest)]
            case word if word == _RAW:
                _count(operands, 5)
                opcode, dst, src, off, imm = operands
                registers = _number(dst, 8), _number(src, 8)
                fields = _number(off, 16), _number(imm, 32)
                return [Insn(_number(opcode, 8), *registers, *fields)]
        if word not in ROWS:
            raise InputError(f"unknown instruction {word!r}")
        return [self._row(word, operands)]

    def _row(self, word: str, operands: list[str]) -> Insn:
        shape, opcode, off, imm = ROWS[word]
        match shape:
            case Shape.UNARY:
                _count(operands, 1)
                return Insn(opcode, _register(operands[0]), 0, off, imm)
            case Shape.REGISTERS:
                _count(operands, 2)
                return Insn(opcode, _register(operands[0]), _register(operands[1]), off)
            case Shape.LOAD:
                _count(operands, 2)
                base, off = _memory(operands[1])
                return Insn(opcode, _register(operands[0]), base, off)
            case Shape.STORE_REG:
                _count(operands, 2)
                base, off = _memory(operands[0])
                return Insn(opcode, base, _register(operands[1]), off)
            case Shape.STORE_IMM:
                _count(operands, 2)
                base, off = _memory(operands[0])
                return Insn(opcode, base, 0, off, _number(operands[1], 32))
            case Shape.BINARY:
                _count(operands, 2)
            case Shape.COMPARE:
                _count(operands, 3)
                off = self._target(operands[2], 16)
        dst = _register(operands[0])
        if operands[1].startswith("%"):
            return Insn(opcode | isa.SOURCE_REGISTER, dst, _register(operands[1]), off)
        return Insn(opcode, dst, 0, off, _number(operands[1], 32))

    def _call(self, words: list[str]) -> Insn:
        match words:
            case [target] if target.startswith("%"):
                return Insn(isa.CALLX, _register(target))
            case [number] | ["helper", number]:
                return Insn(isa.CALL, imm=_number(number, 32))
            case ["local", target]:
                return Insn(isa.CALL, src=isa.CallSrc.LOCAL, imm=self._target(target, 32))
            case ["runtime", number]:
                return Insn(isa.CALL, src=isa.CallSrc.KFUNC, imm=_number(number, 32))
        raise InputError("call wants a number, a register, or 'helper', 'local', 'runtime' and one")

    def _wide(self, register: str, value: str) -> list[Insn]:
        dst = _register(register)
        name, _, rest = value.partition(" ")
        if name not in _SOURCES:
            number = _number(value, 64)
            return [
                Insn(isa.LD_IMM64, dst, imm=_signed32(number)),
                Insn(0, imm=_signed32(number >> 32)),
            ]
        src, has_offset = _SOURCES[name]
        if src is PseudoSrc.CODE:
            return [Insn(isa.LD_IMM64, dst, src, imm=self._target(rest.strip(), 32)), Insn(0)]
        first, plus, offset = rest.partition("+")
        if bool(plus) > has_offset:
            raise InputError(f"{name} takes no offset")
        high = _number(offset.strip(), 32) if plus else 0
        return [Insn(isa.LD_IMM64, dst, src, imm=_number(first.strip(), 32)), Insn(0, imm=high)]

    def _target(self, text: str, bits: int) -> int:
        if text in self._labels:
            distance = self._labels[text] - self._pc - 1
        elif _NUMBER.match(text):
            distance = int(text, 0)
        else:
            raise InputError(f"unknown label {text!r}")
        if not -(1 << bits - 1) <= distance < 1 << bits - 1:
            raise InputError(f"jump of {distance} slots does not fit {bits} bits")
        return distance


def _atomic(text: str) -> Insn:
    head, bracket, tail = text.partition("[")
    match = _ATOMIC.match(" ".join(head.split()))
    operands = [part.strip() for part in (bracket + tail).split(",")]
    if match is None or match[1] not in ATOMICS:
        raise InputError("unknown atomic operation")
    _count(operands, 2)
    base, off = _memory(operands[0])
    return Insn(_W if match[2] else _DW, base, _register(operands[1]), off, ATOMICS[match[1]])


def _count(operands: list[str], wanted: int) -> None:
    if len(operands) != wanted:
        raise InputError(f"{wanted} operands wanted, {len(operands)} given")


def _register(text: str) -> int:
    match = _REGISTER.match(text)
    if match is None or int(match[1]) > isa.FRAME_POINTER:
        raise InputError(f"{text!r} is not a register (%r0 to %r10)")
    return int(match[1])


def _memory(text: str) -> tuple[int, int]:
    match = _MEMORY.match(text)
    if match is None:
        raise InputError(f"{text!r} is not a memory operand like [%r1+8]")
    offset = _number(match[2] + match[3], 16) if match[2] else 0
    return _register(f"%r{match[1]}"), offset


def _number(text: str, bits: int) -> int:
    """A number as the signed value of its field: hex covers 0 to 2^bits - 1, decimal is signed."""
    match = _NUMBER.match(text)
    if match is None:
        raise InputError(f"{text!r} is not a number")
    value = int(text, 0)
    hexadecimal = match[2][:2] in ("0x", "0X") and match[1] != "-"
    # 64-bit and 8-bit fields have no sign of their own: both readings are accepted.
    top = 1 << bits if hexadecimal or bits in (8, 64) else 1 << bits - 1
    if not -(1 << bits - 1) <= value < top:
        raise InputError(f"{text} does not fit {bits} bits")
    return value - (1 << bits) if bits in (16, 32) and value >= 1 << bits - 1 else value


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def disassemble(code: Sequence[Insn]) -> list[str]:
    """One line per instruction, LD_IMM64 being one; ``assemble`` reads them back."""
    lines: list[str] = []
    for _, insn, following in isa.instructions(code):
        lines.append(format_insn(insn, following))
        if lines[-1].startswith(_RAW) and isa.is_wide(insn) and following is not None:
            lines.append(_raw(following))
    return lines


def format_insn(insn: Insn, following: Insn | None = None) -> str:
    """``insn`` as text; ``following`` is the next slot, needed for LD_IMM64.

    A malformed instruction is given as ``.insn`` with its fields.
    """
    if insn.opcode == isa.CALLX and insn == Insn(isa.CALLX, insn.dst):
        return f"call %r{insn.dst}" if insn.dst <= isa.FRAME_POINTER else _raw(insn)
    if insn == Insn(isa.CALL, src=isa.CallSrc.KFUNC, imm=insn.imm):
        return f"call runtime {insn.imm}"
    form = isa.form_of(insn)
    if form is None or isa.check_fields(insn, following) is not None:
        return _raw(insn)
    match form.kind:
        case isa.Kind.EXIT:
            return "exit"
        case isa.Kind.JUMP if insn.opcode == isa.MAY_GOTO:
            return f"may_goto {insn.off:+d}"
        case isa.Kind.JUMP_ALWAYS:
            return f"ja {insn.off:+d}" if form.width == 16 else f"ja32 {insn.imm:+d}"
        case isa.Kind.CALL:
            local = insn.src == isa.CallSrc.LOCAL
            return f"call local {insn.imm:+d}" if local else f"call {insn.imm}"
        case isa.Kind.LOAD_IMM64:
            return _format_wide(insn, following)
        case isa.Kind.ATOMIC:
            tail = "32" if form.width == 32 else ""
            operation = ATOMIC_NAMES[insn.imm] + tail
            return f"lock {operation} {_address(insn.dst, insn.off)}, %r{insn.src}"
    return _format_row(insn)


def _format_row(insn: Insn) -> str:
    named = name_of(insn.opcode, insn.off, insn.imm)
    if named is None:
        return _raw(insn)
    name, shape = named
    register = insn.opcode & isa.SOURCE_REGISTER
    operand = f"%r{insn.src}" if register else str(insn.imm)
    match shape:
        case Shape.UNARY:
            return f"{name} %r{insn.dst}"
        case Shape.BINARY:
            return f"{name} %r{insn.dst}, {operand}"
        case Shape.REGISTERS:
            return f"{name} %r{insn.dst}, %r{insn.src}"
        case Shape.COMPARE:
            return f"{name} %r{insn.dst}, {operand}, {insn.off:+d}"
        case Shape.LOAD:
            return f"{name} %r{insn.dst}, {_address(insn.src, insn.off)}"
        case Shape.STORE_REG:
            return f"{name} {_address(insn.dst, insn.off)}, %r{insn.src}"
        case Shape.STORE_IMM:
            return f"{name} {_address(insn.dst, insn.off)}, {insn.imm}"


def _format_wide(insn: Insn, following: Insn | None) -> str:
    high = following if following is not None else Insn(0)
    if insn.src == PseudoSrc.CONST:
        return f"lddw %r{insn.dst}, 0x{imm64(insn, high):x}"
    name, has_offset = _SOURCE_NAMES[insn.src]
    operand = f"{insn.imm:+d}" if insn.src == PseudoSrc.CODE else str(insn.imm)
    offset = f"+{high.imm}" if has_offset and high.imm else ""
    return f"lddw %r{insn.dst}, {name} {operand}{offset}"


def _address(base: int, offset: int) -> str:
    return f"[%r{base}{offset:+d}]" if offset else f"[%r{base}]"


def _raw(insn: Insn) -> str:
    return f"{_RAW} 0x{insn.opcode:02x}, {insn.dst}, {insn.src}, {insn.off}, {insn.imm}"
