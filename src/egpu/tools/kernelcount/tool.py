"""kernelcount in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from egpu.report import Report
from egpu.tools.kernelcount.report import KernelCount, build_report
from egpu.tools.running import array, run_of

if TYPE_CHECKING:
    from egpu.maps import MapView
    from egpu.session import Session


MAX_KERNELS = 1024  # rows; one more is for the kernels beyond


class _Counts(NamedTuple):
    """The struct of kernelcount.bpf.c, as BTF gives it."""

    threads: int
    exits: int
    blocks: int


class KernelCountTool:
    """Counts on the device; nothing is collected while the workload runs."""

    def collect(self, session: Session) -> None:
        """Nothing to do."""

    def report(self, session: Session) -> Report:
        """The report, once the workload has ended."""
        counts = array(session.maps, "counts")
        return build_report(run_of(session), read_counts(counts), read_overflow(counts))


def read_overflow(view: MapView) -> int:
    """Threads of the kernels that share the last row."""
    return cast("_Counts", view[MAX_KERNELS]).threads


def read_counts(view: MapView) -> list[KernelCount]:
    """The kernels that were counted, each in its row."""
    rows = []
    for kernel_id, total in view.items():
        if kernel_id < MAX_KERNELS and any(cast("_Counts", total)):
            parts = [cast("_Counts", part) for part in view.per_sm(kernel_id)]
            rows.append(
                KernelCount(
                    kernel_id,
                    threads=tuple(part.threads for part in parts),
                    exits=tuple(part.exits for part in parts),
                    blocks=tuple(part.blocks for part in parts),
                )
            )
    return rows


def new_tool() -> KernelCountTool:
    """A tool for one session."""
    return KernelCountTool()
