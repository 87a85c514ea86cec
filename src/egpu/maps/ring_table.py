"""Rings as the agent sees them, and the protocol of those in device memory.

Producers write to device memory as they do to the host arena (``egpu.maps.layout``), but what
publishes a group is the flag of the span that it begins in, which is released with device scope
after everything else of the group.  The agent copies control blocks; then, up to the heads that it
found, flags and after them records, to their places in the host arena.  A group whose flag was
copied is whole in the records, which were read later; without flags that could not be known, as a
copy reads in no order.

The agent walks over the groups that follow each other by their flags alone, which also say how
large most of them are, and lets the reader have them: ``limit`` in RING_READER, up to which the
reader may look.  ``copied`` is where flags and records of the last copy end, or ``limit`` while one
is on its way: what the reader may look at once nobody copies any more.

A flag names its lap, so it need not be cleared to tell it from one of a later lap, unless a span
keeps a flag for so long that laps are numbered alike: no group has to begin there.  So the flags of
the groups of each lap whose number is RING_CLEARED_LAPS - 1 modulo RING_CLEARED_LAPS are cleared,
before its room is given back (by copies of zeros, which need no room on an SM as a kernel does).
Such a lap goes over every span.  What is found in a span in any lap is then 0, or was written at
most RING_CLEARED_LAPS laps ago, which is half of RING_LAPS, and two laps of so few never have one
number.  A ``tail`` is written behind the clearing of the flags up to there, in the same stream of
copies, which every ring has for all of this, and ``limit`` moves only while that is empty: no
producer gets room whose flags are still to be cleared.

Rings of stamped slots (``MapSpec.stamped``) have no flags, and their producers need no fence, which
would wait for all that the kernel has stored before.  Every word of a slot says by itself whether
it is of this lap: the first by the stamp, the others by their lowest bit, which differs between a
lap and the next; no lap leaves out a slot or one of its words.  Words of 8 bytes are written and
copied whole, so a slot is there as soon as all of its words say so.  The agent, which has no time
to look at each, moves ``limit`` to where it has copied; the reader sees whether they are whole and
puts the bits back.  A slot that was copied while it was written is ``missing``, which the agent
sets back to 0 before it copies the slot again, with all behind it: once for each time that the
reader finds it so.  At the end all that is not read is copied again.

A producer takes a slot by one addition to ``head``, which says whether there was room when it came:
the number of slots and the room left are one word.  One that found none looks at ``tail`` and gives
the word the room that came, in one exchange that takes back all that was asked for in vain: whoever
asked before saw no room, so no number that anybody has is given twice or left out.  Positions are
those of groups: bytes, ``stamped_stride`` for each slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from egpu.maps.layout import ArenaLayout, MapPlace


@dataclass(frozen=True, slots=True)
class RingTable:
    """What the agent needs to move reader positions of one ring map to the device.

    Slot ``i``'s position is in the RING_READER at ``readers + i * READER_STRIDE`` in the host
    arena; its place on the device is the u64 ``tail`` of the control block at ``control + i *
    RING_CONTROL_SIZE``.  The rest, as in MapPlace, is for rings in device memory, else 0.
    """

    control: int
    readers: int
    slots: int
    ring_size: int = 0
    host_data: int = 0
    device_data: int = 0
    host_flags: int = 0
    device_flags: int = 0
    host_controls: int = 0
    stamped: int = 0


def ring_table(layout: ArenaLayout) -> tuple[RingTable, ...]:
    """One row per ring map, in map order."""
    return tuple(_ring_row(place, layout.sm_slots) for place in layout.places if place.ring_size)


def _ring_row(place: MapPlace, slots: int) -> RingTable:
    if not place.ring_device:
        return RingTable(place.offset, place.ring_readers, slots)
    return RingTable(
        place.offset,
        place.ring_readers,
        slots,
        ring_size=place.ring_size,
        host_data=place.ring_data,
        device_data=place.ring_device,
        host_flags=place.host_flags,
        device_flags=place.ring_flags,
        host_controls=place.host_controls,
        stamped=place.ring_stamped,
    )
