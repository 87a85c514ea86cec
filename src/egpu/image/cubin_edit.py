"""Cubins taken apart and put together again, so that sections can grow.

Sections keep their order, their indices and everything in their headers that does not follow from
their size.  Bytes between sections are padding.  A cubin whose parts are unchanged comes out as
it was, byte for byte.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from egpu.errors import InputError
from egpu.image.cubin import (
    HEADER,
    HEADER_SIZE,
    SECTION,
    SEGMENT,
    SHT_NOBITS,
    SHT_SYMTAB,
    STO_ENTRY,
    STT_FUNC,
    SYMBOL,
    Cubin,
    header_of,
    section_table,
    symbol_table_of,
)
from egpu.image.cubin_tables import NamedRows, Table, first_called, letters_at, name_of, unnamed
from egpu.image.model import Buffer

SHT_NULL, SHT_STRTAB, SHT_RELA, SHT_REL = 0, 3, 4, 9
PT_PHDR = 6
RELA = struct.Struct("<QQq")  # offset, symbol << 32 | type, addend
REL = struct.Struct("<QQ")
SHN_UNDEF = 0
LARGEST_ALIGNMENT = 1 << 16  # bytes; assemblers write 128 at most


# Sections and the like are tuples: a twin is made of hundreds of them, and a frozen dataclass takes
# three to six times as long to make.
class Part(NamedTuple):
    """A section: its header and its bytes (none, with a ``size``, when it has none in the file);
    ``was``: how many bytes it has in the file that its offset refers to."""

    name: str
    name_at: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entsize: int
    data: bytes
    was: int = 0

    def changed(self, data: bytes | None, info: int | None) -> Part:
        """The same with other bytes, and another ``sh_info``, where they are given."""
        part = self if data is None else self._replace(size=len(data), data=data)
        return part if info is None else part._replace(info=info)


class Segment(NamedTuple):
    """A program header."""

    type: int
    flags: int
    offset: int
    virtual: int
    physical: int
    file_size: int
    memory_size: int
    align: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of the symbol table; ``section`` is an index, 0 for what is defined elsewhere."""

    index: int
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def type(self) -> int:
        return self.info & 0xF

    @property
    def is_kernel(self) -> bool:
        return self.type == STT_FUNC and bool(self.other & STO_ENTRY)


class Relocation(NamedTuple):
    """An entry of a relocation section; ``addend`` is None where it lies in the place itself."""

    offset: int
    symbol: int
    type: int
    addend: int | None


@dataclass(frozen=True, slots=True)
class CubinParts:
    """A cubin in parts, whose offsets refer to the file in ``cubin``.

    ``symbols``: what the symbol table holds, if whoever made the parts knew; see ``read_symbols``.
    """

    cubin: Cubin
    parts: Sequence[Part]
    segments: tuple[Segment, ...]
    symbols: Sequence[Symbol] | None = field(default=None, compare=False)

    @property
    def abi(self) -> int:
        """The ABI version of the ELF header: 7 until CUDA 12, 8 from CUDA 13."""
        return self.cubin.data[8]

    def find(self, name: str) -> int | None:
        """Index of the section ``name``, None if there is none."""
        return first_called(self.parts, name)

    def with_data(
        self, changed: Mapping[int, bytes], info: Mapping[int, int] | None = None
    ) -> CubinParts:
        """The same with new contents of some sections, and new ``sh_info`` of some."""
        parts, info = list(self.parts), info or {}
        for at in {**changed, **info}:
            parts[at] = parts[at].changed(changed.get(at), info.get(at))
        named = any(parts[at].type in (SHT_SYMTAB, SHT_STRTAB) for at in changed)
        return replace(self, parts=tuple(parts), symbols=None if named else self.symbols)


def part_of(row: tuple[int, ...], names: bytes, data: Buffer) -> Part:
    """The section that a row of the section table is about."""
    name_at, kind, flags, address, offset, size, link, info, align, entsize = row
    stored = bytes(data[offset : offset + size]) if kind != SHT_NOBITS else b""
    return Part(
        name_of(names, name_at),
        name_at,
        kind,
        flags,
        address,
        offset,
        size,
        link,
        info,
        align,
        entsize,
        stored,
        len(stored),
    )


