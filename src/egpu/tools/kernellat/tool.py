"""kernellat in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from egpu.errors import InternalError
from egpu.maps import Batch, ring_controls
from egpu.report import Report
from egpu.tools.kernellat.merge import RECORD, Merger, Records
from egpu.tools.kernellat.report import build_report
from egpu.tools.running import array, ring, run_of

if TYPE_CHECKING:
    from egpu.session import Session


class KernelLatencyTool:
    """Merges records as they come, so that the rings do not fill."""

    def __init__(self) -> None:
        self._merger = Merger()

    def collect(self, session: Session) -> None:
        """Take in the records that are there now."""
        for source, (_, reader) in enumerate(ring(session.maps, "events").readers()):
            for batch in reader.batches():
                self._merger.add(records_of(batch), source=source)

    def report(self, session: Session) -> Report:
        """The report, once the workload has ended."""
        for source, (arena, reader) in enumerate(ring(session.maps, "events").readers()):
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            for batch in reader.drain_final(controls):
                self._merger.add(records_of(batch), source=source)
        run = run_of(session)
        lossy = bool(run.cost.records_dropped or run.cost.records_missing or run.snapshot)
        oversized = cast("int", array(session.maps, "oversized")[0])
        return build_report(run, self._merger.finish(lossy=lossy), oversized)


def records_of(batch: Batch) -> Records:
    """A batch of the tool's ring as an array."""
    if batch.size != RECORD.itemsize:
        raise InternalError(f"kernellat got a record of {batch.size} bytes")
    return np.frombuffer(batch.payload, RECORD)


def new_tool() -> KernelLatencyTool:
    """A tool for one session."""
    return KernelLatencyTool()
