"""kernellat in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from egpu.report import Report
from egpu.tools.constants import SECTION, constant
from egpu.tools.kernellat.report import build_report
from egpu.tools.kernellat.times import Losses, read_times
from egpu.tools.running import array, run_of

if TYPE_CHECKING:
    from egpu.session import Session


class KernelLatencyTool:
    """Measured and added up on the device; nothing is collected while the workload runs."""

    def collect(self, session: Session) -> None:
        """Nothing to do."""

    def report(self, session: Session) -> Report:
        """The report, once the workload has ended."""
        maps = session.maps
        times = read_times(array(maps, "times").raw(), array(maps, "meetings").raw())
        losses = Losses(*cast("tuple[int, ...]", array(maps, "lost")[0]))
        every = constant(array(maps, SECTION).spec, "every")
        return build_report(run_of(session), times, losses, every=every)


def new_tool() -> KernelLatencyTool:
    """A tool for one session."""
    return KernelLatencyTool()