def take_apart(cubin: Cubin) -> CubinParts:
    """The parts of an opened cubin; InputError for layouts that no assembler writes."""
    data = cubin.data
    header = header_of(data)
    names = cubin.names
    if header["shentsize"] != SECTION.size or (
        header["phnum"] and header["phentsize"] != SEGMENT.size
    ):
        raise _malformed("header tables with entries of other sizes")
    table = section_table(data)
    aligned = table["align"]
    if len(aligned) and (most := int(aligned.max())) > LARGEST_ALIGNMENT:
        raise _malformed(f"a section aligned to {most} bytes")

    def part(at: int) -> Part:
        row = SECTION.unpack_from(data, header["shoff"] + at * SECTION.size)
        return part_of(row, names, data)

    segments = tuple(
        Segment(*SEGMENT.unpack_from(data, header["phoff"] + at * SEGMENT.size))
        for at in range(header["phnum"])
    )
    sections = cubin.sections
    letters = sections.letters if isinstance(sections, NamedRows) else None
    return CubinParts(cubin, NamedRows(table, names, part, letters), segments)


class _Piece(NamedTuple):
    """Something that takes room in the file: a section, a header table."""

    key: int  # section index, or one of the tables below
    begin: int
    end: int
    size: int  # now
    align: int


_SECTION_TABLE, _SEGMENT_TABLE = -1, -2


def put_together(parts: CubinParts) -> bytes:
    """The file; grown sections push back what follows them, alignments kept."""
    data = parts.cubin.data
    places = _places(parts)
    out = bytearray(_end(places))
    out[:HEADER_SIZE] = data[:HEADER_SIZE]
    _put(out, "shoff", places[_SECTION_TABLE][1])
    if parts.segments:
        _put(out, "phoff", places[_SEGMENT_TABLE][1])
    for at, part in enumerate(parts.parts):
        offset = places[at][1] if at in places else _moved(part.offset, places)
        if part.data:
            out[offset : offset + len(part.data)] = part.data
        row = (
            part.name_at,
            part.type,
            part.flags,
            part.address,
            offset,
            part.size,
            part.link,
            part.info,
            part.align,
            part.entsize,
        )
        SECTION.pack_into(out, places[_SECTION_TABLE][1] + at * SECTION.size, *row)
    for at, segment in enumerate(parts.segments):
        row_at = places[_SEGMENT_TABLE][1] + at * SEGMENT.size
        SEGMENT.pack_into(out, row_at, *_segment(segment, places))
    return bytes(out)


def file_offsets(parts: CubinParts) -> dict[int, int]:
    """Where each section with bytes begins in the file that ``put_together`` makes."""
    return {section: begin for section, (_, begin) in _places(parts).items() if section >= 0}


