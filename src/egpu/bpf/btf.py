"""BTF, the type information of BPF objects: reading it, and bytes into Python values with it.

Format: Linux Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from egpu.bpf.arith import signed
from egpu.bpf.btf_values import decode_value
from egpu.errors import InputError

MAX_TYPES = 1 << 18
MAX_STRING = 1 << 12
_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
# How deep types may nest by value, and how many typedefs and qualifiers may follow each other.
# Real code stays under 20; a crafted cycle ends here.
MAX_DEPTH = 64


class BtfKind(enum.IntEnum):
    """Kinds of types."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


_K = BtfKind
# Kinds that stand for another type of the same size.
_TRANSPARENT = frozenset({_K.TYPEDEF, _K.VOLATILE, _K.CONST, _K.RESTRICT, _K.TYPE_TAG})
_REFERS = _TRANSPARENT | {_K.PTR, _K.FUNC, _K.FUNC_PROTO, _K.VAR, _K.DECL_TAG}
_SIZED = frozenset({_K.INT, _K.FLOAT, _K.STRUCT, _K.UNION, _K.ENUM, _K.ENUM64, _K.DATASEC})
# Bytes after the common header: fixed part, and per element of vlen.
_TRAILER: dict[BtfKind, tuple[int, int]] = {
    _K.INT: (4, 0),
    _K.ARRAY: (12, 0),
    _K.STRUCT: (0, 12),
    _K.UNION: (0, 12),
    _K.ENUM: (0, 8),
    _K.FUNC_PROTO: (0, 8),
    _K.VAR: (4, 0),
    _K.DATASEC: (0, 12),
    _K.DECL_TAG: (4, 0),
    _K.ENUM64: (0, 12),
}


@dataclass(frozen=True, slots=True)
class BtfMember:
    """A member of a struct or union, a variable of a section, an enumerator, or a parameter.

    ``offset`` is in bits (bytes in a section, an enumerator's value); ``bits`` is a bit-field's
    width, 0 otherwise; ``size`` is a section variable's bytes.
    """

    name: str
    type: int
    offset: int
    bits: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class BtfType:
    """One type.

    ``size`` is in bytes (0 for kinds without one); ``type`` the type it refers to; ``flag`` the
    kind_flag; ``encoding`` an INT's encoding bits (1 signed, 2 char, 4 bool) or a VAR's linkage
    (0 static, 1 global, 2 extern); ``count`` an ARRAY's elements.
    """

    id: int
    kind: BtfKind
    name: str = ""
    size: int = 0
    type: int = 0
    flag: bool = False
    encoding: int = 0
    count: int = 0
    members: tuple[BtfMember, ...] = ()


class Btf:
    """The types of one object."""

    def __init__(self, types: tuple[BtfType, ...], strings: bytes) -> None:
        self.types = types
        self._strings = strings
        # Classes for records, by C name and fields, in the place of namedtuples made on the way.
        self.records: Mapping[tuple[str, tuple[str, ...]], Callable[..., object]] = {}

    @classmethod
    def parse(cls, data: bytes, where: str = ".BTF") -> Btf:
        """Read a .BTF section. Raises InputError with offset when it is malformed."""
        return _parse(data, where)

    def string(self, offset: int) -> str:
        """The string at ``offset`` of the string table. Raises InputError."""
        return _string(self._strings, offset, ".BTF strings")

    def source_text(self, offset: int) -> str:
        """What is written at ``offset`` for people: a source line or file, in any encoding, of
        which the first 4,096 bytes are given.  Raises InputError past the end of the strings."""
        if offset >= len(self._strings):
            self.string(offset)  # says so
        text, _, _ = self._strings[offset : offset + MAX_STRING].partition(b"\0")
        return text.decode(errors="replace")

    def type_at(self, type_id: int) -> BtfType:
        """The type with that id. Raises InputError if there is none."""
        if not 0 <= type_id < len(self.types):
            raise InputError(f"type {type_id} does not exist", where=".BTF")
        return self.types[type_id]

    def with_types(self, types: tuple[BtfType, ...]) -> Btf:
        """The same strings with other types."""
        made = Btf(types, self._strings)
        made.records = self.records
        return made

    def find(self, name: str, kind: BtfKind) -> BtfType | None:
        """The first type of that name and kind, None if there is none."""
        return next((row for row in self.types if row.kind is kind and row.name == name), None)

    def resolve(self, type_id: int) -> BtfType:
        """The type behind typedefs and qualifiers. Raises InputError on a cycle."""
        row = self.type_at(type_id)
        for _ in range(MAX_DEPTH):
            if row.kind not in _TRANSPARENT:
                return row
            row = self.type_at(row.type)
        raise InputError(f"type {type_id} is a chain of over {MAX_DEPTH} types", where=".BTF")

    def size_of(self, type_id: int) -> int:
        """The bytes of a value of that type. Raises InputError for one without a size."""
        count = 1
        for _ in range(MAX_DEPTH):
            row = self.resolve(type_id)
            if row.kind is BtfKind.PTR:
                return 8 * count
            if row.kind in _SIZED:
                return row.size * count
            if row.kind is not BtfKind.ARRAY:
                break
            count *= row.count
            type_id = row.type
        raise InputError(f"type {type_id} ({row.kind.name} {row.name}) has no size", where=".BTF")

    def decode(self, type_id: int, data: bytes) -> object:
        """``data`` as a value of that type.

        int for integers, enums and pointers, float, bytes (whole) for arrays of ``char``, tuple
        for other arrays, namedtuple for structs, unions and data sections; the fields of anonymous
        members stand in their parent.  A name that Python forbids loses the underscores in front
        or gets one at its end.  Raises InputError when ``data`` is shorter than the type or the
        type has no size.
        """
        return decode_value(self, type_id, data, MAX_DEPTH)


