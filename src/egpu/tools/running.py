"""From a session to the plain values that reports are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from egpu.bpf.demangle import demangle
from egpu.errors import InternalError
from egpu.maps import MapView
from egpu.tools.model import KernelLaunches, Run, RunCost
from egpu.tools.names import display_names

if TYPE_CHECKING:
    from egpu.agent.twin import KernelStats
    from egpu.session import Maps, Session, SessionCost

UNNAMED = "(kernels past the agent's table)"


def run_of(session: Session) -> Run:
    """What the host side knows of a session whose workload has ended."""
    cost = session.cost()
    launches = cost.launches
    stats = session.kernels()
    devices = Counter(device.name for device in session.devices)
    named = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in devices.items())
    unseen = () if stats else ("No launch of a kernel that the probes match was seen.",)
    return Run(
        device=named or "no device",
        simulated=session.simulated,
        kernels=kernels_of(stats),
        cost=RunCost(
            twins=cost.twins,
            images=cost.images,
            cached=cost.cached,
            twin_ms=cost.build_ms,
            waits=launches.waits,
            wait_ms=launches.wait_ns / 1e6,
            asks=launches.asks,
            ask_ms=launches.ask_ns / 1e6,
            launch_ns=launches.timed_ns / launches.timed if launches.timed else None,
            timed=launches.timed,
            instructions=cost.instructions,
            site_instructions=cost.site_instructions,
            run_ms=cost.run_ms,
            records_dropped=cost.records_dropped,
            records_missing=cost.records_missing,
            runs_cut_short=cost.runs_cut_short,
        ),
        snapshot=session.stale(),
        warnings=(
            *unseen,
            *session.notes,
            *_refusals(stats),
            *_uncovered(session),
            *_ring_loads(session),
            *_cut_short(cost),
        ),
    )


def _cut_short(cost: SessionCost) -> list[str]:
    """Runs that used up their budget: what their loops would have done further is missing."""
    if not cost.runs_cut_short:
        return []
    text = (
        f"{cost.runs_cut_short:,} runs of programs were cut short: their loops wanted more turns "
        "than their budget has (egpu verify --cost names it); write a limit into the loop, do less "
        "in it, or allow more (--cost-limit)"
    )
    return [text]


def kernels_of(stats: Iterable[KernelStats]) -> tuple[KernelLaunches, ...]:
    """The kernels that a probe asked for, most launched first.

    Launches recorded into graphs count as seen, and as probed if the node got the twin.
    """
    stats = tuple(stats)
    names = [demangle(row.name) if row.name else UNNAMED for row in stats]
    rows = [
        KernelLaunches(
            # Kernels without a twin have no id: nothing on the device names them.
            kernel_id=row.kernel_id if row.kernel_id >= 0 else -1 - position,
            name=name,
            short=short,
            seen=row.seen + row.captured,
            probed=row.probed + row.captured_probed,
            not_probed=tuple(sorted(row.not_probed.items())),
            threads_probed=row.threads_probed,
            blocks_probed=row.blocks_probed,
            registers_before=row.registers_before,
            registers_after=row.registers_after,
            captured=row.captured,
        )
        for position, (row, name, short) in enumerate(
            zip(stats, names, display_names(names), strict=True)
        )
    ]
    return tuple(sorted(rows, key=lambda row: (-row.seen, row.name)))


def array(maps: Maps, name: str) -> MapView:
    """A map of the tool's own object."""
    view = maps[name]
    if not isinstance(view, MapView):
        raise InternalError(f"the tool's map {name} is no array")
    return view


def _refusals(stats: Iterable[KernelStats]) -> list[str]:
    return [f"{demangle(row.name)}: {reason}" for row in stats for reason in row.refusals]


def _ring_loads(session: Session) -> list[str]:
    return [f"{demangle(load.kernel)}: {load}" for load in session.ring_loads()]


def _uncovered(session: Session) -> list[str]:
    return [
        f"{demangle(twin.kernel)}: threads that end by {', '.join(twin.uncovered)} are not seen "
        "to leave."
        for twin in session.twins()
        if twin.uncovered
    ]
