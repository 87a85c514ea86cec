"""CO-RE questions about whole types: is there one that fits, and does one match exactly."""

from __future__ import annotations

from egpu.bpf.btf import Btf, BtfKind, BtfType
from egpu.bpf.core_spec import COMPOSITE, ENUMS, essential, same_kind

_DEPTH = 32  # types behind each other that are compared; real ones stay far below
_OPEN = frozenset({BtfKind.VOID, BtfKind.FWD}) | COMPOSITE | ENUMS
_SIGNED = 1  # encoding bit of INT


def types_agree(local: Btf, local_id: int, btf: Btf, type_id: int, depth: int = _DEPTH) -> bool:
    """Whether the kinds agree, through pointers, arrays and signatures.

    Names and contents of structs, unions and enums do not matter: candidates have the right name.
    """
    one, other = local.resolve(local_id), btf.resolve(type_id)
    if not same_kind(one, other) or not depth:
        return False
    if one.kind in _OPEN or one.kind is BtfKind.INT:
        return True
    if one.kind in (BtfKind.PTR, BtfKind.ARRAY):
        return types_agree(local, one.type, btf, other.type, depth - 1)
    if one.kind is BtfKind.FUNC_PROTO:
        return len(one.members) == len(other.members) and all(
            types_agree(local, mine, btf, theirs, depth - 1)
            for mine, theirs in zip(_signature(one), _signature(other), strict=True)
        )
    return False


def _signature(row: BtfType) -> tuple[int, ...]:
    return (row.type, *(parameter.type for parameter in row.members))


class Matcher:
    """Whether the types of ``local`` are contained in those of ``btf``."""

    def __init__(self, local: Btf, btf: Btf) -> None:
        self._local = local
        self._btf = btf
        # Pairs that were compared; one that is being compared holds itself, which no type can.
        self._known: dict[tuple[int, int, bool], bool] = {}

    def matches(self, local_id: int, type_id: int) -> bool:
        """Whether every member, enumerator and parameter has its like; names count.

        What a pointer leads to needs kind and name only.
        """
        return self._matches(local_id, type_id, False, _DEPTH)

    def _matches(self, local_id: int, type_id: int, pointed_at: bool, depth: int) -> bool:
        key = local_id, type_id, pointed_at
        if key not in self._known:
            self._known[key] = False
            self._known[key] = self._compare(local_id, type_id, pointed_at, depth)
        return self._known[key]

    def _compare(self, local_id: int, type_id: int, pointed_at: bool, depth: int) -> bool:
        one, other = self._local.resolve(local_id), self._btf.resolve(type_id)
        if not depth or essential(one.name) != essential(other.name):
            return False
        match one.kind:
            case BtfKind.VOID:
                return other.kind is BtfKind.VOID
            case BtfKind.FWD:
                return _forward(one, other)
            case BtfKind.ENUM | BtfKind.ENUM64:
                return _enums(one, other)
            case BtfKind.STRUCT | BtfKind.UNION:
                if pointed_at:
                    return one.kind is other.kind or _forward(other, one)
                return one.kind is other.kind and self._members(one, other, depth)
            case BtfKind.INT:
                same_sign = (one.encoding ^ other.encoding) & _SIGNED == 0
                return other.kind is BtfKind.INT and one.size == other.size and same_sign
            case BtfKind.PTR:
                return other.kind is BtfKind.PTR and self._matches(
                    one.type, other.type, True, depth - 1
                )
            case BtfKind.ARRAY:
                same = other.kind is BtfKind.ARRAY and one.count == other.count
                return same and self._matches(one.type, other.type, pointed_at, depth - 1)
            case BtfKind.FUNC_PROTO:
                return (
                    other.kind is BtfKind.FUNC_PROTO
                    and len(one.members) == len(other.members)
                    and all(
                        self._matches(mine, theirs, pointed_at, depth - 1)
                        for mine, theirs in zip(_signature(one), _signature(other), strict=True)
                    )
                )
        return False

    def _members(self, one: BtfType, other: BtfType, depth: int) -> bool:
        return all(
            any(
                essential(mine.name) == essential(theirs.name)
                and self._matches(mine.type, theirs.type, False, depth - 1)
                for theirs in other.members
            )
            for mine in one.members
        )


def _forward(one: BtfType, other: BtfType) -> bool:
    """Whether ``one``, a forward declaration, may be of ``other``."""
    if one.kind is not BtfKind.FWD:
        return False
    if other.kind is BtfKind.FWD:
        return one.flag == other.flag
    return other.kind is (BtfKind.UNION if one.flag else BtfKind.STRUCT)


def _enums(one: BtfType, other: BtfType) -> bool:
    if other.kind not in ENUMS or one.size != other.size:
        return False
    names = {essential(member.name) for member in other.members}
    return all(essential(member.name) in names for member in one.members)
