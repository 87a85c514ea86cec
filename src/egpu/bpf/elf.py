"""ELF relocatables for BPF: sections, symbols, relocations, all checked against the file's bounds.

pyelftools gives the header layouts and constants.  Every range is checked before it is read, so
that no malformed file reaches a parser that would answer with something other than InputError.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elftools.common.utils import struct_parse
from elftools.elf.constants import SH_FLAGS, SHN_INDICES
from elftools.elf.enums import ENUM_E_MACHINE, ENUM_E_TYPE, ENUM_SH_TYPE_BASE
from elftools.elf.structs import ELFStructs

from egpu.errors import InputError

MAX_FILE = 64 << 20  # bytes; objects of real tools stay under 2 MiB
MAX_SECTIONS = 4096
MAX_SYMBOLS = 1 << 16
MAX_RELOCATIONS = 1 << 18
_MAX_SECTION_NAME = 1 << 14  # SEC("kprobe/a,b,…") with mangled names
_MAX_SYMBOL_NAME = 1 << 12

_HEADER = 64
_SECTION_HEADER = 64
# construct parses some 15,000 rows a second, and a crafted table may have many: these two are ours.
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QQ")  # Elf64_Rel

SYMBOL_FUNCTION = 2  # STT_FUNC
SYMBOL_SECTION = 3  # STT_SECTION
BIND_LOCAL = 0  # STB_LOCAL
_VISIBILITY_HIDDEN = 2  # STV_HIDDEN
_PROGBITS = ENUM_SH_TYPE_BASE["SHT_PROGBITS"]
_NOBITS = ENUM_SH_TYPE_BASE["SHT_NOBITS"]
_STRTAB = ENUM_SH_TYPE_BASE["SHT_STRTAB"]
_SYMTAB = ENUM_SH_TYPE_BASE["SHT_SYMTAB"]
_REL = ENUM_SH_TYPE_BASE["SHT_REL"]
_RELA = ENUM_SH_TYPE_BASE["SHT_RELA"]


@dataclass(frozen=True, slots=True)
class Section:
    """A section; ``data`` is empty for one without bytes in the file, ``size`` that in memory."""

    index: int
    name: str
    type: int
    flags: int
    size: int
    link: int
    info: int
    data: memoryview

    @property
    def is_code(self) -> bool:
        """Whether it holds instructions."""
        return self.type == _PROGBITS and bool(self.flags & SH_FLAGS.SHF_EXECINSTR)

    @property
    def is_zero_filled(self) -> bool:
        """Whether it has no bytes in the file (.bss)."""
        return self.type == _NOBITS


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol; ``section`` is an index, 0 for an undefined symbol, or a special index."""

    name: str
    section: int
    value: int
    size: int
    type: int
    bind: int
    hidden: bool

    @property
    def is_undefined(self) -> bool:
        """Whether the object only names it."""
        return self.section == SHN_INDICES.SHN_UNDEF


