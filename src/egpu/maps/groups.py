"""Groups of records in rings, whose form ``maps/layout.py`` has: reading what is published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.maps.layout import (
    RING_DISCARD,
    RING_FLAG_LAP,
    RING_FLAG_SECOND,
    RING_FLAG_SIZE,
    RING_FLAG_SPAN,
    RING_GROUP_HEADER,
    RING_LAPS,
    RING_PAD_COUNT,
    MapPlace,
    round_up,
)
from egpu.maps.memory import HostArena, fence

RUN_LIMIT = 1 << 19  # bytes taken at once, so that a producer gets its room back early
_FIRST_LOOK = 32  # groups looked at before it is known that there are many


@dataclass(frozen=True, slots=True)
class Run:
    """What lies in a ring up to ``end``: ``count`` records of ``size`` bytes, which ``payload``
    holds at a distance of ``size`` rounded up to 8, and ``discarded`` ones."""

    end: int
    size: int = 0
    count: int = 0
    payload: bytes = b""
    discarded: int = 0


class Groups:
    """The groups in a map's rings.  A ``slot`` names the ring; positions are bytes."""

    def __init__(self, arena: HostArena, place: MapPlace) -> None:
        self._arena = arena
        self._place = place

    def run(self, slot: int, start: int, limit: int) -> Run | None:
        """What is published from ``start`` on, as much as lies together and no further than
        ``limit``; None if nothing is."""
        commit, size, count = self._header(slot, start)
        step = self._step(start, size, count)
        if commit & ~RING_DISCARD != start + 1 or not step:
            return None
        if count == RING_PAD_COUNT:
            return Run(start + step)
        if commit & RING_DISCARD:
            return Run(start + step, discarded=count)
        groups = self._same_groups(slot, start, size | count << 32, step, limit)
        wanted = count * round_up(size, 8)
        payload = self._payload(slot, start, step, groups=groups, wanted=wanted)
        return Run(start + groups * step, size, groups * count, payload)

    def clear(self, slot: int, start: int, end: int) -> None:
        """Forget what was read.

        Cleared room means that a commit word is 0 until its own group is published, whatever the
        records of an earlier lap held.
        """
        for low, high in pieces(start, end, self._place.ring_size):
            base = self._address(slot, low) // 8
            self._arena.words[base : base + (high - low) // 8] = 0

    def published(self, slot: int, start: int, end: int) -> tuple[int, int] | None:
        """Where the next published group below ``end`` begins, and where those that follow it
        without a hole end, as far as it is known; None if there is none."""
        if self._place.ring_device:
            return self._flagged_run(slot, start, end)
        found = self._committed(slot, start, end)
        return None if found is None else (found, found)

    def _header(self, slot: int, position: int) -> tuple[int, int, int]:
        """(commit, size, count) of the group at ``position``; the commit is read first."""
        words, base = self._arena.words, self._address(slot, position) // 8
        commit = int(words[base + 1])
        fence()
        first = int(words[base])
        return commit, first & 0xFFFFFFFF, first >> 32

    def _address(self, slot: int, position: int) -> int:
        size = self._place.ring_size
        return self._place.ring_data + slot * size + position % size

    def _step(self, position: int, size: int, count: int) -> int:
        """Bytes of a group, 0 if its size and count are impossible or not there yet."""
        room = self._place.ring_size - position % self._place.ring_size
        if count == RING_PAD_COUNT:
            return room
        step = round_up(RING_GROUP_HEADER + count * round_up(size, 8), 16)
        return step if size and count and step <= room else 0

    def _same_groups(self, slot: int, start: int, header: int, step: int, end: int) -> int:
        """How many published groups with this word of size and count lie one after the other before
        ``end``, at least 1."""
        ring = self._place.ring_size
        limit = min(ring - start % ring, max(RUN_LIMIT, step), end - start) // step
        base, width = self._address(slot, start) // 8, step // 8
        first = np.uint64(header)
        look = min(limit, _FIRST_LOOK)
        while True:
            rows = self._arena.words[base : base + look * width].reshape(look, width)
            wanted = np.arange(start + 1, start + 1 + look * step, step, dtype=np.uint64)
            # Unpublished room is cleared, so a header that is read half-written matches nothing.
            good = (rows[:, 1] == wanted) & (rows[:, 0] == first)
            if not good.all():
                return max(1, int(np.argmin(good)))
            if look == limit:
                return limit
            look = min(limit, look * 16)

    def _payload(self, slot: int, start: int, step: int, *, groups: int, wanted: int) -> bytes:
        """``wanted`` bytes after the header of each of ``groups`` groups ``step`` bytes apart."""
        fence()
        base, width = self._address(slot, start) // 8, step // 8
        rows = self._arena.words[base : base + groups * width].reshape(groups, width)
        header = RING_GROUP_HEADER // 8
        return rows[:, header : header + wanted // 8].tobytes()  # by words, which is much faster

    def _committed(self, slot: int, start: int, end: int) -> int | None:
        """The next published group behind the one at ``start``, whose size is not known.

        A commit word names its own position, which no earlier lap had, so the next group is the
        next place where it fits.
        """
        for low, high in pieces(start + 16, end, self._place.ring_size):
            base = self._address(slot, low) // 8
            words: NDArray[np.uint64] = self._arena.words[base : base + (high - low) // 8]
            commits = words[1::2] & np.uint64(RING_DISCARD - 1)
            found = np.flatnonzero(commits == np.arange(low + 1, high + 1, 16, dtype=np.uint64))
            if len(found):
                return low + 16 * int(found[0])
        return None

    def _flagged_run(self, slot: int, start: int, end: int) -> tuple[int, int] | None:
        """The same in a ring in device memory, whose flags name the published groups."""
        headers = {at: self._header(slot, at) for at in self._flagged(slot, start, end)}
        ends = {
            at: at + step
            for at, (_, size, count) in headers.items()
            if (step := self._step(at, size, count)) and at + step <= end
        }
        if not ends:
            return None
        first = at = next(iter(ends))
        while at in ends:
            at = ends[at]
        return first, at

    def _flagged(self, slot: int, start: int, end: int) -> list[int]:
        """The positions from ``start`` to before ``end`` of groups with flags of their lap."""
        ring = self._place.ring_size
        count = ring // RING_FLAG_SPAN
        first = self._place.host_flags + slot * count * RING_FLAG_SIZE
        flags = self._arena.bytes[first : first + count * RING_FLAG_SIZE].view(np.uint16)
        spans = np.arange(start // RING_FLAG_SPAN, -(-max(start, end) // RING_FLAG_SPAN))
        found = flags[spans % count]
        spans, found = spans[found != 0], found[found != 0]
        laps = spans * RING_FLAG_SPAN // ring % RING_LAPS
        mine = found >> RING_FLAG_LAP == laps
        second = (found[mine] & RING_FLAG_SECOND) // RING_FLAG_SECOND
        places = spans[mine] * RING_FLAG_SPAN + second * (RING_FLAG_SPAN // 2)
        return [int(place) for place in places if start <= place < end]


def pieces(start: int, end: int, ring: int) -> Iterator[tuple[int, int]]:
    """``start`` to ``end`` cut at the ring's end."""
    while start < end:
        high = min(end, start - start % ring + ring)
        yield start, high
        start = high
