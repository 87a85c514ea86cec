"""CO-RE access strings: what they name in the object's BTF, and the same place in another BTF.

Access strings are those of Linux Documentation/bpf/llvm_reloc.rst, "CO-RE Relocations".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from egpu.bpf.btf import MAX_DEPTH, Btf, BtfKind, BtfMember, BtfType
from egpu.errors import InputError

COMPOSITE = frozenset({BtfKind.STRUCT, BtfKind.UNION})
ENUMS = frozenset({BtfKind.ENUM, BtfKind.ENUM64})
_MAX_STEPS = 64
_FLAVOUR = re.compile(r"(.*[^_])___[^_].*", re.DOTALL)
# Pointers, floating-point values and numbers of any size may stand for each other's kind.
_ALWAYS = frozenset({BtfKind.PTR, BtfKind.FLOAT})
_NAMED = frozenset({BtfKind.FWD, BtfKind.ENUM, BtfKind.ENUM64})


@dataclass(frozen=True, slots=True)
class Access:
    """One step of a way into a type: element ``index`` of ``type``, or its member ``name``."""

    type: int
    index: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """A place inside type ``root`` of ``btf``.

    ``steps`` leave out members without a name, which one BTF may have where another does not.
    ``bit_offset`` counts from the root's start; for an enumerator ``steps`` is one access.
    """

    btf: Btf
    root: int
    steps: tuple[Access, ...] = ()
    bit_offset: int = 0

    def field(self) -> tuple[BtfMember | None, int]:
        """The member that the way ends at (None for an array's element), and its type."""
        last = self.steps[-1]
        if not last.name:
            return None, last.type
        member = self.btf.type_at(last.type).members[last.index]
        return member, member.type

    def text(self) -> str:
        """The way as a programmer would write it."""
        row = self.btf.type_at(self.root)
        name = f"{_keyword(row.kind)}{row.name or '(anonymous)'}"
        for step in self.steps[1:]:
            name += f".{step.name}" if step.name else f"[{step.index}]"
        return name


def _keyword(kind: BtfKind) -> str:
    words = {BtfKind.STRUCT: "struct ", BtfKind.UNION: "union "}
    return words.get(kind, "enum " if kind in ENUMS else "")


def essential(name: str) -> str:
    """``name`` without its flavour: ``task_struct___old`` is ``task_struct``."""
    found = _FLAVOUR.fullmatch(name) if "___" in name else None
    return found.group(1) if found else name


def same_kind(one: BtfType, other: BtfType) -> bool:
    """Whether two types are of one kind; enums of 32 and 64 bits are."""
    return one.kind is other.kind or (one.kind in ENUMS and other.kind in ENUMS)


def parse_access(text: str, where: str) -> tuple[int, ...]:
    """The numbers of an access string. Raises InputError."""
    parts = text.split(":")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(parts) > _MAX_STEPS:
        raise InputError(f"access string {text[:80]!r}", where=where)
    return tuple(int(part) for part in parts)


def field_spec(btf: Btf, root: int, numbers: tuple[int, ...], where: str) -> Spec:
    """The field that ``numbers`` lead to: element, then member or element numbers. InputError."""
    steps = [Access(root, numbers[0])]
    type_id, offset = btf.resolve(root).id, 8 * numbers[0] * btf.size_of(root)
    for number in numbers[1:]:
        row = btf.resolve(type_id)
        if row.kind in COMPOSITE:
            if number >= len(row.members):
                raise InputError(f"{row.name} has no member {number}", where=where)
            member = row.members[number]
            offset += member.offset
            if member.name:
                steps.append(Access(row.id, number, member.name))
            type_id = member.type
        elif row.kind is BtfKind.ARRAY:
            type_id = row.type
            if number >= row.count and not _flexible(btf, steps, row):
                raise InputError(f"element {number} of {row.count}", where=where)
            offset += 8 * number * btf.size_of(type_id)
            steps.append(Access(btf.resolve(type_id).id, number))
        else:
            raise InputError(f"{row.kind.name} {row.name} has no members", where=where)
    return Spec(btf, root, tuple(steps), offset)


def _flexible(btf: Btf, steps: list[Access], array: BtfType) -> bool:
    """Whether an array without a length ends its struct, so that any element may be meant."""
    last = steps[-1]
    if array.count or not last.name:
        return False
    return last.index == len(btf.type_at(last.type).members) - 1


def enumerator_spec(btf: Btf, root: int, numbers: tuple[int, ...], where: str) -> Spec:
    """The enumerator with the one number. Raises InputError."""
    row = btf.resolve(root)
    if row.kind not in ENUMS or len(numbers) != 1 or numbers[0] >= len(row.members):
        raise InputError(f"no enumerator {numbers} of {row.kind.name} {row.name}", where=where)
    name = row.members[numbers[0]].name
    return Spec(btf, root, (Access(row.id, numbers[0], name),))


def match_enumerator(local: Spec, btf: Btf, candidate: int) -> Spec | None:
    """The enumerator of the same name in ``candidate``, None if it has none."""
    wanted = essential(local.steps[0].name)
    row = btf.resolve(candidate)
    if row.kind not in ENUMS:
        return None
    for number, member in enumerate(row.members):
        if essential(member.name) == wanted:
            return Spec(btf, candidate, (Access(row.id, number, member.name),))
    return None


def match_field(local: Spec, btf: Btf, candidate: int) -> Spec | None:
    """The same way in ``candidate``, by names and element numbers; None if there is none."""
    first = local.steps[0].index
    steps = [Access(candidate, first)]
    type_id = btf.resolve(candidate).id
    offset = 8 * first * btf.size_of(candidate) if first else 0
    for step in local.steps[1:]:
        row = btf.resolve(type_id)
        if step.name:
            member = local.btf.type_at(step.type).members[step.index]
            found = _member(local.btf, member, btf, row, set())
            if found is None:
                return None
            access, extra = found
            type_id = btf.type_at(access.type).members[access.index].type
            steps.append(access)
            offset += extra
        else:
            if row.kind is not BtfKind.ARRAY:
                return None
            if step.index >= row.count and not _flexible(btf, steps, row):
                return None
            type_id = row.type
            offset += 8 * step.index * btf.size_of(type_id)
            steps.append(Access(btf.resolve(type_id).id, step.index))
    return Spec(btf, candidate, tuple(steps), offset)


def _member(
    local: Btf, wanted: BtfMember, btf: Btf, row: BtfType, seen: set[int]
) -> tuple[Access, int] | None:
    """The member called as ``wanted``, members of nameless members included: (access, bits).

    ``seen`` are types without such a member: each is looked at once, however they nest.
    """
    if row.kind not in COMPOSITE or row.id in seen:
        return None
    seen.add(row.id)
    for number, member in enumerate(row.members):
        if not member.name:
            inner = _member(local, wanted, btf, btf.resolve(member.type), seen)
            if inner is not None:
                return inner[0], inner[1] + member.offset
        elif member.name == wanted.name:
            if not fields_agree(local, wanted.type, btf, member.type):
                return None
            return Access(row.id, number, member.name), member.offset
    return None


def fields_agree(local: Btf, local_id: int, btf: Btf, type_id: int) -> bool:
    """Whether a field of one type may stand for one of the other.

    Structs and unions do whatever they hold, numbers whatever their size; arrays by elements.
    """
    for _ in range(MAX_DEPTH):
        one, other = local.resolve(local_id), btf.resolve(type_id)
        if one.kind in COMPOSITE and other.kind in COMPOSITE:
            return True
        if not same_kind(one, other):
            return False
        if one.kind in _ALWAYS:
            return True
        if one.kind in _NAMED:
            names = essential(one.name), essential(other.name)
            return not all(names) or names[0] == names[1]
        if one.kind is BtfKind.INT:
            return True
        if one.kind is not BtfKind.ARRAY:
            return False
        local_id, type_id = one.type, other.type
    return False
