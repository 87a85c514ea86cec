"""Types as JSON, for maps that are read where their object file is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from egpu.bpf.btf import MAX_TYPES, Btf, BtfKind, BtfMember, BtfType
from egpu.errors import InputError

_MAX_BITS = 128  # of a bit-field: those of the widest integer


def dump_types(btf: Btf, wanted: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The types behind ``wanted`` as rows, and the ids that ``wanted`` have among them.

    Pointers are kept without what they point to.
    """
    new: dict[int, int] = {0: 0}
    order: list[BtfType] = [btf.type_at(0)]
    pending = [type_id for type_id in wanted if type_id]
    while pending:
        type_id = pending.pop()
        if type_id in new:
            continue
        row = btf.type_at(type_id)
        new[type_id] = len(order)
        order.append(row)
        pending += _referred(row)
    return [_row(row, new) for row in order[1:]], [new[type_id] for type_id in wanted]


def _referred(row: BtfType) -> list[int]:
    if row.kind in (BtfKind.PTR, BtfKind.FUNC_PROTO):
        return []
    return [type_id for type_id in (row.type, *(m.type for m in row.members)) if type_id]


def _row(row: BtfType, new: Mapping[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": row.kind.name}
    for name in ("name", "size", "flag", "encoding", "count"):
        if getattr(row, name):
            found[name] = getattr(row, name)
    if new.get(row.type):
        found["type"] = new[row.type]
    if row.members and row.kind is not BtfKind.FUNC_PROTO:
        found["members"] = [
            [m.name, new.get(m.type, 0), m.offset, m.bits, m.size] for m in row.members
        ]
    return found


def load_types(rows: object) -> Btf:
    """The inverse of ``dump_types``; InputError if ``rows`` is something else."""
    if not isinstance(rows, list) or len(rows) >= MAX_TYPES:
        raise InputError("malformed types")
    types = [BtfType(0, BtfKind.VOID)]
    try:
        for number, row in enumerate(rows, 1):
            members = tuple(
                BtfMember(str(name), int(kind), int(offset), int(bits), int(size))
                for name, kind, offset, bits, size in row.get("members", ())
            )
            types.append(
                BtfType(
                    number,
                    BtfKind[row["kind"]],
                    str(row.get("name", "")),
                    int(row.get("size", 0)),
                    int(row.get("type", 0)),
                    bool(row.get("flag", False)),
                    int(row.get("encoding", 0)),
                    int(row.get("count", 0)),
                    members,
                )
            )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"malformed types: {error!r}") from error
    for row in types:
        for target in (row.type, *(member.type for member in row.members)):
            if not 0 <= target < len(types):
                raise InputError(f"malformed types: type {target} is not there")
        numbers = [row.size, row.encoding, row.count]
        for member in row.members:
            if member.bits > _MAX_BITS:
                raise InputError(f"malformed types: a field of {member.bits} bits")
            numbers += [member.offset, member.bits, member.size]
        if row.kind is BtfKind.INT and not 0 < row.size <= 16:
            raise InputError(f"malformed types: an integer of {row.size} bytes")
        if min(numbers) < 0:
            raise InputError(f"malformed types: a negative number in type {row.id}")
    return Btf(tuple(types), b"\0")
