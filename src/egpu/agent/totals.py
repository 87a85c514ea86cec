"""Counters of processes, added up by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from egpu.agent.protocol import Reason
from egpu.agent.twin import KernelStats, ProcessStats, SlotStats

# How a report says it, in "n launches: ...".
REASON_TEXT: dict[Reason, str] = {
    Reason.UNMATCHED: "no link asks for it",
    Reason.NOT_READY: "twin not ready in time",
    Reason.REFUSED: "no twin can be made",
    Reason.OCCUPANCY: "twin has fewer resident blocks",
    Reason.RESOURCES: "twin does not fit this launch",
    Reason.PARAMETERS: "unknown form of parameters",
    Reason.GRAPH: "graph node cannot be translated",
    Reason.DETACHED: "detached",
    Reason.ARENA: "no map memory",
    Reason.FORM: "old or multi-device launch call",
    Reason.SAMPLED: "left out by --sample",
}


def by_kernel(processes: Iterable[ProcessStats]) -> tuple[KernelStats, ...]:
    """One row per kernel name that a link asked for, in order of appearance."""
    groups: dict[str, list[SlotStats]] = {}
    for process in processes:
        for row in process.kernels:
            if row.asked_for:
                groups.setdefault(row.kernel, []).append(row)
    return tuple(_add(name, rows) for name, rows in groups.items())


def _add(name: str, rows: Sequence[SlotStats]) -> KernelStats:
    twins = [row.twin for row in rows if row.twin is not None]
    reasons: Counter[str] = Counter()
    for row in rows:
        for reason, number in row.not_probed.items():
            reasons[REASON_TEXT[reason]] += number
    return KernelStats(
        name=name,
        kernel_id=twins[-1].kernel_id if twins else -1,
        seen=sum(row.launches for row in rows),
        probed=sum(row.probed for row in rows),
        not_probed=dict(reasons),
        threads=sum(row.threads for row in rows),
        blocks=sum(row.blocks for row in rows),
        threads_probed=sum(row.probed_threads for row in rows),
        blocks_probed=sum(row.probed_blocks for row in rows),
        captured=sum(row.captured for row in rows),
        captured_probed=sum(row.captured_probed for row in rows),
        failed=sum(row.failed for row in rows),
        registers_before=max((twin.registers for twin in twins), default=0),
        registers_after=max((twin.twin_registers for twin in twins), default=0),
        refusals=tuple(dict.fromkeys(text for row in rows for text in row.refusals)),
    )
