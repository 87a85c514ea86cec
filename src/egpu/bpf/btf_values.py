"""Bytes into Python values by BTF type: what ``Btf.decode`` does."""

from __future__ import annotations

import keyword
import struct
import unicodedata
from collections import namedtuple
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from egpu.bpf.arith import signed
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.bpf.btf import Btf, BtfType

_SIGNED, _CHAR, _BOOL = 1, 2, 4  # encoding bits of INT
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def decode_value(btf: Btf, type_id: int, data: bytes, depth: int) -> object:
    """See ``Btf.decode``; ``depth`` is how many levels of types may still nest."""
    row = btf.resolve(type_id)
    size = btf.size_of(type_id)
    if len(data) < size:
        raise InputError(
            f"{len(data)} bytes are too few for {row.kind.name} {row.name} of {size}", where=".BTF"
        )
    if depth == 0:
        raise InputError(f"type {type_id} nests too deep", where=".BTF")
    data = data[:size]
    match row.kind.name:
        case "INT":
            return _integer(row, int.from_bytes(data, "little"), 8 * size)
        case "ENUM" | "ENUM64":
            return int.from_bytes(data, "little", signed=row.flag)
        case "PTR":
            return int.from_bytes(data, "little")
        case "FLOAT":
            return _floating(row, data)
        case "ARRAY":
            return _array(btf, row, data, depth)
        case "STRUCT" | "UNION":
            fields = list(_fields(btf, row, data, depth))
        case "DATASEC":
            fields = list(_variables(btf, row, data, depth))
        case kind:
            raise InputError(f"{kind} {row.name} has no values", where=".BTF")
    names = tuple(name for name, _ in fields)
    made = btf.records.get((row.name, legal_names(names))) if btf.records else None
    return (made or _tuple_class(row.name, names))(*(value for _, value in fields))


def _integer(row: BtfType, value: int, bits: int) -> int:
    if row.encoding & _BOOL:
        return bool(value)
    return signed(value, bits) if row.encoding & _SIGNED else value


def _floating(row: BtfType, data: bytes) -> float:
    layout = _FLOATS.get(len(data))
    if layout is None:
        raise InputError(f"float of {len(data)} bytes", where=".BTF")
    value: float = struct.unpack(layout, data)[0]
    return value


def _array(btf: Btf, row: BtfType, data: bytes, depth: int) -> object:
    element = btf.resolve(row.type)
    if element.size == 1 and (element.name == "char" or element.encoding & _CHAR):
        return bytes(data)
    size = btf.size_of(row.type)
    if size == 0:
        return ()  # any number of nothing
    return tuple(
        decode_value(btf, row.type, data[at : at + size], depth - 1)
        for at in range(0, len(data), size)
    )


def _fields(btf: Btf, row: BtfType, data: bytes, depth: int) -> Iterator[tuple[str, object]]:
    """Name and value of each member; those of anonymous members stand in their parent's place."""
    if depth == 0:
        raise InputError(f"type {row.id} nests too deep", where=".BTF")
    for member in row.members:
        target = btf.resolve(member.type)
        if member.bits:
            value = int.from_bytes(data, "little") >> member.offset & (1 << member.bits) - 1
            is_signed = bool(target.encoding & _SIGNED) or (
                target.kind.name.startswith("ENUM") and target.flag
            )
            yield member.name, signed(value, member.bits) if is_signed else value
            continue
        start, extra = divmod(member.offset, 8)
        size = btf.size_of(member.type)
        if extra or start + size > len(data):
            raise InputError(
                f"member {member.name!r} of {row.name or 'a struct'} lies outside it", where=".BTF"
            )
        part = data[start : start + size]
        if not size and target.members:
            continue  # nothing but empty structs
        if not member.name and target.kind.name in ("STRUCT", "UNION"):
            yield from _fields(btf, target, part, depth - 1)
        else:
            yield member.name, decode_value(btf, member.type, part, depth - 1)


def _variables(btf: Btf, row: BtfType, data: bytes, depth: int) -> Iterator[tuple[str, object]]:
    for member in row.members:
        variable = btf.type_at(member.type)
        part = data[member.offset : member.offset + member.size]
        yield variable.name, decode_value(btf, variable.type, part, depth - 1)


def legal_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """C names as fields of a namedtuple: legal, and different from each other."""
    legal: dict[str, None] = {}
    for position, original in enumerate(names):
        # As Python's compiler spells identifiers (NFKC), or nobody could write the name.
        field = unicodedata.normalize("NFKC", original).lstrip("_") or f"field{position}"
        if keyword.iskeyword(field) or not field.isidentifier():
            field = f"{field}_" if keyword.iskeyword(field) else f"field{position}"
        if field in legal:
            field = f"{field}_{position}"
        while field in legal:
            field += "_"
        legal[field] = None
    return tuple(legal)


def class_name(name: str) -> str:
    """The name of a struct's namedtuple class."""
    return name if name.isidentifier() and not keyword.iskeyword(name) else "anonymous"


@cache
def _tuple_class(name: str, names: tuple[str, ...]) -> type:
    """A namedtuple class for these C names."""
    return namedtuple(class_name(name), legal_names(names))  # the fields come from the object