@dataclass(frozen=True, slots=True)
class Relocation:
    """One entry of a REL table: at byte ``offset`` of its section; ``symbol`` is an index."""

    offset: int
    symbol: int
    type: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A BPF relocatable.  ``relocations`` are by index of the section they apply to."""

    name: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: dict[int, tuple[Relocation, ...]]

    def section(self, name: str) -> Section | None:
        """The first section called ``name``, None if there is none."""
        return next((section for section in self.sections if section.name == name), None)


def read_elf(data: bytes, name: str) -> Elf:
    """Read a little-endian 64-bit BPF relocatable.

    Raises InputError, with ``name`` and section or offset, for anything else or malformed.
    """
    return _Reader(data, name).read()


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._structs = ELFStructs(little_endian=True, elfclass=64)
        self._structs.create_basic_structs()
        self._structs.create_advanced_structs(None, None, None)

    def _error(self, message: str, place: str = "", hint: str = "") -> InputError:
        return InputError(
            message, where=f"{self._name}: {place}" if place else self._name, hint=hint
        )

    def read(self) -> Elf:
        headers, names_index = self._section_headers()
        names = self._bytes(headers[names_index], f"section {names_index}")
        sections = tuple(self._section(index, row, names) for index, row in enumerate(headers))
        tables = [section for section in sections if section.type == _SYMTAB]
        if len(tables) > 1:
            raise self._error(f"{len(tables)} symbol tables, one expected")
        symbols = self._symbols(tables[0], sections) if tables else ()
        return Elf(self._name, sections, symbols, self._relocations(sections, tables, symbols))

    def _section_headers(self) -> tuple[list[dict[str, int]], int]:
        """All section headers, and the index of the one that holds their names."""
        self._check_ident()
        header = struct_parse(self._structs.Elf_Ehdr, io.BytesIO(self._data))
        if header["e_machine"] != "EM_BPF":
            raise self._error(
                f"ELF machine is {_number(header['e_machine'], ENUM_E_MACHINE)}, not BPF (247)",
                hint="compile with -target bpf",
            )
        if header["e_type"] != "ET_REL":
            kind = _number(header["e_type"], ENUM_E_TYPE)
            raise self._error(f"ELF type is {kind}, not a relocatable object (1)")
        start, count, size = header["e_shoff"], header["e_shnum"], header["e_shentsize"]
        if not 0 < count <= MAX_SECTIONS:
            raise self._error(f"{count} sections, 1 to {MAX_SECTIONS} expected")
        if size != _SECTION_HEADER:
            raise self._error(f"section headers have {size} bytes, {_SECTION_HEADER} expected")
        if start + count * size > len(self._data):
            raise self._error(
                f"section headers end at {start + count * size}, the file at {len(self._data)}",
                f"offset {start}",
            )
        if not 0 < header["e_shstrndx"] < count:
            raise self._error(f"section {header['e_shstrndx']} of names does not exist")
        stream = io.BytesIO(self._data)
        rows = [
            struct_parse(self._structs.Elf_Shdr, stream, start + index * size)
            for index in range(count)
        ]
        return rows, header["e_shstrndx"]

    def _check_ident(self) -> None:
        data = self._data
        if len(data) > MAX_FILE:
            raise self._error(f"{len(data)} bytes, limit {MAX_FILE}")
        if data[:4] != b"\x7fELF":
            raise self._error("not an ELF file", hint="give an object made with -target bpf")
        if len(data) < _HEADER:
            raise self._error(f"truncated in the ELF header, {len(data)} bytes")
        if data[4] != 2:
            raise self._error("a 32-bit ELF file, BPF objects are 64-bit")
        if data[5] != 1:
            raise self._error("a big-endian object", hint="compile with -target bpfel")
        if data[6] != 1:
            raise self._error(f"ELF version {data[6]}, 1 expected", "offset 6")

    def _section(self, index: int, row: dict[str, int], names: memoryview) -> Section:
        place = f"section {index}"
        name = self._string(names, row["sh_name"], _MAX_SECTION_NAME, place)
        place = f"section {index} ({name})" if name else place
        kind = _number(row["sh_type"], ENUM_SH_TYPE_BASE)
        data = self._bytes(row, place) if index else memoryview(b"")
        return Section(
            index, name, kind, row["sh_flags"], row["sh_size"], row["sh_link"], row["sh_info"], data
        )

    def _bytes(self, row: dict[str, int], place: str) -> memoryview:
        if _number(row["sh_type"], ENUM_SH_TYPE_BASE) == _NOBITS:
            return memoryview(b"")
        start, size = row["sh_offset"], row["sh_size"]
        if start + size > len(self._data):
            raise self._error(
                f"bytes {start} to {start + size} lie past the end of the file, {len(self._data)}",
                place,
            )
        return memoryview(self._data)[start : start + size]

    def _string(self, table: memoryview, offset: int, limit: int, place: str) -> str:
        if offset >= len(table):
            raise self._error(f"name at {offset} of a string table of {len(table)} bytes", place)
        head, end, _ = bytes(table[offset : offset + limit]).partition(b"\0")
        if not end:
            raise self._error(f"name at {offset} does not end within {limit} bytes", place)
        try:
            return head.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"name at {offset} is not UTF-8", place) from error

    def _rows(self, section: Section, layout: struct.Struct, limit: int) -> Sequence[memoryview]:
        """Check a table's shape and give its bytes row by row."""
        place = f"section {section.index} ({section.name})"
        size = layout.size
        if len(section.data) % size:
            raise self._error(f"{len(section.data)} bytes are no whole rows of {size}", place)
        count = len(section.data) // size
        if count > limit:
            raise self._error(f"{count} rows, limit {limit}", place)
        return [section.data[row * size : (row + 1) * size] for row in range(count)]

    def _symbols(self, table: Section, sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
        place = f"section {table.index} ({table.name})"
        if table.link >= len(sections) or sections[table.link].type != _STRTAB:
            raise self._error(f"string table {table.link} does not exist", place)
        strings = sections[table.link].data
        symbols = []
        for number, row in enumerate(self._rows(table, _SYMBOL, MAX_SYMBOLS)):
            offset, info, other, index, value, size = _SYMBOL.unpack(row)
            where = f"{place}, symbol {number}"
            if index >= len(sections) and index < SHN_INDICES.SHN_LORESERVE:
                raise self._error(f"section {index} does not exist", where)
            name = self._string(strings, offset, _MAX_SYMBOL_NAME, where)
            hidden = other & 3 == _VISIBILITY_HIDDEN
            symbols.append(Symbol(name, index, value, size, info & 0xF, info >> 4, hidden))
        return tuple(symbols)

    def _relocations(
        self,
        sections: tuple[Section, ...],
        tables: list[Section],
        symbols: tuple[Symbol, ...],
    ) -> dict[int, tuple[Relocation, ...]]:
        found: dict[int, tuple[Relocation, ...]] = {}
        total = 0
        for section in sections:
            if section.type not in (_REL, _RELA):
                continue
            place = f"section {section.index} ({section.name})"
            if section.info >= len(sections):
                raise self._error(f"applies to section {section.info}, which is not there", place)
            if not sections[section.info].flags & SH_FLAGS.SHF_ALLOC:
                continue  # .rel.debug_*, .rel.BTF, .rel.BTF.ext: offsets that are already right
            if section.type == _RELA:
                raise self._error("RELA relocations, BPF objects have REL", place)
            if section.info in found:
                raise self._error(f"a second table for section {section.info}", place)
            if not tables or section.link != tables[0].index:
                raise self._error(f"symbol table {section.link} does not exist", place)
            rows = self._rows(section, _RELOCATION, MAX_RELOCATIONS - total)
            total += len(rows)
            target = sections[section.info]
            found[section.info] = self._relocation_rows(rows, target, symbols, place)
        return found

    def _relocation_rows(
        self, rows: Sequence[memoryview], target: Section, symbols: tuple[Symbol, ...], place: str
    ) -> tuple[Relocation, ...]:
        relocations = []
        for number, row in enumerate(rows):
            offset, info = _RELOCATION.unpack(row)
            where = f"{place}, relocation {number}"
            if offset >= target.size:
                raise self._error(
                    f"offset {offset} lies past the end of {target.name}, {target.size}", where
                )
            if info >> 32 >= len(symbols):
                raise self._error(f"symbol {info >> 32} does not exist", where)
            relocations.append(Relocation(offset, info >> 32, info & 0xFFFFFFFF))
        return tuple(relocations)


def _number(value: int | str, names: Mapping[str, int]) -> int:
    """The number of a field that pyelftools may have turned into a name."""
    return names[value] if isinstance(value, str) else value
