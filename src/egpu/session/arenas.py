"""Map memory of every process and device of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from egpu.agent.twin import ArenaSetup, DeviceInfo
from egpu.bpf.maptypes import THREAD_SLOTS, Storage, traits
from egpu.bpf.program import MapSpec
from egpu.maps import (
    ArenaLayout,
    HashView,
    HostArena,
    MapCopy,
    MapView,
    RingReader,
    ThreadView,
    initial_chunks,
    plan,
    ring_controls,
    ring_table,
)


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory of one context of one process."""

    pid: int
    device: DeviceInfo
    layout: ArenaLayout
    host: HostArena
    rings: tuple[RingReader, ...]


class Arenas:
    """Creates arenas as contexts appear and shows their maps under one name each; thread-safe."""

    def __init__(
        self,
        maps: Sequence[MapSpec],
        names: Sequence[str],
        additive: frozenset[int],
        thread_slots: int = THREAD_SLOTS,
    ) -> None:
        self._thread_slots = thread_slots
        self._maps = tuple(maps)
        self._names = tuple(names)
        self._additive = additive
        self._lock = threading.Lock()
        self._arenas: list[Arena] = []

    def open(self, pid: int, device: DeviceInfo) -> ArenaSetup:
        """What the agent of ``pid`` needs to set up the arenas of a context on ``device``."""
        self._keep_ended()
        layout = self.layout(device)
        initial = initial_chunks(layout, self._maps, pid)
        host = HostArena.create(layout, initial)
        rings = tuple(
            RingReader(host, layout, place, spec)
            for spec, place in zip(self._maps, layout.places, strict=True)
            if place.ring_size
        )
        with self._lock:
            self._arenas.append(Arena(pid, device, layout, host, rings))
        return ArenaSetup(
            device_size=layout.device_size,
            chunks=tuple(initial),
            host_fd=host.fd,
            host_size=layout.host_size,
            rings=ring_table(layout),
            sm_slots=layout.sm_slots,
        )

    def _keep_ended(self) -> None:
        for arena in self.all():
            if arena.host.fd >= 0 and _gone(arena.pid):
                arena.host.keep()

    def layout(self, device: DeviceInfo) -> ArenaLayout:
        """The layout on ``device``; it depends on the number of SMs only."""
        return plan(
            self._maps,
            device.sm_count,
            additive=self._additive,
            thread_slots=self._thread_slots,
        )

    def all(self) -> tuple[Arena, ...]:
        """Every arena so far, in order of appearance."""
        with self._lock:
            return tuple(self._arenas)

    def views(self) -> Maps:
        """The maps by name."""
        return Maps(self, self._maps, self._names)

    def close(self) -> None:
        """Unmap everything; views are unusable afterwards."""
        for arena in self.all():
            arena.host.close()


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class Maps(Mapping[str, "MapView | HashView | ThreadView | Ring"]):
    """The maps of a session by name: ``MapView`` for arrays, ``HashView`` for hash maps,
    ``ThreadView`` for per-thread arrays, ``Ring`` for ring buffers."""

    def __init__(self, arenas: Arenas, specs: Sequence[MapSpec], names: Sequence[str]) -> None:
        self._arenas = arenas
        self._specs = dict(zip(names, enumerate(specs), strict=True))
        self._rings: dict[str, Ring] = {}

    def __getitem__(self, name: str) -> MapView | HashView | ThreadView | Ring:
        if name not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise KeyError(f"no map {name!r}; the session's maps are: {known}")
        index, spec = self._specs[name]
        if traits(spec.type).storage is Storage.RING:
            number = sum(
                traits(other.type).storage is Storage.RING
                for place, other in self._specs.values()
                if place < index
            )
            return self._rings.setdefault(name, Ring(self._arenas, number, spec))
        copies = tuple(
            MapCopy(arena.layout.places[index], arena.layout.sm_slots, arena.host.snapshot)
            for arena in self._arenas.all()
        )
        if traits(spec.type).hashed:
            return HashView(spec, copies)
        if traits(spec.type).per_thread:
            return ThreadView(spec, copies)
        return MapView(spec, copies)

    def rings(self) -> tuple[Ring, ...]:
        """Every ring map."""
        found = (self[name] for name in self._specs)
        return tuple(item for item in found if isinstance(item, Ring))

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


@dataclass(frozen=True, slots=True)
class RingTotals:
    """What became of a ring map's records over all processes and devices.

    ``dropped`` and ``produced`` come from each arena's last snapshot.  ``holes`` were claimed and
    never published.
    """

    received: int
    discarded: int
    dropped: int
    produced: int
    holes: int


class Ring:
    """One ring map over every arena.  Iterating gives the records that are there now."""

    def __init__(self, arenas: Arenas, number: int, spec: MapSpec) -> None:
        self._arenas = arenas
        self._number = number
        self._spec = spec

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def readers(self) -> tuple[tuple[Arena, RingReader], ...]:
        """The reader of each arena."""
        return tuple((arena, arena.rings[self._number]) for arena in self._arenas.all())

    def __iter__(self) -> Iterator[object]:
        for _, reader in self.readers():
            yield from reader

    def finish(self) -> Iterator[object]:
        """The last records, after the workload ended; then :meth:`totals` is complete."""
        for arena, reader in self.readers():
            place = arena.layout.places[self._index(arena)]
            controls = ring_controls(arena.host.snapshot(), place, arena.layout.sm_slots)
            for batch in reader.drain_final(controls):
                for record in batch.records():
                    yield reader.decode(record)

    def totals(self) -> RingTotals:
        """The counts so far."""
        rows = []
        for arena, reader in self.readers():
            place = arena.layout.places[self._index(arena)]
            controls = ring_controls(arena.host.snapshot(), place, arena.layout.sm_slots)
            counts = reader.counts
            dropped = sum(control.dropped for control in controls)
            produced = sum(control.produced for control in controls)
            rows.append((counts.received, counts.discarded, dropped, produced, counts.holes))
        return (
            RingTotals(*(sum(column) for column in zip(*rows, strict=True)))
            if rows
            else (RingTotals(0, 0, 0, 0, 0))
        )

    def _index(self, arena: Arena) -> int:
        rings = [i for i, place in enumerate(arena.layout.places) if place.ring_size]
        return rings[self._number]
