"""Some of a cubin's sections as a cubin: in their order, sections and symbols numbered anew."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from egpu.errors import InputError
from egpu.image.cubin import HEADER, HEADER_SIZE, SECTION, SEGMENT, SHT_NOBITS, Cubin, Section
from egpu.image.cubin_attributes import (
    Attribute,
    Shape,
    attribute_at,
    read_attributes,
    write_attributes,
)
from egpu.image.cubin_common import NO_SYMBOL, ROWS, common_of, shape_of
from egpu.image.cubin_contents import TEXT, Contents
from egpu.image.cubin_edit import (
    PT_PHDR,
    SHT_NULL,
    SHT_REL,
    SHT_RELA,
    CubinParts,
    Part,
    Segment,
    Symbol,
    relocation_table,
    symbol_table,
    symbols_of,
)
from egpu.image.cubin_tables import Column, Rows, names_bytes

STT_OBJECT = 1
_CALL = 8  # bytes of a row of .nv.callgraph: caller, callee
_NOBODY = 0xFFFFFF00  # ... from here on not a symbol
_SYMBOL_OF_CODE = (1 << 24) - 1  # sh_info of a text section: its symbol, below the registers


@dataclass(frozen=True, slots=True)
class _Numbers:
    """New numbers of the sections and symbols that are kept; -1 for symbols that are not."""

    sections: Mapping[int, int]
    symbols: Column

    def symbol(self, was: int) -> int | None:
        """The new number of a symbol, None if it is not kept."""
        now = int(self.symbols[was]) if was < len(self.symbols) else -1
        return now if now >= 0 else None


class Writer:
    """Puts the file together: sections in their order, then both header tables."""

    def __init__(self, contents: Contents, kept: frozenset[int]) -> None:
        self._contents = contents
        self._parts = contents.parts.parts
        self._kept = sorted(kept)
        self._kept_parts = [self._parts[at] for at in self._kept]
        self._symtab = symbol_table(contents.parts)
        self._symbols = self._kept_symbols()
        symbols = np.full(len(contents.table), -1)
        symbols[self._symbols] = np.arange(len(self._symbols))
        self._numbers = _Numbers({at: number for number, at in enumerate(self._kept)}, symbols)

    def _kept_symbols(self) -> Column:
        """Those of kept sections; variables only if something refers to them by their symbol (code
        reads constants by their place)."""
        table, parts = self._contents.table, self._parts
        # Of each section, whether its symbols are kept, and its variables; behind the last one, of
        # numbers that are no section.
        any_kept, all_kept = np.zeros((2, len(parts) + 1), np.bool_)
        for at, part in zip(self._kept, self._kept_parts, strict=True):
            any_kept[at] = at > 0
            all_kept[at] = at > 0 and part.name.startswith(".nv.constant")
        section = np.minimum(table["section"], len(parts))
        kept = any_kept[section] & (table["info"] & 0xF != STT_OBJECT) | all_kept[section]
        for part in self._kept_parts:
            if part.type in (SHT_REL, SHT_RELA):
                named = relocation_table(part)["symbol"]
                if len(named) and (most := int(named.max())) >= len(table):
                    raise _no_symbol(most)
                kept[named] = True
        kept[common_of(self._contents).symbols] = True
        found: Column = kept.nonzero()[0]
        return found

    def parts(self) -> CubinParts:
        """The file, as it is when it is put together, opened and taken apart again; of its own
        bytes the header alone."""
        names = _Strings()
        strings = _Strings()
        table = self._symbol_table(strings)
        name_at = names.add_all(
            part.name.encode("utf-8", "backslashreplace") for part in self._kept_parts
        )
        symtab = self._parts[self._symtab]
        locals_ = int(np.searchsorted(self._symbols, symtab.info))
        text = {
            symtab.link: strings.data,
            self._section_names(): names.data,
            self._symtab: table,
        }
        end = HEADER_SIZE
        rows: list[Part] = []
        for at, part, name in zip(self._kept, self._kept_parts, name_at, strict=True):
            if part.type not in (SHT_NULL, SHT_NOBITS):
                end += -end % max(part.align, 1)
            place = (name, 0 if part.type == SHT_NULL else end)
            rows.append(self._part(at, part, place, text, locals_))
            end += len(rows[-1].data)
        return self._with_tables(end, rows, symbols_of(table, strings.data))

    def _section_names(self) -> int:
        form, at = HEADER["shstrndx"][1], HEADER["shstrndx"][0]
        return int(struct.unpack_from(form, self._contents.parts.cubin.data, at)[0])

    def _symbol_table(self, strings: _Strings) -> bytes:
        table = self._contents.table[self._symbols]
        names = self._parts[self._parts[self._symtab].link].data
        table["name"] = strings.add_all(names_bytes(names, table["name"].tolist()))
        sections = np.arange(max(len(self._parts), 1))
        sections[self._kept] = np.arange(len(self._kept))
        inside = table["section"] < len(self._parts)
        table["section"][inside] = sections[table["section"][inside]]
        found: bytes = table.tobytes()
        return found

    def _part(
        self,
        at: int,
        part: Part,
        place: tuple[int, int],
        text: Mapping[int, bytes],
        locals_: int,
    ) -> Part:
        """A section as it will be, whose name and bytes are at these places."""
        sections = self._numbers.sections
        data = text.get(at)
        info = part.info
        if part.type in (SHT_REL, SHT_RELA):
            relocations = relocation_table(part).copy()
            relocations["symbol"] = self._numbers.symbols[relocations["symbol"]]
            data = relocations.tobytes()
            info = self._section(part.info)
        elif part.name.startswith(TEXT):
            was = part.info & _SYMBOL_OF_CODE
            info = part.info & ~_SYMBOL_OF_CODE | (self._numbers.symbol(was) or 0)
        elif at == self._symtab:
            info = locals_
        elif self._contents.describing[at]:
            info = self._section(part.info)
        if part.name == ROWS:
            data = self._rows()
        elif part.name.startswith(ROWS):
            data = self._renumbered(read_attributes(part.data))
        elif part.name == ".nv.callgraph":
            data = self._calls(part)
        data = part.data if data is None else data
        size = part.size if part.type == SHT_NOBITS else len(data)
        link = sections.get(part.link, 0)
        name_at, offset = place
        return Part(  # as part._replace gives it, in half the time
            part.name,
            name_at,
            part.type,
            part.flags,
            part.address,
            offset,
            size,
            link,
            info,
            part.align,
            part.entsize,
            data,
            len(data),
        )

    def _section(self, at: int) -> int:
        if at not in self._numbers.sections:
            raise InputError(f"something is about section {at}, which is not there", where="cubin")
        return self._numbers.sections[at]

    def _rows(self) -> bytes:
        """Those of ``.nv.info`` that are about what is kept."""
        common = common_of(self._contents)
        known = common.about < len(self._numbers.symbols)
        kept = common.about == NO_SYMBOL
        kept[known] |= self._numbers.symbols[common.about[known]] >= 0
        places = common.rows[kept].tolist()
        return self._renumbered(attribute_at(common.info, place) for place in places)

    def _renumbered(self, attributes: Iterable[Attribute]) -> bytes:
        new = self._numbers.symbol
        out: list[Attribute] = []
        for each in attributes:
            match shape_of(each):
                case Shape.SYMBOL_VALUE | Shape.BANK:
                    index = int.from_bytes(each.payload[:4], "little")
                    number = new(index)
                    if number is None:
                        raise _no_symbol(index)
                    payload = number.to_bytes(4, "little") + each.payload[4:]
                    out.append(Attribute(each.form, each.code, each.value, payload))
                case Shape.SYMBOLS:
                    numbers = [now for was in each.words() if (now := new(was)) is not None]
                    payload = struct.pack(f"<{len(numbers)}I", *numbers)
                    out.append(Attribute(each.form, each.code, len(payload), payload))
                case _:
                    out.append(each)
        return write_attributes(out)

    def _calls(self, part: Part) -> bytes:
        rows = np.frombuffer(part.data, "<u4", len(part.data) // _CALL * 2).reshape(-1, 2)
        count = len(self._numbers.symbols)
        symbols = np.append(self._numbers.symbols, -1)
        new = symbols[np.minimum(rows, count)]
        nobody = (new[:, 1] < 0) & (rows[:, 1] >= _NOBODY)
        new[nobody, 1] = rows[nobody, 1]
        kept: bytes = new[(new >= 0).all(axis=1)].astype("<u4").tobytes()
        return kept

    def _with_tables(self, end: int, rows: Sequence[Part], symbols: Sequence[Symbol]) -> CubinParts:
        whole = self._contents.parts.cubin
        head = bytearray(whole.data[:HEADER_SIZE])
        end += -end % 8
        _put(head, "shoff", end)
        _put(head, "shnum", len(rows))
        _put(head, "shstrndx", self._numbers.sections[self._section_names()])
        end += len(rows) * SECTION.size
        segments = self._segments(rows, end)
        _put(head, "phoff", end if segments else 0)
        _put(head, "phnum", len(segments))
        cubin = Cubin(bytes(head), whole.arch, whole.suffix, Rows(len(rows), partial(_row, rows)))
        return CubinParts(cubin, tuple(rows), tuple(segments), symbols)

    def _segments(self, rows: Sequence[Part], table: int) -> list[Segment]:
        """One for what each covered; those of which nothing is left go."""
        covering: list[tuple[Segment, list[Part]]] = []
        loaded = [
            (part, row)
            for part, row in zip(self._kept_parts, rows, strict=True)
            if part.flags & _ALLOCATED and part.type != SHT_NULL
        ]
        own = struct.unpack_from("<Q", self._contents.parts.cubin.data, HEADER["phoff"][0])[0]
        for segment in self._contents.parts.segments:
            found: list[Part] = []
            itself = segment.type == PT_PHDR or segment.offset == own
            if not itself:
                found = [row for part, row in loaded if _covers(segment, part)]
            if itself or found:
                covering.append((segment, found))
        size = len(covering) * SEGMENT.size
        return [_segment(segment, found, table, size) for segment, found in covering]


def _row(rows: Sequence[Part], at: int) -> Section:
    each = rows[at]
    return Section(each.name, each.type, each.offset, each.size, each.link, each.info)


_WRITABLE, _ALLOCATED = 1, 2


def _covers(segment: Segment, part: Part) -> bool:
    """Whether a segment holds a section that is loaded."""
    if part.type == SHT_NOBITS:
        ends = segment.offset + segment.file_size
        return segment.memory_size > segment.file_size and (
            segment.offset <= part.offset <= ends and bool(part.flags & _WRITABLE)
        )
    return segment.offset <= part.offset < segment.offset + segment.file_size


def _segment(segment: Segment, found: Sequence[Part], table: int, size: int) -> Segment:
    if not found:
        return _placed(segment, table, size, size)
    stored = [row for row in found if row.type != SHT_NOBITS]
    begin = min(row.offset for row in stored or found)
    end = max((row.offset + row.size for row in stored), default=begin)
    memory = end - begin
    for row in found:
        if row.type == SHT_NOBITS:
            memory = -(-memory // max(row.align, 1)) * max(row.align, 1) + row.size
    return _placed(segment, begin, end - begin, memory)


def _placed(segment: Segment, offset: int, file_size: int, memory_size: int) -> Segment:
    return Segment(
        type=segment.type,
        flags=segment.flags,
        offset=offset,
        virtual=segment.virtual,
        physical=segment.physical,
        file_size=file_size,
        memory_size=memory_size,
        align=segment.align,
    )


class _Strings:
    """A string table that is being written."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {b"": 0}
        self._data = bytearray(1)

    def add_all(self, texts: Iterable[bytes]) -> list[int]:
        """Where each of them is."""
        places, data = self._places, self._data
        found: list[int] = []
        for text in texts:
            at = places.get(text)
            if at is None:
                at = places[text] = len(data)
                data += text
                data.append(0)
            found.append(at)
        return found

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def _put(head: bytearray, field: str, value: int) -> None:
    at, form = HEADER[field]
    struct.pack_into(form, head, at, value)


def _no_symbol(index: int) -> InputError:
    return InputError(f"something refers to symbol {index}, which is not there", where="cubin")
