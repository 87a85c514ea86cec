"""Linking: each program with the functions it reaches, its references resolved."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from egpu.bpf import isa
from egpu.bpf.btf_ext import LineInfo
from egpu.bpf.elf import BIND_LOCAL, SYMBOL_FUNCTION, Elf, Relocation, Section, Symbol
from egpu.bpf.insn import MAX_SLOTS, SLOT, decode
from egpu.bpf.object_maps import ObjectMaps
from egpu.bpf.program import Function, Insn, PseudoSrc, SourceLine
from egpu.errors import InputError, UnsupportedError

# Relocation types of Linux Documentation/bpf/llvm_reloc.rst
_R_BPF_64_64 = 1
_R_BPF_64_32 = 10
_MAX_LINKED = 4 * MAX_SLOTS  # slots of all programs of an object together


@dataclass(frozen=True, slots=True)
class CodeFunction:
    """A function in a section: slots ``start`` to ``start + length`` of it."""

    name: str
    section: int
    start: int
    length: int
    is_static: bool
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class _Site:
    """An instruction's place: its section, slot in it, relocation, and how messages call it."""

    section: Section
    place: int
    relocation: Relocation | None
    where: str


@dataclass(frozen=True, slots=True)
class Linked:
    """A program complete: main first, then what it reaches."""

    code: tuple[Insn, ...]
    functions: tuple[Function, ...]
    lines: tuple[SourceLine, ...]


_Key = tuple[int, int]  # a function: index of its section, slot in it
_Resolved = tuple[Insn, _Key | None]  # a slot, and the function that its immediate shall reach


