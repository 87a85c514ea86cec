"""What a CO-RE relocation puts into its instruction: one number for the place found in a BTF."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.btf import BtfKind
from egpu.bpf.btf_ext import CoreKind
from egpu.bpf.core_spec import ENUMS, Spec
from egpu.errors import InputError

_WORD = 8  # bytes: the largest access of one instruction
_SIGNED = 1  # encoding bit of INT
_NUMBERS = frozenset({BtfKind.INT})

FIELDS = frozenset(
    {
        CoreKind.FIELD_BYTE_OFFSET,
        CoreKind.FIELD_BYTE_SIZE,
        CoreKind.FIELD_EXISTS,
        CoreKind.FIELD_SIGNED,
        CoreKind.FIELD_LSHIFT_U64,
        CoreKind.FIELD_RSHIFT_U64,
    }
)
ENUMERATORS = frozenset({CoreKind.ENUMVAL_EXISTS, CoreKind.ENUMVAL_VALUE})
# Without anything that fits these have no value: the instruction must not be reached.
_NEEDED = (FIELDS - {CoreKind.FIELD_EXISTS}) | {CoreKind.ENUMVAL_VALUE}


@dataclass(frozen=True, slots=True)
class Value:
    """The number of a relocation, None if there is none.

    ``size``: bytes of the field, for the offset of one that an instruction reads or writes whole;
    ``extends``: whether reading fewer or more bytes than was compiled for keeps its value.
    """

    number: int | None
    size: int = 0
    extends: bool = False


def missing_value(kind: CoreKind) -> Value:
    """The value where no type fits."""
    return Value(None if kind in _NEEDED else 0)


def value_of(kind: CoreKind, spec: Spec, where: str) -> Value:
    """The value for the place ``spec``. Raises InputError for a field no instruction can reach."""
    match kind:
        case CoreKind.FIELD_EXISTS | CoreKind.TYPE_EXISTS | CoreKind.TYPE_MATCHES:
            return Value(1)
        case CoreKind.ENUMVAL_EXISTS:
            return Value(1)
        case CoreKind.ENUMVAL_VALUE:
            step = spec.steps[0]
            return Value(spec.btf.type_at(step.type).members[step.index].offset)
        case CoreKind.TYPE_ID_LOCAL | CoreKind.TYPE_ID_TARGET:
            return Value(spec.root)
        case CoreKind.TYPE_SIZE:
            return Value(spec.btf.size_of(spec.root))
    return _field_value(kind, spec, where)


def is_bit_field(spec: Spec) -> bool:
    """Whether the field is one of single bits."""
    member, type_id = spec.field()
    return member is not None and bool(_bits(member.bits, spec, type_id))


def _field_value(kind: CoreKind, spec: Spec, where: str) -> Value:
    btf = spec.btf
    member, type_id = spec.field()
    row = btf.resolve(type_id)
    if kind is CoreKind.FIELD_SIGNED:
        number = row.kind is BtfKind.INT and row.encoding & _SIGNED
        return Value(int(bool(number or (row.kind in ENUMS and row.flag))))
    if member is not None and _bits(member.bits, spec, type_id):
        return _bit_field(kind, spec, _bits(member.bits, spec, type_id), type_id, where)
    size = btf.size_of(type_id)
    match kind:
        case CoreKind.FIELD_BYTE_OFFSET:
            single = row.kind in ENUMS | _NUMBERS | {BtfKind.PTR, BtfKind.FLOAT}
            extends = row.kind is BtfKind.PTR or (
                row.kind is BtfKind.INT and not row.encoding & _SIGNED
            )
            return Value(spec.bit_offset // 8, size if single else 0, extends)
        case CoreKind.FIELD_BYTE_SIZE:
            return Value(size)
        case CoreKind.FIELD_LSHIFT_U64 | CoreKind.FIELD_RSHIFT_U64:
            return Value(64 - 8 * size)
    raise InputError(f"{kind.words} of {spec.text()}", where=where)


def _bits(declared: int, spec: Spec, type_id: int) -> int:
    """The width of a bit-field, 0 for an ordinary member."""
    if declared:
        return declared
    # A member of a whole type that does not begin at a byte is one too (old BTF).
    return 8 * spec.btf.size_of(type_id) if spec.bit_offset % 8 else 0


def _bit_field(kind: CoreKind, spec: Spec, bits: int, type_id: int, where: str) -> Value:
    """The smallest aligned word that holds the field whole, and where it lies in there."""
    size = spec.btf.size_of(type_id)
    while True:
        start = spec.bit_offset // 8 // size * size
        if spec.bit_offset + bits <= 8 * (start + size):
            break
        if size >= _WORD:
            raise InputError(f"bit-field {spec.text()} lies in no word of 8 bytes", where=where)
        size *= 2
    match kind:
        case CoreKind.FIELD_BYTE_OFFSET:
            return Value(start)
        case CoreKind.FIELD_BYTE_SIZE:
            return Value(size)
        case CoreKind.FIELD_LSHIFT_U64:
            return Value(64 - (spec.bit_offset + bits - 8 * start))
        case _:
            return Value(64 - bits)
