"""Line information and CO-RE relocations of .BTF.ext (Linux Documentation/bpf/btf.rst)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from egpu.bpf.btf import Btf
from egpu.errors import InputError

_HEADER = struct.Struct("<HBBI")
_MAGIC = 0xEB9F
_WORD = struct.Struct("<I")
_BLOCK = struct.Struct("<II")  # section name, number of records
_FUNCTION = struct.Struct("<II")  # instruction offset, type
_LINE = struct.Struct("<IIII")  # instruction offset, file name, text, line << 10 | column
_CORE = struct.Struct("<IIII")  # instruction offset, type, access string, kind
_MAX_RECORDS = 1 << 20


class CoreKind(enum.IntEnum):
    """What a CO-RE relocation asks (enum bpf_core_relo_kind)."""

    FIELD_BYTE_OFFSET = 0
    FIELD_BYTE_SIZE = 1
    FIELD_EXISTS = 2
    FIELD_SIGNED = 3
    FIELD_LSHIFT_U64 = 4
    FIELD_RSHIFT_U64 = 5
    TYPE_ID_LOCAL = 6
    TYPE_ID_TARGET = 7
    TYPE_EXISTS = 8
    TYPE_SIZE = 9
    ENUMVAL_EXISTS = 10
    ENUMVAL_VALUE = 11
    TYPE_MATCHES = 12

    @property
    def words(self) -> str:
        """For messages."""
        return _CORE_WORDS[self]


_CORE_WORDS = (
    "field offset", "field size", "field exists", "field signedness", "field shift left",
    "field shift right", "local type id", "target type id", "type exists", "type size",
    "enum value exists", "enum value", "type matches",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineInfo:
    """A source line that starts at byte ``offset`` of a section."""

    offset: int
    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class CoreRelocation:
    """A CO-RE relocation of the instruction at byte ``offset`` of ``section``.

    ``type`` is an id in the object's BTF, ``access`` says what of that type is meant.
    """

    section: str
    offset: int
    type: int
    access: str
    kind: CoreKind


@dataclass(frozen=True, slots=True)
class BtfExt:
    """``lines`` by section name in order of offset; ``core`` in order of the file."""

    lines: dict[str, tuple[LineInfo, ...]]
    core: tuple[CoreRelocation, ...]


def parse_btf_ext(data: bytes, btf: Btf, where: str) -> BtfExt:
    """Read a .BTF.ext section. Raises InputError with offset when it is malformed."""
    if len(data) < _HEADER.size:
        raise InputError(f"truncated in its header, {len(data)} bytes", where=where)
    magic, version, _, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != 1:
        raise InputError(
            f"magic 0x{magic:04x} version {version}, 0x{_MAGIC:04x} version 1 expected", where=where
        )
    if size < 24 or size > len(data):
        raise InputError(f"header of {size} bytes, 24 to {len(data)} expected", where=where)
    parts = struct.unpack_from(f"<{min(size - _HEADER.size, 24) // 4}I", data, _HEADER.size)
    for _ in _records(data, size, parts[0:2], _FUNCTION, btf=btf, where=f"{where} functions"):
        pass  # only its shape matters: symbols say where functions are
    lines: dict[str, list[LineInfo]] = {}
    for section, row in _records(data, size, parts[2:4], _LINE, btf=btf, where=f"{where} lines"):
        offset, file, text, place = row
        name, written = btf.source_text(file), btf.source_text(text).strip()
        lines.setdefault(section, []).append(
            LineInfo(offset, name, place >> 10, place & 0x3FF, written)
        )
    core = tuple(
        CoreRelocation(
            section, row[0], btf.type_at(row[1]).id, btf.string(row[2]), _core_kind(row[3], where)
        )
        for section, row in _records(data, size, parts[4:6], _CORE, btf=btf, where=f"{where} CO-RE")
    )
    ordered = {
        section: tuple(sorted(rows, key=lambda row: row.offset)) for section, rows in lines.items()
    }
    return BtfExt(ordered, core)


def _core_kind(number: int, where: str) -> CoreKind:
    if number >= len(CoreKind):
        raise InputError(f"CO-RE relocation of unknown kind {number}", where=where)
    return CoreKind(number)


def _records(
    data: bytes,
    header: int,
    extent: tuple[int, ...],
    layout: struct.Struct,
    *,
    btf: Btf,
    where: str,
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Section name and first fields of each record of one part."""
    if len(extent) < 2 or extent[1] == 0:
        return
    at, end = header + extent[0], header + extent[0] + extent[1]
    if end > len(data) or extent[1] < _WORD.size:
        raise InputError(f"bytes {at} to {end} of {len(data)}", where=where)
    (size,) = _WORD.unpack_from(data, at)
    if size < layout.size or size % 4:
        raise InputError(f"records of {size} bytes, {layout.size} expected", where=where)
    at += _WORD.size
    total = 0
    while at < end:
        if at + _BLOCK.size > end:
            raise InputError(f"truncated at {at}", where=where)
        name, count = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        total += count
        if at + count * size > end or total > _MAX_RECORDS:
            raise InputError(f"{count} records of {size} bytes at {at} do not fit", where=where)
        section = btf.string(name)
        for record in range(count):
            yield section, layout.unpack_from(data, at + record * size)
        at += count * size