class Linker:
    """Links the programs of one object."""

    def __init__(
        self, elf: Elf, maps: ObjectMaps, lines: Mapping[str, tuple[LineInfo, ...]]
    ) -> None:
        self._elf = elf
        self._maps = maps
        self._lines = lines
        self._resolved: dict[_Key, tuple[_Resolved, ...]] = {}
        self._relocations: dict[int, dict[int, Relocation]] = {}
        self._linked = 0
        self.functions: dict[_Key, CodeFunction] = {}
        for section in elf.sections:
            if section.is_code:
                self._add_section(section)

    def _where(self, section: Section, slot: int | None = None) -> str:
        place = f"{self._elf.name}: section {section.index} ({section.name})"
        return place if slot is None else f"{place}, offset {slot * SLOT}"

    def _add_section(self, section: Section) -> None:
        """Find the section's functions and check that they do not overlap."""
        where = self._where(section)
        if len(section.data) % SLOT:
            raise InputError(f"{len(section.data)} bytes of code are no whole slots", where=where)
        found = []
        for symbol in self._elf.symbols:
            if symbol.section != section.index or symbol.type != SYMBOL_FUNCTION:
                continue
            if symbol.value % SLOT or symbol.size % SLOT or not symbol.size:
                raise InputError(
                    f"function {symbol.name!r} at {symbol.value} of {symbol.size} bytes is no"
                    " whole slots",
                    where=where,
                )
            if symbol.value + symbol.size > len(section.data):
                raise InputError(f"function {symbol.name!r} ends outside it", where=where)
            static = symbol.bind == BIND_LOCAL
            start, length = symbol.value // SLOT, symbol.size // SLOT
            found.append(
                CodeFunction(symbol.name, section.index, start, length, static, symbol.hidden)
            )
        found.sort(key=lambda function: (function.start, function.is_static, function.name))
        for before, after in pairwise(found):
            same = (before.start, before.length) == (after.start, after.length)
            if after.start < before.start + before.length and not same:
                raise InputError(
                    f"functions {before.name!r} and {after.name!r} overlap", where=where
                )
        for function in found:
            self.functions.setdefault((section.index, function.start), function)
        rows = self._elf.relocations.get(section.index, ())
        self._relocations[section.index] = {row.offset // SLOT: row for row in rows}
        for row in rows:
            if row.offset % SLOT:
                raise InputError(f"relocation in the middle of a slot, {row.offset}", where=where)

    def link(self, main: CodeFunction) -> Linked:
        """``main`` with every function it reaches. Raises InputError, UnsupportedError."""
        order: list[_Key] = [(main.section, main.start)]
        seen = {order[0]}
        starts: dict[_Key, int] = {}
        code: list[Insn] = []
        pending: list[tuple[int, _Key]] = []
        for key in order:  # grows while it is read
            function = self.functions[key]
            starts[key] = len(code)
            self._count(main, len(code), function.length)
            resolved = self._resolve(key)
            for insn, target in resolved:
                if target is not None:
                    pending.append((len(code), target))
                code.append(insn)
            for _, target in resolved:
                if target is not None and target not in seen:
                    seen.add(target)
                    order.append(target)
        for pc, target in pending:
            insn = code[pc]
            code[pc] = Insn(insn.opcode, insn.dst, insn.src, insn.off, starts[target] - pc - 1)
        lines = tuple(line for key in order for line in self._function_lines(key, starts[key]))
        functions = tuple(self._function(key, starts[key]) for key in order)
        return Linked(tuple(code), functions, lines)

    def is_linked(self, function: CodeFunction) -> bool:
        """Whether any program linked so far holds ``function``."""
        return (function.section, function.start) in self._resolved

    def _count(self, main: CodeFunction, size: int, length: int) -> None:
        self._linked += length
        if size + length > MAX_SLOTS or self._linked > _MAX_LINKED:
            raise InputError(
                f"program {main.name!r} with all it calls is too large",
                where=self._elf.name,
                hint=f"limits are {MAX_SLOTS} instructions a program, {_MAX_LINKED} an object",
            )

    def _function(self, key: _Key, start: int) -> Function:
        row = self.functions[key]
        return Function(row.name, start, row.length, is_global=not (row.is_static or row.is_hidden))

    def _function_lines(self, key: _Key, start: int) -> Iterator[SourceLine]:
        function = self.functions[key]
        rows = self._lines.get(self._elf.sections[function.section].name, ())
        first = bisect_left(rows, function.start * SLOT, key=lambda row: row.offset)
        for row in rows[first:]:
            slot, extra = divmod(row.offset, SLOT)
            if slot >= function.start + function.length:
                return
            if not extra:
                pc = start + slot - function.start
                yield SourceLine(pc, row.file, row.line, row.column, row.text)

    def _resolve(self, key: _Key) -> tuple[_Resolved, ...]:
        """The slots of a function, references resolved; the second item is a function to reach."""
        if key not in self._resolved:
            function = self.functions[key]
            section = self._elf.sections[function.section]
            begin, end = function.start * SLOT, (function.start + function.length) * SLOT
            code = list(decode(bytes(section.data[begin:end])))
            self._resolved[key] = tuple(self._resolve_slots(function, section, code))
        return self._resolved[key]

    def _resolve_slots(
        self, function: CodeFunction, section: Section, code: list[Insn]
    ) -> Iterator[_Resolved]:
        relocations = self._relocations[section.index]
        slot = 0
        while slot < len(code):
            insn, place = code[slot], function.start + slot
            site = _Site(section, place, relocations.get(place), self._where(section, place))
            if isa.is_wide(insn) and slot + 1 < len(code):
                if place + 1 in relocations:
                    raise InputError(
                        "relocation of the second half of a 64-bit value", where=site.where
                    )
                yield from self._wide(insn, code[slot + 1], site)
                slot += 2
            else:
                yield self._single(insn, site)
                slot += 1

    def _single(self, insn: Insn, site: _Site) -> _Resolved:
        if insn.opcode != isa.CALL:
            if site.relocation is not None:
                raise InputError(f"relocation of opcode 0x{insn.opcode:02x}", where=site.where)
            return insn, None
        if site.relocation is None:
            if insn.src != isa.CallSrc.LOCAL:
                return insn, None
            slot = site.place + 1 + insn.imm
            return insn, self._target(site.section.index, slot, site.where)
        symbol = self._symbol(site.relocation, site.where)
        if site.relocation.type != _R_BPF_64_32 or symbol.value % SLOT:
            raise InputError(
                f"relocation of type {site.relocation.type} of a call to {symbol.value}",
                where=site.where,
            )
        call = Insn(isa.CALL, insn.dst, isa.CallSrc.LOCAL, insn.off, 0)
        # The immediate is the distance from the symbol, less one: -1 for a function's own symbol.
        slot = symbol.value // SLOT + insn.imm + 1
        return call, self._target(symbol.section, slot, site.where)

    def _wide(self, insn: Insn, second: Insn, site: _Site) -> Iterator[_Resolved]:
        target: _Key | None = None
        if site.relocation is not None:
            insn, second, target = self._address(insn, second, site.relocation, site.where)
        elif insn.src == PseudoSrc.CODE:
            target = self._target(site.section.index, site.place + 1 + insn.imm, site.where)
        elif insn.src != PseudoSrc.CONST:
            # An object has maps by relocation only; a number here would name someone else's.
            raise InputError(f"64-bit value of source {insn.src} unrelocated", where=site.where)
        yield insn, target
        yield second, None

    def _address(
        self, insn: Insn, second: Insn, relocation: Relocation, where: str
    ) -> tuple[Insn, Insn, _Key | None]:
        """The address of a map, of data or of a function as the loaded program has it."""
        symbol = self._symbol(relocation, where)
        if relocation.type != _R_BPF_64_64:
            raise InputError(f"relocation of type {relocation.type} of a 64-bit value", where=where)
        offset = symbol.value + insn.imm
        if symbol.section in self._maps.data:
            index = self._maps.data[symbol.section]
            if not 0 <= offset < self._maps.specs[index].value_size:
                raise InputError(
                    f"offset {offset} of {self._maps.specs[index].name}, which has"
                    f" {self._maps.specs[index].value_size} bytes",
                    where=where,
                )
            value = Insn(insn.opcode, insn.dst, PseudoSrc.MAP_INDEX_VALUE, insn.off, index)
            return value, Insn(0, imm=offset), None
        if (symbol.section, offset) in self._maps.declared:
            index = self._maps.declared[symbol.section, offset]
            return Insn(insn.opcode, insn.dst, PseudoSrc.MAP_INDEX, insn.off, index), second, None
        if self._elf.sections[symbol.section].is_code and not offset % SLOT:
            target = self._target(symbol.section, offset // SLOT, where)
            return Insn(insn.opcode, insn.dst, PseudoSrc.CODE, insn.off, 0), second, target
        name = self._elf.sections[symbol.section].name
        raise InputError(f"address of offset {offset} of section {name}, not a map", where=where)

    def _symbol(self, relocation: Relocation, where: str) -> Symbol:
        """The symbol of a relocation, defined in a section of this object."""
        symbol = self._elf.symbols[relocation.symbol]
        if symbol.is_undefined:
            raise UnsupportedError(
                f"external symbol {symbol.name!r} at {where}",
                needs="a definition in the object; __ksym and __kconfig symbols have none",
            )
        if symbol.section >= len(self._elf.sections):
            raise InputError(f"symbol {symbol.name!r} is in no section", where=where)
        return symbol

    def _target(self, section: int, slot: int, where: str) -> _Key:
        if (section, slot) not in self.functions:
            name = self._elf.sections[section].name
            raise InputError(f"no function begins at slot {slot} of {name}", where=where)
        return section, slot
