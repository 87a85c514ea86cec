"""Reading ring buffers (the protocol of ``maps/layout.py``).

A reader never waits and loses nothing silently: what was produced is received, discarded by the
program, or counted as a hole; what did not fit was counted as dropped by the producer.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpu.bpf.btf import BtfKind
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError
from egpu.maps.layout import (
    READER_STRIDE,
    RING_DISCARD,
    RING_FLAG_LAP,
    RING_FLAG_SECOND,
    RING_FLAG_SIZE,
    RING_FLAG_SPAN,
    RING_GROUP_HEADER,
    RING_LAPS,
    RING_PAD_COUNT,
    RING_READER,
    ArenaLayout,
    MapPlace,
    round_up,
)
from egpu.maps.memory import HostArena, RingControl, fence
from egpu.maps.taking import Taker, native_reader

_RUN_LIMIT = 1 << 19  # bytes taken at once, so that a producer gets its room back early
_NO_LIMIT = (1 << 64) - 1
_FIRST_LOOK = 32  # groups looked at before it is known that there are many


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one SM that lay next to each other: ``count`` records of ``size`` bytes.

    ``payload`` holds them at a distance of ``stride`` bytes (``size`` rounded up to 8).
    """

    sm: int
    size: int
    count: int
    payload: bytes

    @property
    def stride(self) -> int:
        """Bytes from one record to the next."""
        return round_up(self.size, 8)

    def records(self) -> Iterator[bytes]:
        """The records one by one."""
        for index in range(self.count):
            yield self.payload[index * self.stride : index * self.stride + self.size]


@dataclass(frozen=True, slots=True)
class RingCounts:
    """What became of a ring map's records, over all SMs.

    ``produced`` (claimed room) and ``dropped`` (found none) are the device's own counts, None until
    they were handed to :meth:`RingReader.drain_final`.  After it ``received + discarded + holes ==
    produced`` and ``produced + dropped`` is what programs tried to send.  ``holes`` were claimed
    and never published (a kernel that faulted or was killed).
    """

    received: int
    discarded: int
    holes: int
    produced: int | None
    dropped: int | None