def _places(parts: CubinParts) -> dict[int, tuple[_Piece, int]]:
    """Each piece of the file with its new offset, in file order."""
    data = parts.cubin.data
    at = header_of(data)
    table = len(parts.parts) * SECTION.size
    pieces = [_Piece(_SECTION_TABLE, at["shoff"], at["shoff"] + table, table, 8)]
    if parts.segments:
        table = len(parts.segments) * SEGMENT.size
        pieces.append(_Piece(_SEGMENT_TABLE, at["phoff"], at["phoff"] + table, table, 8))
    for index, part in enumerate(parts.parts):
        if part.type in (SHT_NULL, SHT_NOBITS):
            continue
        end = part.offset + part.was
        pieces.append(_Piece(index, part.offset, end, len(part.data), max(part.align, 1)))
    # An empty section lies before what begins at the same place.
    pieces.sort(key=lambda each: (each.begin, each.end, each.key))
    places: dict[int, tuple[_Piece, int]] = {}
    end, new_end = HEADER_SIZE, HEADER_SIZE
    for piece in pieces:
        if piece.begin < end:
            raise _malformed(f"sections overlap at byte {piece.begin}")
        moved = new_end != end
        begin = -(-new_end // piece.align) * piece.align if moved else piece.begin
        places[piece.key] = (piece, begin)
        end, new_end = piece.end, begin + piece.size
    return places


def _end(places: Mapping[int, tuple[_Piece, int]]) -> int:
    return max(begin + piece.size for piece, begin in places.values())


def _moved(offset: int, places: Mapping[int, tuple[_Piece, int]]) -> int:
    """Where an end, or a section without bytes, lies now: as far behind its piece as before."""
    last, begin = HEADER_SIZE, HEADER_SIZE
    for piece, new in places.values():
        if piece.begin >= offset:
            break
        last, begin = piece.end, new + piece.size
    return begin + offset - last


def _segment(segment: Segment, places: Mapping[int, tuple[_Piece, int]]) -> tuple[int, ...]:
    if segment.type == PT_PHDR or segment.offset == places[_SEGMENT_TABLE][0].begin:
        begin, size = places[_SEGMENT_TABLE][1], segment.file_size
    elif segment.file_size == 0:
        begin, size = _moved(segment.offset, places), 0
    else:
        first = [new for piece, new in places.values() if piece.begin == segment.offset]
        if not first:
            raise _malformed(f"a segment at byte {segment.offset}, where no section begins")
        begin = first[0]
        size = _moved(segment.offset + segment.file_size, places) - begin
    grown = size - segment.file_size
    return (
        segment.type,
        segment.flags,
        begin,
        segment.virtual,
        segment.physical,
        size,
        segment.memory_size + grown,
        segment.align,
    )


def _put(out: bytearray, field: str, value: int) -> None:
    at, form = HEADER[field]
    struct.pack_into(form, out, at, value)


# Symbols and relocations


def symbol_table(parts: CubinParts) -> int:
    """Index of the symbol table; InputError when there is none."""
    for at, part in enumerate(parts.parts):
        if part.type == SHT_SYMTAB:
            return at
    raise _malformed("no symbol table")


def symbol_rows(parts: CubinParts) -> Table:
    """The same without names, as columns."""
    return symbol_table_of(parts.parts[symbol_table(parts)].data)


def read_symbols(parts: CubinParts) -> Sequence[Symbol]:
    """Every symbol, in the table's order."""
    if parts.symbols is not None:
        return parts.symbols
    table, names = _symbol_sections(parts)
    return symbols_of(table.data, names.data)


def _symbol_sections(parts: CubinParts) -> tuple[Part, Part]:
    """The symbol table and the one with its names."""
    table = parts.parts[symbol_table(parts)]
    if table.link >= len(parts.parts):
        raise _malformed(f"symbol names in section {table.link} of {len(parts.parts)}")
    return table, parts.parts[table.link]


def with_symbols(parts: CubinParts) -> CubinParts:
    """What ``take_apart`` gave, for who reads the symbols several times."""
    table, names = _symbol_sections(parts)
    letters = letters_at(parts.cubin.data, names.offset, len(names.data))
    return replace(parts, symbols=symbols_of(table.data, names.data, letters))


def symbols_of(
    table: bytes, names: bytes, letters: NDArray[np.uint64] | None = None
) -> Sequence[Symbol]:
    """The symbols of a table with these names; InputError where a name does not end.  ``letters``
    as in ``NamedRows``."""
    rows = symbol_table_of(table)
    for at in unnamed(rows, names):
        raise _malformed(f"a symbol name at byte {rows['name'][at]} of {len(names)}")

    def symbol(index: int) -> Symbol:
        row = SYMBOL.unpack_from(table, index * SYMBOL.size)
        return Symbol(index, name_of(names, row[0]), row[1], row[2], row[3], row[4], row[5])

    return NamedRows(rows, names, symbol, letters)


def sized_symbol(table: bytes, index: int, size: int) -> bytes:
    """A symbol table in which symbol ``index`` has ``size`` bytes."""
    at = index * SYMBOL.size
    row = (*SYMBOL.unpack_from(table, at)[:-1], size)
    return table[:at] + SYMBOL.pack(*row) + table[at + SYMBOL.size :]


# fmt: off
_RELOCATIONS = {
    SHT_RELA: np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")]),
    SHT_REL:  np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4")]),
}
# fmt: on


def relocation_table(part: Part) -> Table:
    """The entries of a relocation section as columns; InputError as from ``read_relocations``."""
    if part.type not in _RELOCATIONS or len(part.data) % _RELOCATIONS[part.type].itemsize:
        raise _malformed(f"{part.name} is no relocation section")
    return np.frombuffer(part.data, _RELOCATIONS[part.type])


def read_relocations(part: Part) -> tuple[Relocation, ...]:
    """The entries of a relocation section; InputError when its size is not a whole number."""
    relocation_table(part)
    return _relocations(part.data, part.type)


@functools.lru_cache(maxsize=64)  # those of a cubin are asked for with each of its kernels
def _relocations(data: bytes, kind: int) -> tuple[Relocation, ...]:
    row = RELA if kind == SHT_RELA else REL
    return tuple(map(_relocation, row.iter_unpack(data)))


def _relocation(values: tuple[int, ...]) -> Relocation:
    return Relocation(values[0], values[1] >> 32, values[1] & 0xFFFFFFFF, (*values, None)[2])


def relocation_at(part: Part, index: int) -> Relocation:
    """One entry of a relocation section."""
    row = RELA if part.type == SHT_RELA else REL
    return _relocation(row.unpack_from(part.data, index * row.size))


def relocating(parts: CubinParts, section: int) -> list[int]:
    """The relocation sections that change ``section``."""
    return [
        at
        for at, part in enumerate(parts.parts)
        if part.type in _RELOCATIONS and part.info == section
    ]


def relocations_of(parts: CubinParts, section: int) -> tuple[tuple[int, Relocation], ...]:
    """(index of the relocation section, entry) of all that change ``section``."""
    return tuple(
        (at, each)
        for at in relocating(parts, section)
        for each in read_relocations(parts.parts[at])
    )


def _malformed(message: str) -> InputError:
    return InputError(message, where="cubin")
