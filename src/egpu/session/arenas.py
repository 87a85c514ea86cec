"""Map memory of every process and device of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from egpu.agent import ArenaLink
from egpu.agent.frames import CallFrame
from egpu.agent.twin import ArenaSetup, DeviceInfo
from egpu.bpf import MapState
from egpu.bpf.maptypes import THREAD_SLOTS, Storage, traits
from egpu.bpf.own_maps import ALLOCATIONS, PRINT_RING, SPECS, own_map
from egpu.bpf.program import BPF_F_WRONLY, MapSpec
from egpu.maps import (
    ArenaLayout,
    BloomView,
    HashView,
    HostArena,
    Kept,
    MapCopy,
    MapHost,
    MapView,
    OuterView,
    PushHost,
    QueueView,
    RingReader,
    Snapshot,
    ThreadView,
    Values,
    initial_chunks,
    plan,
    ring_controls,
    ring_table,
)
from egpu.maps.layout import ARENA_HEADER
from egpu.session.assemble import Assembler
from egpu.session.initial import InitialContents
from egpu.session.operators import Operators
from egpu.session.pushed_maps import PushedMap
from egpu.session.stacks import StackView
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
    """Creates arenas as contexts appear and shows their maps under one name each; thread-safe.

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
        self._names = tuple(names)
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

    def views(self) -> Maps:
        """The maps by name."""
        return Maps(self, self.maps, self._names)

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


def view_of(
    spec: MapSpec, copies: Callable[[], tuple[MapCopy, ...]], host: MapHost, pusher: PushHost
) -> Kept:
    """The view of a map that is no ring."""
    if traits(spec.type).hashed:
        return HashView(spec, copies, host)
    if traits(spec.type).per_thread:
        return ThreadView(spec, copies, host)
    if traits(spec.type).storage is Storage.DEQUE:
        return QueueView(spec, copies, pusher)
    if traits(spec.type).storage is Storage.BLOOM:
        return BloomView(spec, copies, pusher)
    return MapView(spec, copies, host)


class Maps(Mapping[str, "View"]):
    """The maps of a session by name: ``MapView`` for arrays, ``HashView`` for hash maps,
    ``ThreadView`` for per-thread arrays, ``QueueView`` for queues and stacks, ``BloomView`` for
    Bloom filters, ``OuterView`` for maps of maps (its values are the inner maps' views),
    ``StackView`` for stack traces, ``Ring`` for ring buffers."""

    def __init__(self, arenas: Arenas, specs: Sequence[MapSpec], names: Sequence[str]) -> None:
        self._arenas = arenas
        self._specs = dict(zip(names, enumerate(specs), strict=True))
        self._rings: dict[str, Ring] = {}

    def __getitem__(self, name: str) -> View:
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
        if traits(spec.type).storage is Storage.MAPS:
            return OuterView(spec, tuple(self._specs), self)
        if traits(spec.type).storage is Storage.STACKS:
            return StackView(spec, self._arenas.stacks)
        return self._plain(index, spec)

    def whole(self, name: str) -> Kept:
        """A view that shows what a map holds even if only programs may read it (BPF_F_WRONLY), for
        what is kept of pinned maps."""
        index, spec = self._specs[name]
        return self._plain(index, replace(spec, flags=spec.flags & ~BPF_F_WRONLY))

    def _plain(self, index: int, spec: MapSpec) -> Kept:
        host = PushedMap(self._arenas, index)
        return view_of(spec, partial(self._arenas.copies, index), host, host)

    def rings(self) -> tuple[Ring, ...]:
        """Every ring map."""
        found = (self[name] for name in self._specs)
        return tuple(item for item in found if isinstance(item, Ring))

    def print_ring(self) -> Ring | None:
        """The ring of bpf_printk's lines, which is no map of a program; None if nothing prints."""
        found = self[PRINT_RING] if PRINT_RING in self._specs else None
        return found if isinstance(found, Ring) else None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._specs if name not in SPECS)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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


View = Kept | OuterView | StackView | Ring
