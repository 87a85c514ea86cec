"""Python values into bytes by BTF type: the inverse of ``Btf.decode``, with every value checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from egpu.bpf.btf import MAX_DEPTH, Btf, BtfKind, BtfType
from egpu.bpf.btf_values import legal_names
from egpu.errors import InputError

_SIGNED, _CHAR, _BOOL = 1, 2, 4  # encoding bits of INT
_ELSEWHERE = object()
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def encode_value(btf: Btf, type_id: int, value: object, where: str) -> bytes:
    """The bytes of ``value`` as that type; ``where`` names it in messages.

    Takes what ``Btf.decode`` gives: int for integers, enums (also an enumerator's name) and
    pointers, float, bytes or str for arrays of ``char`` (shorter ones are filled with zeros), a
    sequence for other arrays, a (named) tuple or a mapping with every field for structs and data
    sections.  A union takes a mapping with one of its members, or a tuple whose members are the
    same bytes.  Bytes of a type's whole size are taken as they are.  Raises InputError for a value
    of another kind, size or range.
    """
    data = bytearray(btf.size_of(type_id))
    _put(_Place(btf, where, MAX_DEPTH), type_id, value, data)
    return bytes(data)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a value the encoder is; ``depth`` is how many levels of types may still nest."""

    btf: Btf
    where: str
    depth: int

    def inside(self, name: str) -> _Place:
        if self.depth == 0:
            raise InputError("its type nests too deep", where=self.where)
        return _Place(self.btf, f"{self.where}{name}", self.depth - 1)

    def wrong(self, value: object, wanted: str) -> InputError:
        return InputError(f"{value!r:.60} is not {wanted}", where=self.where)


def _put(place: _Place, type_id: int, value: object, data: bytearray) -> None:
    row = place.btf.resolve(type_id)
    if isinstance(value, (bytes, bytearray)) and len(value) == len(data) > 1:
        data[:] = value
        return
    match row.kind:
        case BtfKind.INT:
            is_bool = bool(row.encoding & _BOOL)
            signed = bool(row.encoding & _SIGNED)
            _integer(place, value, data, 1 if is_bool else 8 * len(data), signed=signed)
        case BtfKind.ENUM | BtfKind.ENUM64:
            _enumeration(place, row, value, data)
        case BtfKind.PTR:
            _integer(place, value, data, 64, signed=False)
        case BtfKind.FLOAT:
            _floating(place, value, data)
        case BtfKind.ARRAY:
            _array(place, row, value, data)
        case BtfKind.STRUCT | BtfKind.DATASEC:
            _struct(place, row, value, data)
        case BtfKind.UNION:
            _union(place, row, value, data)
        case kind:
            raise InputError(f"a {kind.name} has no values", where=place.where)


def _integer(place: _Place, value: object, data: bytearray, bits: int, *, signed: bool) -> None:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if isinstance(value, float) or not isinstance(value, SupportsIndex):
        raise place.wrong(value, f"an integer from {low} to {high}")
    number = value.__index__()
    if not low <= number <= high:
        raise place.wrong(value, f"from {low} to {high}")
    data[:] = number.to_bytes(len(data), "little", signed=signed)


def _enumeration(place: _Place, row: BtfType, value: object, data: bytearray) -> None:
    if isinstance(value, str):
        known = {member.name: member.offset for member in row.members}
        if value not in known:
            names = ", ".join(known) or "numbers only"
            raise place.wrong(value, f"one of {names}")
        value = known[value]
    _integer(place, value, data, 8 * len(data), signed=row.flag)


def _floating(place: _Place, value: object, data: bytearray) -> None:
    layout = _FLOATS.get(len(data))
    if layout is None or not isinstance(value, (int, float)):
        raise place.wrong(value, f"a float of {len(data)} bytes")
    try:
        data[:] = struct.pack(layout, value)
    except (OverflowError, struct.error):
        raise place.wrong(value, f"in the range of a float of {len(data)} bytes") from None


def _array(place: _Place, row: BtfType, value: object, data: bytearray) -> None:
    element = place.btf.resolve(row.type)
    if element.size == 1 and (element.name == "char" or element.encoding & _CHAR):
        text = _encoded(place, value) if isinstance(value, str) else value
        if not isinstance(text, (bytes, bytearray)) or len(text) > len(data):
            raise place.wrong(value, f"text of at most {len(data)} bytes")
        data[: len(text)] = text
        return
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise place.wrong(value, f"a sequence of {row.count}")
    size = place.btf.size_of(row.type)
    if not value and not size:
        return  # any number of nothing, which decodes to nothing
    if len(value) != row.count:
        raise place.wrong(value, f"a sequence of {row.count}, but of {len(value)}")
    for index, item in enumerate(value):
        part = bytearray(size)
        _put(place.inside(f"[{index}]"), row.type, item, part)
        data[index * size : (index + 1) * size] = part


def _encoded(place: _Place, text: str) -> bytes:
    """The bytes of a text; those of an argument of the command line that is no UTF-8, too."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise place.wrong(text, "text that UTF-8 has") from None


@dataclass(frozen=True, slots=True)
class Field:
    """A field as ``Btf.decode`` shows it: ``offset`` in bits, ``bits`` of a bit-field or 0."""

    name: str
    type: int
    offset: int
    bits: int


def fields_of(btf: Btf, row: BtfType) -> tuple[Field, ...]:
    """The fields of a struct, union or data section; those of anonymous members in their place."""
    return tuple(_fields(btf, row, 0, MAX_DEPTH))


def _fields(btf: Btf, row: BtfType, base: int, depth: int) -> Iterator[Field]:
    if depth == 0:
        raise InputError(f"type {row.id} nests too deep", where=".BTF")
    for member in row.members:
        if row.kind is BtfKind.DATASEC:
            variable = btf.type_at(member.type)
            yield Field(variable.name, variable.type, 8 * member.offset, 0)
            continue
        target = btf.resolve(member.type)
        composed = target.kind in (BtfKind.STRUCT, BtfKind.UNION)
        if not member.bits and composed and not target.size:
            continue  # nothing but empty structs
        if not member.name and composed:
            yield from _fields(btf, target, base + member.offset, depth - 1)
        else:
            yield Field(member.name, member.type, base + member.offset, member.bits)


def _struct(place: _Place, row: BtfType, value: object, data: bytearray) -> None:
    fields = fields_of(place.btf, row)
    names = legal_names(tuple(field.name for field in fields))
    given = [
        (field, name, item)
        for field, name, item in zip(fields, names, _items(place, row, fields, value), strict=True)
        if item is not _ELSEWHERE
    ]
    for field, name, item in given:
        _field(place.inside(f".{name}"), field, item, data)
    _check_shared(place, given, data)


def _bits(btf: Btf, field: Field) -> range:
    return range(field.offset, field.offset + (field.bits or 8 * btf.size_of(field.type)))


def _shared(btf: Btf, one: Field, other: Field) -> bool:
    """Whether two fields lie in the same bits, as members of an anonymous union do."""
    first, second = _bits(btf, one), _bits(btf, other)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _check_shared(
    place: _Place, given: Sequence[tuple[Field, str, object]], data: bytearray
) -> None:
    """InputError if fields that lie in the same bytes contradict each other."""
    end = 0
    for field, _, _ in sorted(given, key=lambda each: each[0].offset):
        if field.offset < end:
            break
        end = _bits(place.btf, field).stop
    else:
        return
    for field, name, item in given:
        again = bytearray(data)
        _field(place.inside(f".{name}"), field, item, again)
        if again != data:
            raise InputError(
                f"its field {name} contradicts another one of the same bytes",
                where=place.where,
                hint="name one of them only",
            )


def _items(
    place: _Place, row: BtfType, fields: tuple[Field, ...], value: object
) -> Sequence[object]:
    """The values of the fields, in their order; ``_ELSEWHERE`` for those whose bytes another one
    gives."""
    legal = legal_names(tuple(field.name for field in fields))
    if isinstance(value, Mapping):
        known = {field.name for field in fields} | set(legal)
        for name in value:
            if name not in known:
                raise InputError(f"has no field {name!r}", where=place.where)
        given = [
            field
            for field, name in zip(fields, legal, strict=True)
            if name in value or field.name in value
        ]
        found: list[object] = []
        for field, name in zip(fields, legal, strict=True):
            if name in value or field.name in value:
                found.append(value[name] if name in value else value[field.name])
            elif any(_shared(place.btf, field, other) for other in given):
                found.append(_ELSEWHERE)
            else:
                raise InputError(f"lacks the field {name}", where=place.where)
        return found
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise place.wrong(value, f"a {row.kind.name.lower()} {row.name}".rstrip())
    if len(value) != len(fields):
        raise InputError(f"{len(value)} values for {len(fields)} fields", where=place.where)
    return value


def _field(place: _Place, field: Field, value: object, data: bytearray) -> None:
    if field.bits:
        _bit_field(place, field, value, data)
        return
    start, extra = divmod(field.offset, 8)
    size = place.btf.size_of(field.type)
    if extra or start + size > len(data):
        raise InputError("lies outside of its struct", where=place.where)
    part = bytearray(size)
    _put(place, field.type, value, part)
    data[start : start + size] = part


def _bit_field(place: _Place, field: Field, value: object, data: bytearray) -> None:
    target = place.btf.resolve(field.type)
    is_enum = target.kind in (BtfKind.ENUM, BtfKind.ENUM64)
    signed = target.flag if is_enum else bool(target.encoding & _SIGNED)
    wide = bytearray(16)
    _integer(place, value, wide, field.bits, signed=signed)
    mask = (1 << field.bits) - 1
    bits = int.from_bytes(wide, "little") & mask
    whole = int.from_bytes(data, "little") & ~(mask << field.offset) | bits << field.offset
    data[:] = whole.to_bytes(len(data), "little")


def _union(place: _Place, row: BtfType, value: object, data: bytearray) -> None:
    fields = fields_of(place.btf, row)
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise InputError(f"{len(value)} members of a union, 1 wanted", where=place.where)
        ((name, item),) = value.items()
        legal = legal_names(tuple(field.name for field in fields))
        for field, other in zip(fields, legal, strict=True):
            if name in (field.name, other):
                _field(place.inside(f".{name}"), field, item, data)
                return
        raise InputError(f"has no member {name!r}", where=place.where)
    items = _items(place, row, fields, value)
    for field, item in sorted(
        zip(fields, items, strict=True), key=lambda pair: place.btf.size_of(pair[0].type)
    ):
        _field(place.inside(f".{field.name}"), field, item, data)
    if place.btf.decode(row.id, bytes(data)) != tuple(items):
        raise InputError(
            "its members are not the same bytes", where=place.where, hint="give one by name"
        )
