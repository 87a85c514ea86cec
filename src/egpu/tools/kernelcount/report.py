"""The report of kernelcount: launches, threads and blocks by kernel and SM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egpu.report import KERNEL, Column, Paragraph, Part, Report, Table, Weight
from egpu.tools.model import KernelLaunches, Run
from egpu.tools.sections import common_data, cost, count, coverage, launch_data

SCHEMA = "kernelcount/1"


@dataclass(frozen=True, slots=True)
class KernelCount:
    """What the probes counted of one kernel; a tuple has one number per SM slot."""

    kernel_id: int
    threads: tuple[int, ...] = ()
    exits: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()


def build_report(run: Run, counts: Sequence[KernelCount], overflow: int) -> Report:
    """The report; ``overflow`` is the number of threads whose kernel had no room in the map."""
    by_id = {row.kernel_id: row for row in counts}
    kernels = [*run.kernels, *_unnamed(run, counts)]
    kernels.sort(key=lambda kernel: (-sum(_row(by_id, kernel).threads), kernel.name))
    parts: list[Part] = [_table(run, kernels, by_id)]
    parts += [
        Paragraph(text, Weight.WARNING)
        for kernel in kernels
        for text in _doubts(kernel, _row(by_id, kernel))
    ]
    if overflow:
        parts.append(
            Paragraph(
                f"{overflow:,} threads ran in kernels beyond the first 1,024 and are not above.",
                Weight.WARNING,
            )
        )
    parts += coverage(run)
    parts += cost(run)
    data = common_data(run) | {
        "overflow_threads": overflow,
        "kernels": [_data(kernel, _row(by_id, kernel)) for kernel in kernels],
    }
    data["partial"] = bool(data["partial"]) or overflow > 0
    return Report(SCHEMA, tuple(parts), data)


def _table(run: Run, kernels: list[KernelLaunches], by_id: dict[int, KernelCount]) -> Table:
    columns = (
        KERNEL,
        Column("SEEN"),
        Column("PROBED"),
        Column("THREADS"),
        Column("BLOCKS"),
        Column("BLOCKS/SM"),
    )
    rows = []
    for kernel in kernels:
        row = _row(by_id, kernel)
        lower = kernel.partial or bool(run.snapshot)
        rows.append(
            (
                kernel.label,
                f"{kernel.seen:,}",
                f"{kernel.probed:,}",
                count(sum(row.threads), lower_bound=lower),
                count(sum(row.blocks), lower_bound=lower),
                _spread(row.blocks),
            )
        )
    return Table("Kernels", columns, tuple(rows))


def _spread(blocks: tuple[int, ...]) -> str:
    """Blocks per SM in a few characters: "62-65 on 132"."""
    used = [number for number in blocks if number]
    if not used:
        return "-"
    low, high = min(used), max(used)
    amount = f"{low:,}" if low == high else f"{low:,}-{high:,}"
    return f"{amount} on {len(used)}"


def _doubts(kernel: KernelLaunches, row: KernelCount) -> list[str]:
    """Sentences about counts that do not fit each other."""
    threads, blocks, exits = sum(row.threads), sum(row.blocks), sum(row.exits)
    name, doubts = kernel.label, []
    expected = (kernel.threads_probed, kernel.blocks_probed)
    if kernel.probed and not kernel.captured and (threads, blocks) != expected:
        doubts.append(
            f"{name}: counted {threads:,} threads in {blocks:,} blocks, but its probed "
            f"launches have {expected[0]:,} in {expected[1]:,}."
        )
    if kernel.captured:
        doubts.append(
            f"{name}: {kernel.captured:,} of its launches were recorded into graphs; every "
            "replay is counted above, as one launch."
        )
    if exits != threads:
        doubts.append(f"{name}: {threads:,} threads entered and {exits:,} were seen to leave.")
    return doubts


def _data(kernel: KernelLaunches, row: KernelCount) -> dict[str, object]:
    return launch_data(kernel) | {
        "threads": sum(row.threads),
        "exits": sum(row.exits),
        "blocks": sum(row.blocks),
        "threads_expected": None if kernel.captured else kernel.threads_probed,
        "blocks_expected": None if kernel.captured else kernel.blocks_probed,
        "threads_per_sm": list(row.threads),
        "blocks_per_sm": list(row.blocks),
    }


def _row(by_id: dict[int, KernelCount], kernel: KernelLaunches) -> KernelCount:
    return by_id.get(kernel.kernel_id, KernelCount(kernel.kernel_id))


def _unnamed(run: Run, counts: Sequence[KernelCount]) -> list[KernelLaunches]:
    """Kernels that were counted and that the host did not report: shown, never dropped."""
    known = {kernel.kernel_id for kernel in run.kernels}
    return [
        KernelLaunches(row.kernel_id, run.name(row.kernel_id), 0, 0)
        for row in counts
        if row.kernel_id not in known and any(row.threads)
    ]
