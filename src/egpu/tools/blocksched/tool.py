"""blocksched in a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from egpu.errors import InternalError
from egpu.maps import ring_controls
from egpu.report import Report
from egpu.timeline import Timeline
from egpu.tools.blocksched.blocks import BlockStore, LaunchBlocks
from egpu.tools.blocksched.picture import timeline_of
from egpu.tools.blocksched.report import Records, build_report
from egpu.tools.blocksched.schedule import schedule_of
from egpu.tools.running import array, run_of

if TYPE_CHECKING:
    from egpu.session import Arena, Ring, Session


class BlockScheduleTool:
    """Takes in a record for each block while the workload runs, and puts them together after it."""

    def __init__(self) -> None:
        self._store = BlockStore()
        self._launches: tuple[LaunchBlocks, ...] = ()

    def collect(self, session: Session) -> None:
        """Take in the records that are there now."""
        for place, (_, reader) in enumerate(_ring(session).readers()):
            for batch in reader.batches():
                self._store.add(place, batch.payload)

    def report(self, session: Session) -> Report:
        """The report, once the workload has ended."""
        ring = _ring(session)
        for place, (arena, reader) in enumerate(ring.readers()):
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            for batch in reader.drain_final(controls):
                self._store.add(place, batch.payload)
        self._launches = tuple(self._store.launches())
        totals = ring.totals()
        crowded, oversized = cast("tuple[int, int]", array(session.maps, "lost")[0])
        records = Records(
            received=totals.received,
            dropped=totals.dropped,
            missing=totals.holes,
            left_out=self._store.left_out,
            crowded=crowded,
            oversized=oversized,
        )
        schedules = [schedule_of(each) for each in self._launches]
        counts = {device.sm_count for device in session.devices}
        sms = counts.pop() if len(counts) == 1 else 0
        return build_report(run_of(session), schedules, self._store.by_kernel(), records, sms=sms)

    def timeline(self, session: Session) -> Timeline:
        """Every block that is kept; after :meth:`report`."""
        names = dict(_contexts(_ring(session)))
        return timeline_of(run_of(session), self._launches, names)


def _contexts(ring: Ring) -> Iterator[tuple[int, str]]:
    arenas: list[Arena] = [arena for arena, _ in ring.readers()]
    for place, arena in enumerate(arenas):
        yield place, f"{arena.device.name} {arena.device.ordinal}, process {arena.pid}"


def _ring(session: Session) -> Ring:
    ring = session.maps["blocks"]
    if not hasattr(ring, "readers"):
        raise InternalError("the tool's map blocks is no ring buffer")
    return cast("Ring", ring)


def new_tool() -> BlockScheduleTool:
    """A tool for one session."""
    return BlockScheduleTool()
