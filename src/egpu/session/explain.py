"""What was done to each kernel that was seen, and what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from egpu.agent.protocol import Reason
from egpu.agent.totals import REASON_TEXT
from egpu.agent.twin import DeviceInfo, ProcessStats, Resident, SlotStats
from egpu.session.cache import Way
from egpu.session.occupancy import blocks_per_sm
from egpu.session.twins import TwinReport


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kernel, over all processes and handles.

    ``why_not``: why some or all of its launches were not probed.  Registers are of a thread,
    ``local`` is bytes of its own memory, where spilled registers go; ``shared`` is static; 0 where
    not known.  ``blocks_before`` and ``blocks_after``: blocks of ``block`` threads with
    ``dynamic_shared`` bytes of dynamic shared memory that an SM holds: the driver's answer for the
    last shape of launch that was new.  Of clusters it gives none; then they follow from registers
    and static shared memory by the vendor's rules, for the mean block.  None where not known.
    """

    kernel: str
    way: Way
    seen: int
    probed: int
    why_not: tuple[str, ...]
    registers_before: int = 0
    registers_after: int = 0
    local_before: int = 0
    local_after: int = 0
    shared_before: int = 0
    shared_after: int = 0
    block: int = 0
    dynamic_shared: int | None = None
    blocks_before: int | None = None
    blocks_after: int | None = None
    entry_sites: int = 0
    exit_sites: int = 0
    build_ms: float = 0.0
    cached: bool = False
    image_ms: float = 0.0
    compile_ms: float = 0.0


def explain(
    processes: Iterable[ProcessStats], twins: Iterable[TwinReport], devices: Sequence[DeviceInfo]
) -> tuple[Explanation, ...]:
    """Every kernel that was launched, whether or not a probe asks for it, most launched first."""
    slots: dict[str, list[SlotStats]] = {}
    for process in processes:
        for slot in process.kernels:
            if slot.launches or slot.captured or slot.asked_for:
                slots.setdefault(slot.kernel, []).append(slot)
    reports: dict[str, list[TwinReport]] = {}
    for report in twins:
        reports.setdefault(report.kernel, []).append(report)
    arches = {device.arch for device in devices}
    arch = arches.pop() if len(arches) == 1 else 0
    rows = [_explained(name, rows, reports.get(name, []), arch) for name, rows in slots.items()]
    return tuple(sorted(rows, key=lambda row: (-row.seen, row.kernel)))


def _explained(
    name: str, slots: list[SlotStats], reports: list[TwinReport], arch: int
) -> Explanation:
    states = [slot.twin for slot in slots if slot.twin is not None]
    built = [report for report in reports if not report.reason]
    blocks = sum(slot.blocks for slot in slots)
    row = Explanation(
        kernel=name,
        way=built[-1].way if built and states else Way.NONE,
        seen=sum(slot.launches + slot.captured for slot in slots),
        probed=sum(slot.probed + slot.captured_probed for slot in slots),
        why_not=_why_not(slots, reports),
        block=-(-sum(slot.threads for slot in slots) // blocks) if blocks else 0,
    )
    if not built or not states:
        return row
    state, report = states[-1], built[-1]
    row = replace(
        row,
        registers_before=state.registers,
        registers_after=state.twin_registers,
        local_before=state.local,
        local_after=state.twin_local,
        shared_before=state.shared,
        shared_after=state.twin_shared,
        entry_sites=report.entry_sites,
        exit_sites=report.exit_sites,
        build_ms=report.build_ms,
        image_ms=report.image_ms,
        compile_ms=report.compile_ms,
        cached=report.cached,
    )
    told = next((slot.resident for slot in reversed(slots) if slot.resident is not None), None)
    return _estimated(row, arch) if told is None else _as_told(row, told)


def _as_told(row: Explanation, told: Resident) -> Explanation:
    """With the blocks that the driver said fit."""
    return replace(
        row,
        block=told.threads,
        dynamic_shared=told.shared,
        blocks_before=told.before,
        blocks_after=told.after,
    )


def _estimated(row: Explanation, arch: int) -> Explanation:
    """With the blocks that fit by what an SM of this architecture holds."""
    before = blocks_per_sm(
        arch, threads=row.block, registers=row.registers_before, shared=row.shared_before
    )
    after = blocks_per_sm(
        arch, threads=row.block, registers=row.registers_after, shared=row.shared_after
    )
    return replace(row, blocks_before=before, blocks_after=after)


def _why_not(slots: list[SlotStats], reports: list[TwinReport]) -> tuple[str, ...]:
    """The builder's and the agent's sentences, then what launches were counted under."""
    said = [report.reason for report in reports if report.reason]
    said += [text for slot in slots for text in slot.refusals]
    counted = [reason for slot in slots for reason in slot.not_probed]
    said += [REASON_TEXT[reason] for reason in counted if reason is not Reason.REFUSED or not said]
    return tuple(dict.fromkeys(said))


def without_resources(rows: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """For the simulated device, which has no registers of its own."""
    return tuple(
        replace(
            row,
            registers_before=0,
            registers_after=0,
            local_before=0,
            local_after=0,
            dynamic_shared=None,
            blocks_before=None,
            blocks_after=None,
        )
        for row in rows
    )