def _parse(data: bytes, where: str) -> Btf:
    if len(data) < _HEADER.size:
        raise InputError(f"truncated in its header, {len(data)} bytes", where=where)
    magic, version, _, header, type_at, type_size, text_at, text_size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise InputError(f"magic is 0x{magic:04x}, 0x{_MAGIC:04x} expected", where=where)
    if version != 1:
        raise InputError(f"version {version}, 1 expected", where=where)
    for name, start, size in (("types", type_at, type_size), ("strings", text_at, text_size)):
        if header < _HEADER.size or header + start + size > len(data):
            raise InputError(
                f"{name} end at {header + start + size}, the section at {len(data)}", where=where
            )
    strings = data[header + text_at : header + text_at + text_size]
    if not strings.startswith(b"\0"):
        raise InputError("its strings do not begin with the empty one", where=where)
    body = data[header + type_at : header + type_at + type_size]
    types = [BtfType(0, BtfKind.VOID)]
    at = 0
    while at < len(body):
        if len(types) > MAX_TYPES:
            raise InputError(f"over {MAX_TYPES} types", where=where)
        row, at = _parse_type(body, at, len(types), strings, where)
        types.append(row)
    for row in types:
        for target in (row.type, *(member.type for member in row.members)):
            if target >= len(types):
                raise InputError(f"type {row.id} refers to type {target}, not there", where=where)
    return Btf(tuple(types), strings)


def _parse_type(
    body: bytes, at: int, type_id: int, strings: bytes, where: str
) -> tuple[BtfType, int]:
    place = f"{where}, type {type_id} at {at}"
    if at + _TYPE.size > len(body):
        raise InputError("truncated", where=place)
    name_at, info, word = _TYPE.unpack_from(body, at)
    number, count, flag = info >> 24 & 0x1F, info & 0xFFFF, bool(info >> 31)
    if not 0 < number <= max(BtfKind):
        raise InputError(f"unknown kind {number}", where=place)
    kind = BtfKind(number)
    fixed, each = _TRAILER.get(kind, (0, 0))
    start = at + _TYPE.size
    end = start + fixed + each * count
    if end > len(body):
        raise InputError(f"{kind.name} with {count} elements is truncated", where=place)
    words = struct.unpack_from(f"<{(end - start) // 4}I", body, start)
    name = _string(strings, name_at, place)
    size = word if kind in _SIZED else 0
    target = word if kind in _REFERS else 0
    row = BtfType(type_id, kind, name, size, target, flag)
    return _with_trailer(row, words, strings, place), end


def _with_trailer(row: BtfType, words: tuple[int, ...], strings: bytes, place: str) -> BtfType:
    members: tuple[BtfMember, ...] = ()
    encoding = count = 0
    target = row.type
    match row.kind:
        case BtfKind.INT:
            encoding = words[0] >> 24 & 0xF
            if not 0 < row.size <= 16:
                raise InputError(f"integer of {row.size} bytes", where=place)
        case BtfKind.VAR:
            encoding = words[0]
        case BtfKind.ARRAY:
            target, _, count = words
        case BtfKind.STRUCT | BtfKind.UNION:
            members = tuple(
                BtfMember(
                    _string(strings, words[at], place),
                    words[at + 1],
                    words[at + 2] & 0xFFFFFF if row.flag else words[at + 2],
                    words[at + 2] >> 24 if row.flag else 0,
                )
                for at in range(0, len(words), 3)
            )
        case BtfKind.DATASEC:
            members = tuple(
                BtfMember("", words[at], words[at + 1], size=words[at + 2])
                for at in range(0, len(words), 3)
            )
        case BtfKind.FUNC_PROTO:
            members = tuple(
                BtfMember(_string(strings, words[at], place), words[at + 1], 0)
                for at in range(0, len(words), 2)
            )
        case BtfKind.ENUM | BtfKind.ENUM64:
            members = _enumerators(row, words, strings, place)
    return BtfType(row.id, row.kind, row.name, row.size, target, row.flag, encoding, count, members)


def _enumerators(
    row: BtfType, words: tuple[int, ...], strings: bytes, place: str
) -> tuple[BtfMember, ...]:
    """Names and values; negative ones where the type is signed."""
    wide = row.kind is BtfKind.ENUM64
    step, bits = (3, 64) if wide else (2, 32)
    found = []
    for at in range(0, len(words), step):
        value = words[at + 1] | (words[at + 2] << 32 if wide else 0)
        found.append(
            BtfMember(
                _string(strings, words[at], place), 0, signed(value, bits) if row.flag else value
            )
        )
    return tuple(found)


def _string(strings: bytes, offset: int, place: str) -> str:
    if offset >= len(strings):
        raise InputError(f"name at {offset} of {len(strings)} bytes of strings", where=place)
    end = strings.find(b"\0", offset, offset + MAX_STRING)
    if end < 0:
        raise InputError(f"name at {offset} does not end within {MAX_STRING} bytes", where=place)
    try:
        return strings[offset:end].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"name at {offset} is not UTF-8", where=place) from error
