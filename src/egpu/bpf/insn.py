"""Instruction bytes to values and back, and a Program from bare instructions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from egpu.bpf import isa
from egpu.bpf.program import AttachPoint, Function, Insn, MapSpec, Program, PseudoSrc
from egpu.errors import InputError

SLOT = 8  # bytes
MAX_SLOTS = 100_000  # each costs the verifier one step, and that is its whole budget
_FUNCTION_REFERENCES = ((isa.CALL, isa.CallSrc.LOCAL), (isa.LD_IMM64, PseudoSrc.CODE))
_FORMAT = struct.Struct("<BBhi")  # opcode, src << 4 | dst, offset, immediate


def decode(data: bytes) -> tuple[Insn, ...]:
    """The slots in ``data``, little endian.

    Gives any 8 bytes as an ``Insn``: whether it is a valid one is for ``isa.check_fields``.
    Raises InputError when the length is not a multiple of 8 or there are over MAX_SLOTS slots.
    """
    if len(data) % SLOT:
        raise InputError(f"program is {len(data)} bytes long, which is not a multiple of 8")
    if len(data) // SLOT > MAX_SLOTS:
        raise InputError(f"program has {len(data) // SLOT} instructions, limit {MAX_SLOTS}")
    return tuple(
        Insn(opcode, registers & 0xF, registers >> 4, off, imm)
        for opcode, registers, off, imm in _FORMAT.iter_unpack(data)
    )


def encode(code: Sequence[Insn]) -> bytes:
    """The bytes of ``code``. Raises InputError when a field does not fit its width."""
    out = bytearray()
    for pc, insn in enumerate(code):
        try:
            if insn.dst >> 4 or insn.src >> 4:
                raise InputError("register number does not fit 4 bits", where=f"insn {pc}")
            out += _FORMAT.pack(insn.opcode, insn.src << 4 | insn.dst, insn.off, insn.imm)
        except struct.error as error:
            raise InputError(f"field out of range: {error}", where=f"insn {pc}") from error
    return bytes(out)


def imm64(insn: Insn, following: Insn) -> int:
    """The unsigned 64-bit constant of an LD_IMM64."""
    return (following.imm & 0xFFFFFFFF) << 32 | insn.imm & 0xFFFFFFFF


def function_starts(code: Sequence[Insn]) -> dict[int, int]:
    """Slots that local calls and code addresses name, each with the pc of its first use.

    A target outside ``code`` is left out: the verifier reports it at the call.
    """
    starts: dict[int, int] = {}
    for pc, insn, _ in isa.instructions(code):
        if (insn.opcode, insn.src) in _FUNCTION_REFERENCES:
            target = pc + 1 + insn.imm
            if 0 <= target < len(code):
                starts.setdefault(target, pc)
    return starts


def program_from_code(
    code: Sequence[Insn],
    name: str = "main",
    *,
    maps: tuple[MapSpec, ...] = (),
    attach: tuple[AttachPoint, ...] = (),
    section: str = "",
    license: str = "",
) -> Program:
    """A Program of bare instructions, split into functions where local calls lead.

    The first is called ``name``, the others ``name.<slot>``.
    """
    starts = sorted({0, *function_starts(code)})
    ends = [*starts[1:], len(code)]
    functions = tuple(
        Function(f"{name}.{start}" if start else name, start, end - start)
        for start, end in zip(starts, ends, strict=True)
    )
    return Program(name, section, tuple(code), functions, maps=maps, attach=attach, license=license)
