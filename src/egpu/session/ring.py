"""Ring maps over every context of a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from egpu.bpf.program import MapSpec
from egpu.maps import RingReader, ring_controls
from egpu.session.arenas import Arena, Arenas


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
