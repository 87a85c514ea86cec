"""CO-RE relocations: instructions of an object fitted to the types of the machine it runs on.

Linux Documentation/bpf/llvm_reloc.rst, "CO-RE Relocations".  What a program asks of a type that is
not there becomes a call of a helper that does not exist: a program that tests first never reaches
it, and the verifier refuses the others with the text kept for that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from egpu.bpf import isa
from egpu.bpf.arith import signed
from egpu.bpf.btf import Btf
from egpu.bpf.btf_ext import CoreKind, CoreRelocation, LineInfo
from egpu.bpf.core_spec import (
    COMPOSITE,
    Spec,
    enumerator_spec,
    essential,
    field_spec,
    match_enumerator,
    match_field,
    parse_access,
    same_kind,
)
from egpu.bpf.core_target import CoreTarget, Provider, context_target
from egpu.bpf.core_types import Matcher, types_agree
from egpu.bpf.core_values import (
    ENUMERATORS,
    FIELDS,
    Value,
    is_bit_field,
    missing_value,
    value_of,
)
from egpu.bpf.elf import Elf
from egpu.bpf.insn import SLOT, decode, encode
from egpu.bpf.program import MISSING_HELPER, Insn
from egpu.errors import InputError, UnsupportedError

_ARITHMETIC = (isa.Class.ALU, isa.Class.ALU64)
_MEMORY = (isa.Class.LDX, isa.Class.ST, isa.Class.STX)
_FROM_REGISTER = 0x08
_SIZE_MASK = 0x18
# What compilers compute as this does: a difference means that the object was changed since.
_CHECKED = frozenset({CoreKind.FIELD_BYTE_OFFSET, CoreKind.FIELD_BYTE_SIZE, CoreKind.TYPE_SIZE})
_SIZES = {1: isa.Size.B, 2: isa.Size.H, 4: isa.Size.W, 8: isa.Size.DW}
_OFFSETS = range(-(1 << 15), 1 << 15)


@dataclass(frozen=True, slots=True)
class Fitted:
    """An object whose instructions are fitted; ``missing`` says what call number
    ``MISSING_HELPER + i`` stands for."""

    elf: Elf
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A relocation solved: the value compiled for and that of this machine.

    ``what`` it is about, and ``missing`` if it has no value, are for messages; ``checked`` where
    the instruction must hold the value compiled for.
    """

    what: str
    before: Value
    now: Value
    checked: bool = False
    missing: str = ""


def relocate(
    elf: Elf,
    btf: Btf,
    relocations: Sequence[CoreRelocation],
    lines: Mapping[str, Sequence[LineInfo]],
    provider: Provider | None,
) -> Fitted:
    """Apply ``relocations``.

    ``provider`` gives the kernel's types; it is asked only if they are needed.  Raises InputError
    for malformed ones and for types that leave open which is meant, UnsupportedError when the
    kernel's types are needed and there are none.
    """
    solver = _Solver(btf, provider)
    code = {section.name: bytearray(section.data) for section in elf.sections if section.is_code}
    missing: list[str] = []
    for row in relocations:
        where = _place(elf, row, lines)
        if row.section not in code:
            raise InputError("CO-RE relocation of a section without code", where=where)
        answer = solver.answer(row, where)
        place = _instruction(code[row.section], row, where)
        unfit = _unfit(place, answer)
        if unfit or answer.now.number is None:
            made = (Insn(isa.CALL, imm=MISSING_HELPER + len(missing)),) * (
                (place.end - place.start) // SLOT
            )
            missing.append(unfit)
        else:
            made = _changed(place, answer, answer.now.number)
        code[row.section][place.start : place.end] = encode(made)
    sections = tuple(
        replace(section, data=memoryview(bytes(code[section.name]))) if section.is_code else section
        for section in elf.sections
    )
    return Fitted(replace(elf, sections=sections), tuple(missing))


def _place(elf: Elf, row: CoreRelocation, lines: Mapping[str, Sequence[LineInfo]]) -> str:
    before = [line for line in lines.get(row.section, ()) if line.offset <= row.offset]
    place = f"{elf.name}: section {row.section}, offset {row.offset}"
    return place + (f" ({before[-1].file}:{before[-1].line})" if before else "")