class RingReader:
    """The one reader of a ring map, for one thread at a time.

    Iterating gives the records that are there now, SM by SM and in order within an SM, decoded by
    the map's BTF value type (bytes without one).  ``type_name`` names a struct of the object's BTF
    to decode by instead.  Reading frees the room.
    """

    def __init__(
        self,
        arena: HostArena,
        layout: ArenaLayout,
        place: MapPlace,
        spec: MapSpec,
        *,
        type_name: str = "",
    ) -> None:
        self._arena = arena
        self._place = place
        self._spec = spec
        self._type = _record_type(spec, type_name)
        slots = range(layout.sm_slots)
        self._position = array("Q", (int(arena.words[self._reader_word(slot)]) for slot in slots))
        library = native_reader()
        self._taker = None if library is None else Taker(library, place, self._position)
        self._received = 0
        self._discarded = 0
        self._holes = 0
        self._produced: int | None = None
        self._dropped: int | None = None

    @property
    def name(self) -> str:
        """The map's name."""
        return self._spec.name

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    @property
    def place(self) -> MapPlace:
        """Where the map lies, as ``ring_controls`` wants it."""
        return self._place

    @property
    def counts(self) -> RingCounts:
        """What was received so far, and the device's counts once known."""
        return RingCounts(
            self._received, self._discarded, self._holes, self._produced, self._dropped
        )

    def batches(self) -> Iterator[Batch]:
        """The records that are there now, undecoded, many at once where they lie together."""
        yield from self._drain(0, len(self._position))

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches():
            for record in batch.records():
                yield self.decode(record)

    def follow(self, running: Callable[[], bool], *, interval_s: float = 0.02) -> Iterator[Any]:
        """Records as they come, until ``running()`` is false and nothing more is there."""
        while True:
            alive = running()
            yield from self
            if not alive:
                return
            time.sleep(interval_s)

    def decode(self, record: bytes) -> Any:
        """A record as its BTF type says; as bytes without a type, or if it is shorter."""
        btf = self._spec.btf
        if btf is None or not self._type:
            return record
        size = btf.size_of(self._type)
        return btf.decode(self._type, record[:size]) if len(record) >= size else record

    def drain_final(self, controls: Sequence[RingControl]) -> list[Batch]:
        """The rest, after the workload's last snapshot, whose ring counters are ``controls``.

        Claimed room that was never published is skipped and its records are counted as holes.  If
        the snapshot is older than the last records (a killed workload), those are given as well.
        """
        out: list[Batch] = []
        for slot, control in enumerate(controls):
            while True:
                out.extend(self._drain(slot, slot + 1))
                if self._position[slot] >= control.head:
                    break
                if self._place.ring_device:
                    self._skip_unflagged(slot, control.head)
                else:
                    self._skip_torn(slot, control.head)
        known = self._received + self._discarded
        # A snapshot taken before the end counts fewer than were received: a lower bound.
        self._produced = max(sum(control.produced for control in controls), known)
        self._dropped = sum(control.dropped for control in controls)
        self._holes = self._produced - known
        return out

    def _reader_word(self, slot: int, name: str = "position") -> int:
        return (self._place.ring_readers + slot * READER_STRIDE + RING_READER[name][0]) // 8

    def _limit(self, slot: int) -> int:
        """Up to where may be looked."""
        if not self._place.ring_device:
            return _NO_LIMIT
        limit = int(self._arena.words[self._reader_word(slot, "limit")])
        fence()
        return limit

    def _drain(self, slot: int, end: int) -> Iterator[Batch]:
        """The records of rings ``slot`` to before ``end``."""
        while slot < end:
            if self._taker is None:
                yield from self._drain_slot(slot)
                slot += 1
                continue
            taken, payload = self._taker.take(self._arena.words, slot, end)
            slot = taken.slot
            self._received += taken.count
            self._discarded += taken.discarded
            if taken.count:
                yield Batch(slot, taken.size, taken.count, payload)
            elif slot < end:  # a group that is larger than what is taken at once
                yield from self._drain_slot(slot)

    def _drain_slot(self, slot: int) -> Iterator[Batch]:
        while True:
            start, limit = self._position[slot], self._limit(slot)
            if start >= limit:
                return
            commit, size, count = self._header(slot, start)
            step = self._step(start, size, count)
            if commit & ~RING_DISCARD != start + 1 or not step:
                return
            if commit & RING_DISCARD:
                self._advance(slot, start + step)
                self._discarded += 0 if count == RING_PAD_COUNT else count
            elif count == RING_PAD_COUNT:
                self._advance(slot, start + step)
            else:
                groups = self._same_groups(slot, start, size | count << 32, step, limit)
                wanted = count * round_up(size, 8)
                payload = self._payload(slot, start, step, groups=groups, wanted=wanted)
                self._advance(slot, start + groups * step)
                self._received += groups * count
                yield Batch(slot, size, groups * count, payload)

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
        limit = min(ring - start % ring, max(_RUN_LIMIT, step), end - start) // step
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

    def _advance(self, slot: int, position: int) -> None:
        """Clear what was read, then free it.

        Cleared room means that a commit word is 0 until its own group is published, whatever the
        records of an earlier lap held.
        """
        start = self._position[slot]
        base = self._address(slot, start) // 8
        self._arena.words[base : base + (position - start) // 8] = 0
        fence()
        self._arena.words[self._reader_word(slot)] = position
        self._position[slot] = position

    def _skip_torn(self, slot: int, head: int) -> None:
        """Go to the next published group below ``head``, else to ``head``.

        The size of an unpublished group is unknown, but a commit word names its own position, which
        no earlier lap had, so the next group is the next place where it fits.
        """
        start, ring = self._position[slot], self._place.ring_size
        head = min(head, start + ring)
        for low, high in _pieces(start + 16, head, ring):
            base = self._address(slot, low) // 8
            words: NDArray[np.uint64] = self._arena.words[base : base + (high - low) // 8]
            commits = words[1::2] & np.uint64(RING_DISCARD - 1)
            found = np.flatnonzero(commits == np.arange(low + 1, high + 1, 16, dtype=np.uint64))
            if len(found):
                head = low + 16 * int(found[0])
                break
        for _, high in list(_pieces(start, head, ring)):
            self._advance(slot, high)

    def _skip_unflagged(self, slot: int, head: int) -> None:
        """The same in a ring in device memory, whose flags name the published groups that were
        copied: the reader may look at those that follow each other from the next one on."""
        start, ring = self._position[slot], self._place.ring_size
        copied = int(self._arena.words[self._reader_word(slot, "copied")])
        flagged = self._flagged(slot, start, min(copied, head, start + ring))
        headers = {at: self._header(slot, at) for at in flagged}
        steps = {
            at: step
            for at, (_, size, count) in headers.items()
            if (step := self._step(at, size, count))
        }
        at = next((at for at, step in steps.items() if at + step <= copied), head)
        for _, high in list(_pieces(start, at, ring)):
            self._advance(slot, high)
        while at in steps and at + steps[at] <= copied:
            at += steps[at]
        self._arena.words[self._reader_word(slot, "limit")] = at

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


def _pieces(start: int, end: int, ring: int) -> Iterator[tuple[int, int]]:
    """``start`` to ``end`` cut at the ring's end."""
    while start < end:
        high = min(end, start - start % ring + ring)
        yield start, high
        start = high


def _record_type(spec: MapSpec, type_name: str) -> int:
    if not type_name:
        # The values of a PERF_EVENT_ARRAY are Linux's descriptors, not records.
        return 0 if spec.type is MapType.PERF_EVENT_ARRAY else spec.value_type
    if spec.btf is not None:
        for kind in (BtfKind.STRUCT, BtfKind.TYPEDEF):
            found = spec.btf.find(type_name, kind)
            if found is not None:
                return found.id
    raise InputError(
        f"the object's BTF has no struct {type_name}",
        where=f"map {spec.name}",
        hint="compile with -g and use the struct's name as in the C source",
    )
