"""When one state makes exploring another unnecessary.

Only what may still be read is looked at, and numbers only where they can matter: ``live`` has, per
frame, bit sets of registers and of halves of stack slots (bits 2i and 2i + 1 are slot -1 - i).  A
number that matters counts as precise: an old state covers a new one only if its ranges hold the new
ones.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.verifier.scalar import Scalar, covers
from egpu.verifier.state import (
    EMPTY_SLOT,
    INVALID,
    MISC,
    SPILL,
    ZERO,
    Frame,
    Pointer,
    Slot,
    State,
    Value,
)

HALF = 4  # bytes of half a slot: keys of maps are as long


class Live(NamedTuple):
    """What of one frame may still be read, and of which registers and slots a number matters."""

    registers: int
    slots: int
    numbers: int
    slot_numbers: int


# The registers of a bit set.
_MEMBERS = tuple(tuple(i for i in range(11) if bits >> i & 1) for bits in range(1 << 11))


class _Links:
    """A one-to-one correspondence of the link numbers of two states."""

    __slots__ = ("backward", "forward", "fresh")

    def __init__(self) -> None:
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        self.fresh = _FRESH

    def match(self, old: int, new: int) -> bool:
        return (
            self.forward.setdefault(old, new) == new and self.backward.setdefault(new, old) == old
        )

    def of_unlinked(self, old: int, new: Scalar) -> int:
        """A number for a value without a link, where ``old`` is linked: whatever else has that
        link must hold the same number, which only constants show."""
        if not new[1]:
            return -1 - (old << 64 | new[0])
        self.fresh -= 1
        return self.fresh


_FRESH = -1 << 256  # below every number of a constant


def _scalar_covers(old: Scalar, new: Scalar, links: _Links) -> bool:
    if old.link and not links.match(old.link, new.link or links.of_unlinked(old.link, new)):
        return False
    return covers(old, new)


def _value_covers(old: Value, new: Value, links: _Links, matters: bool) -> bool:
    if old is None:
        return True  # the old way never read it
    if type(old) is Scalar:
        return type(new) is Scalar and (not matters or _scalar_covers(old, new, links))
    assert type(old) is Pointer, "what is no number is a pointer"
    if type(new) is not Pointer or (
        old.region is not new.region
        or old.owner != new.owner
        or old.offset != new.offset
        or old.size != new.size
        or bool(old.null) != bool(new.null)
        or bool(old.reference) != bool(new.reference)
    ):
        return False
    if (old.null and not links.match(old.null, new.null)) or (
        old.reference and not links.match(old.reference, new.reference)
    ):
        return False
    if old.variable is None or new.variable is None:
        return old.variable is new.variable
    return covers(old.variable, new.variable)


def _byte_covers(old: Slot, new: Slot, at: int, matters: bool) -> bool:
    """Whether a byte that is no pointer in ``old`` allows what ``new`` has there."""
    kind, other = old.kinds[at], new.kinds[at]
    if kind == INVALID:
        return True
    if kind == ZERO and matters:
        return other == ZERO
    if other == SPILL:
        spill = new.spill_at(at)
        return spill is not None and isinstance(spill.value, Scalar)
    return other in (MISC, ZERO)


def _slot_covers(old: Slot, new: Slot, links: _Links, matters: bool) -> bool:
    followed = SPILL if matters else -1
    for spill in old.spills:
        if not matters and isinstance(spill.value, Scalar):
            continue
        match = new.spill_at(spill.at)
        if match is None or (match.at, match.size) != (spill.at, spill.size):
            return False
        if not _value_covers(spill.value, match.value, links, matters):
            return False
        followed = SPILL  # a pointer takes the whole slot
    if old.kinds == new.kinds:  # the most common case of what follows
        return followed == SPILL or not new.has_pointer()
    return all(
        old.kinds[at] == followed or _byte_covers(old, new, at, matters)
        for at in range(len(old.kinds))
    )


def _frame_covers(old: Frame, new: Frame, live: Live, links: _Links) -> bool:
    """As far as values are not the same objects, whose links are for ``_same_links``."""
    if old.call_site != new.call_site:
        return False
    registers, slots, numbers, slot_numbers = live
    mine, theirs = old.registers, new.registers
    for index in _MEMBERS[registers]:
        value, other = mine[index], theirs[index]
        if value is not other and not _value_covers(
            value, other, links, bool(numbers >> index & 1)
        ):
            return False
    if slots:
        others = new.slots
        for number, slot in old.slots.items():
            same = others.get(number, EMPTY_SLOT)
            if slot is not same:
                place = 2 * (-1 - number)
                if slots >> place & 3 and not _slot_covers(
                    slot, same, links, bool(slot_numbers >> place & 3)
                ):
                    return False
    return True


def _same_links(old: Frame, new: Frame, live: Live, links: _Links) -> bool:
    """Whether the links of what is the same in both states correspond to themselves."""
    registers, slots, numbers, slot_numbers = live
    for index in _MEMBERS[registers]:
        value = old.registers[index]
        if value is new.registers[index] and not _corresponds(value, links, numbers >> index & 1):
            return False
    for number, slot in old.slots.items():
        place = 2 * (-1 - number)
        if slots >> place & 3 and slot is new.slots.get(number):
            matters = slot_numbers >> place & 3
            if not all(_corresponds(spill.value, links, matters) for spill in slot.spills):
                return False
    return True


def _corresponds(value: Value, links: _Links, matters: int) -> bool:
    if value is None:
        return True
    if type(value) is Scalar:
        return not matters or not value[10] or links.match(value[10], value[10])
    null, reference = value[4], value[5]
    return (not null or links.match(null, null)) and (
        not reference or links.match(reference, reference)
    )


def state_covers(old: State, new: State, live: list[Live]) -> bool:
    """Whether everything that ``new`` can do from here, ``old`` can do too."""
    if len(old.frames) != len(new.frames) or len(old.references) != len(new.references):
        return False
    links = _Links()
    for mine, theirs, alive in zip(old.frames, new.frames, live, strict=True):
        if not _frame_covers(mine, theirs, alive, links):
            return False
    if not links.forward and old.references == new.references:
        return True  # whatever is linked is the same in both
    held = zip(sorted(old.references), sorted(new.references), strict=True)
    return all(links.match(mine, theirs) for mine, theirs in held) and all(
        _same_links(mine, theirs, alive, links)
        for mine, theirs, alive in zip(old.frames, new.frames, live, strict=True)
    )


def telling(a: State, b: State, live: Live) -> int | None:
    """A place of the running frame with a number that matters, constant in both states and not the
    same, so that neither covers the other: a register, or a stack slot by its negative number."""
    mine, theirs = a.frames[-1], b.frames[-1]
    for index in _MEMBERS[live.registers & live.numbers]:
        if _constants_differ(mine.registers[index], theirs.registers[index]):
            return index
    followed = live.slots & live.slot_numbers
    if followed:
        for number in mine.slots:
            if followed >> 2 * (-1 - number) & 3 and told_apart(a, b, number):
                return number
    return None


def told_apart(a: State, b: State, place: int) -> bool:
    """Whether two states are what ``telling`` says, at a place that was telling before."""
    mine, theirs = a.frames[-1], b.frames[-1]
    if place >= 0:
        return _constants_differ(mine.registers[place], theirs.registers[place])
    one, two = mine.slots.get(place, EMPTY_SLOT), theirs.slots.get(place, EMPTY_SLOT)
    if len(one.spills) != 1 or len(two.spills) != 1 or one.kinds != two.kinds:
        return False
    return _constants_differ(one.spills[0].value, two.spills[0].value)


def _constants_differ(a: Value, b: Value) -> bool:
    return type(a) is Scalar and type(b) is Scalar and not (a[1] or b[1]) and a[0] != b[0]


def may_equal(a: State, b: State, live: Live) -> bool:
    """Whether the keys of two states at one place may be equal: tells most that differ apart by
    the numbers of the running frame, at a small part of what their keys cost."""
    if len(a.frames) != len(b.frames):
        return False
    mine, theirs = a.frames[-1], b.frames[-1]
    for index in _MEMBERS[live.registers & live.numbers]:
        if _differ(mine.registers[index], theirs.registers[index]):
            return False
    followed = live.slots & live.slot_numbers
    if followed:
        for number, slot in mine.slots.items():
            if followed >> 2 * (-1 - number) & 3:
                other = theirs.slots.get(number)
                if other is None or slot.kinds != other.kinds:
                    return False
                for one, two in zip(slot.spills, other.spills, strict=False):
                    if _differ(one.value, two.value):
                        return False
    return True


def _differ(a: Value, b: Value) -> bool:
    """Whether two values are certainly different, links aside."""
    if a is b:
        return False
    kind = type(a)
    return kind is not type(b) or (kind is Scalar and a[:10] != b[:10])  # type: ignore[index]


_NUMBER = "number"  # any number, in a key


def state_key(state: State, live: list[Live]) -> tuple[object, ...]:
    """A hashable form of the live part: equal keys are equal states, however links are numbered."""
    names: dict[int, int] = {0: 0}
    key: list[object] = []
    for frame, (alive, slots, numbers, slot_numbers) in zip(state.frames, live, strict=True):
        key.append(frame.call_site)
        registers = frame.registers
        for index in _MEMBERS[alive]:
            value = registers[index]
            if type(value) is Scalar and not numbers >> index & 1:
                key.append(_NUMBER)
            else:
                key.append(_named(value, names))
        if slots and frame.slots:
            for number in sorted(frame.slots, reverse=True):
                if slots >> 2 * (-1 - number) & 3:
                    slot = frame.slots[number]
                    key.append(number)
                    if slot_numbers >> 2 * (-1 - number) & 3:
                        key.append(slot.kinds)
                        key.extend((s.at, s.size, _named(s.value, names)) for s in slot.spills)
                    else:
                        key.append(_initialised(slot))
                        key.extend(
                            (s.at, s.size, _named(s.value, names))
                            for s in slot.spills
                            if type(s.value) is Pointer
                        )
    if state.references:
        key.append(tuple(names.setdefault(r, len(names)) for r in state.references))
    return tuple(key)


def _named(value: Value, names: dict[int, int]) -> object:
    """A value with its links replaced by their order of appearance."""
    if type(value) is Scalar:
        link = value[10]
        return value.linked(names.setdefault(link, len(names))) if link else value
    if type(value) is not Pointer or not (value.null or value.reference):
        return value
    return value._replace(
        null=names.setdefault(value.null, len(names)),
        reference=names.setdefault(value.reference, len(names)),
    )


def _initialised(slot: Slot) -> bytes:
    """Which bytes of a slot are initialised."""
    return bytes(kind and 1 for kind in slot.kinds)