class _Solver:
    """Finds what relocations of one object mean here."""

    def __init__(self, btf: Btf, provider: Provider | None) -> None:
        self._btf = btf
        self._provider = provider
        self._known: dict[tuple[CoreKind, int, str], _Answer] = {}
        self._candidates: dict[int, tuple[CoreTarget, tuple[int, ...]]] = {}

    def answer(self, row: CoreRelocation, where: str) -> _Answer:
        key = row.kind, row.type, row.access
        if key not in self._known:
            self._known[key] = self._solve(row, where)
        return self._known[key]

    def _solve(self, row: CoreRelocation, where: str) -> _Answer:
        numbers = parse_access(row.access, where)
        if row.kind in FIELDS:
            local = field_spec(self._btf, row.type, numbers, where)
        elif row.kind in ENUMERATORS:
            local = enumerator_spec(self._btf, row.type, numbers, where)
        else:
            local = Spec(self._btf, row.type)
        what, before = local.text(), value_of(row.kind, local, where)
        checked = row.kind in _CHECKED and (row.kind not in FIELDS or not is_bit_field(local))
        if row.kind is CoreKind.TYPE_ID_LOCAL:
            return _Answer(what, before, before, checked)
        name = self._btf.type_at(row.type).name
        if not name:
            raise InputError(f"{row.kind.words} of a type without a name", where=where)
        target, ids = self._of(row, where)
        found = [spec for each in ids if (spec := _match(row.kind, local, target.btf, each))]
        values = {value_of(row.kind, spec, where) for spec in found}
        if len(values) > 1:
            raise InputError(
                f"{row.kind.words} of {what} differs between {len(found)} types of that "
                f"name in {target.name}",
                where=where,
            )
        if values:
            return _Answer(what, before, values.pop(), checked)
        now = missing_value(row.kind)
        return _Answer(what, before, now, checked, f"{target.name} has no {what}")

    def _of(self, row: CoreRelocation, where: str) -> tuple[CoreTarget, tuple[int, ...]]:
        """The types that may be meant by the one with that id."""
        if row.type not in self._candidates:
            local = self._btf.type_at(row.type)
            name = essential(local.name)
            target = context_target()
            if local.kind not in COMPOSITE or not target.named(name):
                target = self._kernel(row, where)
            ids = tuple(
                each for each in target.named(name) if same_kind(local, target.btf.type_at(each))
            )
            self._candidates[row.type] = target, ids
        return self._candidates[row.type]

    def _kernel(self, row: CoreRelocation, where: str) -> CoreTarget:
        if self._provider is None:
            name = self._btf.type_at(row.type).name
            raise UnsupportedError(
                f"CO-RE relocation ({row.kind.words} of {name}) at {where}",
                needs="the BTF of a kernel",
            )
        return self._provider()


def _match(kind: CoreKind, local: Spec, btf: Btf, candidate: int) -> Spec | None:
    if kind in FIELDS:
        return match_field(local, btf, candidate)
    if kind in ENUMERATORS:
        return match_enumerator(local, btf, candidate)
    if kind is CoreKind.TYPE_MATCHES:
        fits = Matcher(local.btf, btf).matches(local.root, candidate)
    else:
        fits = types_agree(local.btf, local.root, btf, candidate)
    return Spec(btf, candidate) if fits else None


@dataclass(frozen=True, slots=True)
class _Place:
    """The instruction of a relocation: bytes ``start`` to ``end`` of its section."""

    insn: Insn
    start: int
    end: int
    where: str


def _instruction(code: bytearray, row: CoreRelocation, where: str) -> _Place:
    if row.offset % SLOT or row.offset + SLOT > len(code):
        raise InputError("CO-RE relocation outside of the code", where=where)
    insn, *_ = decode(bytes(code[row.offset : row.offset + SLOT]))
    end = row.offset + (2 if isa.is_wide(insn) else 1) * SLOT
    if end > len(code):
        raise InputError("CO-RE relocation of half a 64-bit value", where=where)
    return _Place(insn, row.offset, end, where)


def _unfit(place: _Place, answer: _Answer) -> str:
    """Why the instruction must not be reached, "" if it may."""
    before, now = answer.before, answer.now
    if now.number is None:
        return answer.missing
    resized = before.size and before.size != now.size
    if resized and not (before.extends and now.extends) and place.insn.opcode & 7 in _MEMORY:
        return f"{answer.what} has {now.size} bytes here, not {before.size}, and is no plain number"
    return ""


def _changed(place: _Place, answer: _Answer, number: int) -> tuple[Insn, ...]:
    """The instruction with ``number`` in place of what was compiled in. Raises InputError."""
    insn, before = place.insn, answer.before.number
    kind = insn.opcode & 7
    if isa.is_wide(insn):
        value = number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF
        low, high = (signed(half, 32) for half in value)
        return replace(insn, imm=low), Insn(0, imm=high)
    if kind in _ARITHMETIC:
        if insn.opcode & _FROM_REGISTER:
            raise InputError("CO-RE relocation of an instruction on registers", where=place.where)
        if answer.checked and insn.imm != before:
            raise _stale(place, insn.imm, before)
        if not -(1 << 31) <= number < 1 << 32:
            raise InputError(f"{answer.what}: {number} does not fit 32 bits", where=place.where)
        return (replace(insn, imm=signed(number & 0xFFFFFFFF, 32)),)
    if kind not in _MEMORY:
        raise InputError(f"CO-RE relocation of opcode 0x{insn.opcode:02x}", where=place.where)
    if answer.checked and insn.off != before:
        raise _stale(place, insn.off, before)
    if number not in _OFFSETS:
        raise InputError(f"{answer.what}: offset {number} is too far", where=place.where)
    size = answer.now.size
    opcode = insn.opcode
    if size != answer.before.size:
        if size not in _SIZES or _bytes(insn) != answer.before.size:
            raise InputError(f"{answer.what} has {size} bytes here", where=place.where)
        opcode = opcode & ~_SIZE_MASK | _SIZES[size]
    return (replace(insn, opcode=opcode, off=number),)


def _bytes(insn: Insn) -> int:
    return next(size for size, code in _SIZES.items() if code == insn.opcode & _SIZE_MASK)


def _stale(place: _Place, found: int, wanted: int | None) -> InputError:
    return InputError(
        f"CO-RE relocation of an instruction that holds {found}, {wanted} expected",
        where=place.where,
        hint="compile the object anew",
    )
