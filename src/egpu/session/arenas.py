"""Map memory of every process and device of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from egpu.agent import ArenaLink
from egpu.agent.frames import CallFrame
from egpu.agent.twin import ArenaSetup, DeviceInfo
from egpu.bpf import MapState
from egpu.bpf.maptypes import THREAD_SLOTS
from egpu.bpf.own_maps import ALLOCATIONS, own_map
from egpu.bpf.program import MapSpec
from egpu.maps import (
    ArenaLayout,
    HostArena,
    MapCopy,
    RingReader,
    Snapshot,
    Values,
    initial_chunks,
    plan,
    ring_table,
)
from egpu.maps.layout import ARENA_HEADER
from egpu.session.assemble import Assembler
from egpu.session.initial import InitialContents
from egpu.session.operators import Operators
from egpu.session.writer import ArenaWriter

_WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory of one context of one process."""

    pid: int
    device: DeviceInfo
    layout: ArenaLayout
    host: HostArena
    rings: tuple[RingReader, ...]
    writer: ArenaWriter


class Arenas:
    """Creates arenas as contexts appear, each with every map (``names``); thread-safe.

    ``changing`` is held by whoever changes maps from outside of kernels, so that no context appears
    meanwhile; ``additions`` are, by map, what programs of the host added to arrays that kernels add
    to as well: reads show the sums.  ``initial`` is what contexts that appear begin with;
    ``frozen`` are the indices of maps that nothing but programs may change.
    """

    def __init__(
        self,
        maps: Sequence[MapSpec],
        names: Sequence[str],
        additive: frozenset[int],
        thread_slots: int = THREAD_SLOTS,
        *,
        assembler: Assembler | None = None,
        compiled: bool = True,
    ) -> None:
        """``compiled``: programs hold what read-only maps hold, which cannot be set any more.
        ``thread_slots`` may be 0, not known, for arenas that are never opened."""
        self.compiled = compiled
        self.thread_slots = thread_slots
        self.maps = tuple(maps)
        self.initial = InitialContents(self.maps)
        self.operators = Operators(self.maps, assembler)
        self.frozen: set[int] = set()
        self.additions: dict[int, MapState] = {}
        self.changing = threading.RLock()
        self.ended: Callable[[], bool] = bool
        self.refresh: Callable[[], object] = bool
        self.stacks: Callable[[], Mapping[int, tuple[CallFrame, ...]]] = dict
        self.names = tuple(names)
        self._additive = additive
        self._lock = threading.Lock()
        self._arenas: list[Arena] = []

    def open(self, pid: int, device: DeviceInfo, link: ArenaLink) -> ArenaSetup:
        """What the agent of ``pid`` needs to set up the arenas of a context on ``device``."""
        self._keep_ended()
        layout = self.layout(device)
        with self.changing:
            initial = initial_chunks(layout, self.maps, pid)
            number = len(self._arenas)
            initial += self.initial.chunks(layout, self.operators, number=number)
            host = HostArena.create(layout, initial)
            rings = tuple(
                RingReader(host, layout, place, spec)
                for spec, place in zip(self.maps, layout.places, strict=True)
                if place.ring_size
            )
            writer = ArenaWriter(host, layout, link)
            with self._lock:
                self._arenas.append(Arena(pid, device, layout, host, rings, writer))
        table = own_map(self.maps, ALLOCATIONS)
        return ArenaSetup(
            device_size=layout.device_size,
            chunks=tuple(initial),
            host_fd=host.fd,
            host_size=layout.host_size,
            rings=ring_table(layout),
            sm_slots=layout.sm_slots,
            allocations=0 if table is None else layout.places[table].offset,
            device_rings=layout.device_rings,
        )

    def _keep_ended(self) -> None:
        for arena in self.all():
            if arena.host.fd >= 0 and _gone(arena.pid):
                arena.host.keep()

    def layout(self, device: DeviceInfo) -> ArenaLayout:
        """The layout on ``device``; it depends on the number of SMs only."""
        return plan(
            self.maps,
            device.sm_count,
            additive=self._additive,
            thread_slots=self.thread_slots,
        )

    def all(self) -> tuple[Arena, ...]:
        """Every arena so far, in order of appearance."""
        with self._lock:
            return tuple(self._arenas)

    def copies(self, index: int) -> tuple[MapCopy, ...]:
        """Map ``index`` in every context there is now."""
        return tuple(
            MapCopy(
                arena.layout.places[index],
                arena.layout.sm_slots,
                partial(self.snapshot, arena),
                self.maps[index],
            )
            for arena in self.all()
        )

    def cut_short(self) -> int:
        """How many runs of programs lacked turns (``egpu.bpf.budget``), by the last snapshots."""
        offset, size = ARENA_HEADER["cut_short"]
        data = (arena.host.snapshot().data for arena in self.all())
        return sum(int.from_bytes(each[offset : offset + size], "little") for each in data)

    def snapshot(self, arena: Arena) -> Snapshot:
        """The arena's last snapshot; a new one if maps were changed since from outside."""
        if arena.writer.dirty and not arena.writer.gone:
            arena.writer.dirty = False
            self.refresh()
        found = arena.host.snapshot()
        if not self.additions or arena is not self.all()[0]:
            return found
        data = bytearray(found.data)
        for index, state in self.additions.items():
            start = arena.layout.places[index].offset
            there = slice(start, start + len(state.values))
            data[there] = added(data[there], state.values, self.maps[index].value_size)
        return replace(found, data=bytes(data))

    def with_additions(self, index: int, known: dict[bytes, Values]) -> dict[bytes, Values]:
        """What an array holds before there is a context: ``known`` and the host's additions."""
        state = self.additions.get(index)
        if state is None:
            return known
        size, initial = state.spec.value_size, MapState(self.maps[index])
        for entry in range(state.spec.max_entries):
            key = entry.to_bytes(4, "little")
            (base, *_) = known.get(key, (bytes(initial.value(entry)),))
            known[key] = (added(base, state.value(entry), size),)
        return known

    def forget_addition(self, index: int, key: bytes, part: slice = _WHOLE) -> None:
        """A value, or a part of it, was set from outside: what the host had added there is gone."""
        if index in self.additions:
            value = self.additions[index].value(int.from_bytes(key, "little"))[part]
            value[:] = bytes(len(value))

    def close(self) -> None:
        """Unmap everything; views are unusable afterwards."""
        for arena in self.all():
            arena.host.close()


def added(here: bytes | bytearray, there: bytes | bytearray | memoryview, size: int) -> bytes:
    """Two copies of values of ``size`` bytes, added up in words of 8 bytes, or of 4."""
    width = "<u8" if size % 8 == 0 else "<u4"
    total: NDArray[np.integer] = np.frombuffer(here, width) + np.frombuffer(there, width)
    return total.tobytes()


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
