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

from egpu.bpf.btf import BtfKind
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError
from egpu.maps.groups import Groups
from egpu.maps.layout import (
    READER_STRIDE,
    RING_READER,
    ArenaLayout,
    MapPlace,
    round_up,
    stamped_stride,
)
from egpu.maps.memory import HostArena, RingControl, fence
from egpu.maps.stamped import Slots
from egpu.maps.taking import Taker, native_reader

_NO_LIMIT = (1 << 64) - 1


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
        self._form = (Slots if place.ring_stamped else Groups)(arena, place)
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
        the snapshot is older than the last records (a killed workload), those are given as well;
        of room in device memory that was claimed since, as far as it was copied.
        """
        out: list[Batch] = []
        for slot, control in enumerate(controls):
            while True:
                out.extend(self._drain(slot, slot + 1))
                head = max(control.head, self._copied(slot))
                if self._position[slot] >= head:
                    break
                self._skip(slot, head)
        known = self._received + self._discarded
        # A snapshot taken before the end counts fewer than were received: a lower bound.
        self._produced = max(sum(control.produced for control in controls), known)
        if self._place.ring_stamped:  # which are numbered
            stride = stamped_stride(self._place.ring_stamped)
            self._produced = sum(self._position) // stride
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

    def _copied(self, slot: int) -> int:
        """Up to where claimed room of a ring in device memory was copied; 0 of another."""
        if not self._place.ring_device:
            return 0
        return int(self._arena.words[self._reader_word(slot, "copied")])

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
            run = self._form.run(slot, start, limit) if start < limit else None
            if run is None:
                return
            self._advance(slot, run.end)
            self._received += run.count
            self._discarded += run.discarded
            if run.count:
                yield Batch(slot, run.size, run.count, run.payload)

    def _advance(self, slot: int, position: int) -> None:
        """Free what was read."""
        self._form.clear(slot, self._position[slot], position)
        fence()
        self._arena.words[self._reader_word(slot)] = position
        self._position[slot] = position

    def _skip(self, slot: int, head: int) -> None:
        """Go to what is published next below ``head``, else to ``head``.

        In a ring in device memory, of what was copied; the reader may look at it as far as nothing
        is missing."""
        start = self._position[slot]
        end = head = min(head, start + self._place.ring_size)
        if self._place.ring_device:
            end = min(end, self._copied(slot))
        first, last = self._form.published(slot, start, end) or (head, head)
        self._advance(slot, first)
        if self._place.ring_device:
            self._arena.words[self._reader_word(slot, "limit")] = last


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
