"""What is known at one point of one path: registers and stacks of all frames, held references.

Values are immutable; a state is a thin mutable shell around them, copied where paths part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from egpu.verifier.scalar import ANY, S64, Scalar
from egpu.verifier.verified import Region

INVALID, MISC, ZERO, SPILL = range(4)  # kinds of a stack byte
REGISTERS = 11
SLOT = 8  # bytes of a stack slot
_BLANK = bytes(SLOT)
_SPILLED = bytes([SPILL]) * SLOT


_new = tuple.__new__  # Pointer(...) without matching arguments to names


class Pointer(NamedTuple):
    """A register that points into ``region``.

    The address is the region's start plus ``offset`` plus ``variable`` (None is 0).  ``owner`` is
    the map index of MAP_VALUE and MAP_POINTER and the frame of STACK, counted from the main
    function.  ``null`` (not 0) links the pointers that one check decides to be null or not;
    ``reference`` (not 0) is the record that must be submitted; ``size`` are the bytes of RECORD and
    MEMORY.
    """

    region: Region
    owner: int = -1
    offset: int = 0
    variable: Scalar | None = None
    null: int = 0
    reference: int = 0
    size: int = 0

    def at(self, offset: int) -> Pointer:
        """The pointer ``offset`` bytes on."""
        if not offset:
            return self
        region, owner, start, variable, null, reference, size = self
        return _new(Pointer, (region, owner, start + offset, variable, null, reference, size))

    def not_null(self) -> Pointer:
        """The pointer once it is known not to be null."""
        region, owner, start, variable, _, reference, size = self
        return _new(Pointer, (region, owner, start, variable, 0, reference, size))


Value = Scalar | Pointer | None  # None: not initialised, or clobbered by a call


class Spill(NamedTuple):
    """A value that was stored in ``size`` bytes of a slot, beginning at byte ``at``."""

    at: int
    size: int
    value: Scalar | Pointer


class Slot(NamedTuple):
    """Eight bytes of stack: the kind of each, and the values that the SPILL bytes belong to."""

    kinds: bytes = _BLANK
    spills: tuple[Spill, ...] = ()

    def has_pointer(self) -> bool:
        for spill in self.spills:  # noqa: SIM110 - any() takes three times as long
            if type(spill.value) is Pointer:
                return True
        return False

    def written(self, at: int, size: int, kind: int) -> Slot:
        """The slot after ``size`` bytes from ``at`` became ``kind``; cut spills become MISC."""
        kinds, kept = bytearray(self.kinds), []
        for spill in self.spills:
            if spill.at < at + size and at < spill.at + spill.size:
                kinds[spill.at : spill.at + spill.size] = bytes([MISC]) * spill.size
            else:
                kept.append(spill)
        kinds[at : at + size] = bytes([kind]) * size
        return Slot(bytes(kinds), tuple(kept))

    def with_spill(self, spill: Spill) -> Slot:
        if spill.size == SLOT:
            return _new(Slot, (_SPILLED, (spill,)))
        slot = self.written(spill.at, spill.size, SPILL)
        return Slot(slot.kinds, tuple(sorted((*slot.spills, spill), key=lambda s: s.at)))

    def holding(self, link: int, value: Scalar) -> Slot:
        """The slot with ``value`` in the spills of ``link``."""
        spills = tuple(
            Spill(spill.at, spill.size, value)
            if isinstance(spill.value, Scalar) and spill.value.link == link
            else spill
            for spill in self.spills
        )
        return Slot(self.kinds, spills)

    def spill_at(self, at: int) -> Spill | None:
        """The spill that byte ``at`` belongs to."""
        for spill in self.spills:
            if spill.at <= at < spill.at + spill.size:
                return spill
        return None


EMPTY_SLOT = Slot()


class Frame:
    """A running function: registers, stack slots (-1 is the one below r10) and its call site."""

    __slots__ = ("call_site", "registers", "slots", "start", "turns")

    def __init__(
        self, registers: list[Value], slots: dict[int, Slot], call_site: int, start: int = 0
    ) -> None:
        self.registers = registers
        self.slots = slots
        self.call_site = call_site  # pc of the CALL, -1 for the main function
        self.start = start  # pc of the function
        self.turns: dict[int, int] = {}  # how often each loop head was reached; never changed

    @classmethod
    def entered(cls, index: int, arguments: list[Value], call_site: int, start: int = 0) -> Frame:
        """A fresh frame: ``arguments`` in r1 to r5, the stack pointer in r10."""
        registers: list[Value] = [None, *arguments, None, None, None, None]
        registers.append(Pointer(Region.STACK, index))
        return cls(registers, {}, call_site, start)

    def copy(self) -> Frame:
        made: Frame = _new_frame(Frame)
        made.registers = self.registers.copy()
        made.slots = self.slots.copy()
        made.call_site = self.call_site
        made.start = self.start
        made.turns = self.turns
        return made


_new_frame = object.__new__  # Frame(...) without its __init__


class State:
    """Frames (the last one runs), references held, and the counter that numbers links."""

    __slots__ = ("frames", "links", "references")

    def __init__(self, frames: list[Frame], references: tuple[int, ...], links: int) -> None:
        self.frames = frames
        self.references = references
        self.links = links

    def copy(self) -> State:
        return State([frame.copy() for frame in self.frames], self.references, self.links)

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def new_link(self) -> int:
        self.links += 1
        return self.links

    def rewrite(self, change: Callable[[Scalar | Pointer], Scalar | Pointer]) -> None:
        """Apply ``change`` to every register and spilled value of every frame."""
        for frame in self.frames:
            registers = frame.registers
            for index, value in enumerate(registers):
                if value is not None:
                    registers[index] = change(value)
            for number, slot in frame.slots.items():
                if slot.spills:
                    spills = tuple(s._replace(value=change(s.value)) for s in slot.spills)
                    frame.slots[number] = slot._replace(spills=spills)

    def narrow(self, old: Scalar, new: Scalar) -> None:
        """Everything linked to ``old`` holds what ``new`` says."""
        link = old[10]
        if not link:
            return
        for frame in self.frames:
            registers = frame.registers
            for index, value in enumerate(registers):
                if type(value) is Scalar and value[10] == link:
                    registers[index] = new
            for number, slot in frame.slots.items():
                for spill in slot[1]:
                    value = spill[2]
                    if type(value) is Scalar and value[10] == link:
                        frame.slots[number] = slot.holding(link, new)
                        break

    def decide_null(self, null: int, is_null: bool) -> None:
        """The pointers of link ``null`` are null, or are not. A null record needs no release."""
        for frame in self.frames:
            registers = frame.registers
            for index, value in enumerate(registers):
                if type(value) is Pointer and value[4] == null:
                    registers[index] = S64.zero if is_null else value.not_null()
            for number, slot in frame.slots.items():
                for spill in slot[1]:
                    value = spill[2]
                    if type(value) is Pointer and value[4] == null:
                        # A pointer takes the whole slot.
                        known = S64.zero if is_null else value.not_null()
                        frame.slots[number] = Slot(slot.kinds, (spill._replace(value=known),))
        if is_null:
            self.references = tuple(r for r in self.references if r != null)

    def release(self, reference: int) -> None:
        """The record is gone: every copy of its pointer becomes unreadable."""
        self.references = tuple(r for r in self.references if r != reference)
        for frame in self.frames:
            for index, value in enumerate(frame.registers):
                if isinstance(value, Pointer) and value.reference == reference:
                    frame.registers[index] = None
            for number, slot in list(frame.slots.items()):
                for spill in slot.spills:
                    if isinstance(spill.value, Pointer) and spill.value.reference == reference:
                        slot = slot.written(spill.at, spill.size, INVALID)  # noqa: PLW2901
                frame.slots[number] = slot


def write_stack(frame: Frame, offset: int, size: int, value: Scalar | Pointer) -> None:
    """Store at a constant, aligned offset below r10."""
    number, at = offset // SLOT, offset % SLOT
    slot = frame.slots.get(number, EMPTY_SLOT)
    if type(value) is Scalar:
        value = S64.truncate(value, 8 * size) if size < SLOT else value
        if not value[3]:
            frame.slots[number] = slot.written(at, size, ZERO)
            return
    frame.slots[number] = slot.with_spill(_new(Spill, (at, size, value)))


def read_stack(frame: Frame, offset: int, size: int) -> Value:
    """Load from a constant, aligned offset, zero-extended; None if a byte is uninitialised.

    The caller has refused partial reads of spilled pointers.
    """
    slot = frame.slots.get(offset // SLOT, EMPTY_SLOT)
    at = offset % SLOT
    kinds = slot.kinds[at : at + size]
    if INVALID in kinds:
        return None
    spill = slot.spill_at(at)
    if spill is not None and spill.at == at and size <= spill.size:
        value = spill.value
        return value if isinstance(value, Pointer) else S64.truncate(value, 8 * size)
    if kinds == bytes([ZERO]) * size:
        return S64.zero
    return ANY[8 * size]


def stack_slots(frame: Frame, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The slots that bytes ``offset`` to ``offset + size`` touch, as (slot, first byte, bytes)."""
    while size > 0:
        at = offset % SLOT
        count = min(size, SLOT - at)
        yield offset // SLOT, at, count
        offset, size = offset + count, size - count
