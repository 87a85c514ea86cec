"""The report of kernellat: how long launches and blocks took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from egpu.report import (
    KERNEL,
    Column,
    Histogram,
    Paragraph,
    Part,
    Report,
    Table,
    Weight,
    duration,
)
from egpu.tools.kernellat.times import MAX_KERNELS, Durations, KernelTimes, Losses
from egpu.tools.model import KernelLaunches, Run
from egpu.tools.sections import common_data, cost, count, coverage, launch_data

SCHEMA = "kernellat/1"
HISTOGRAMS = 4  # kernels that get a histogram in the text; JSON has all


@dataclass(frozen=True, slots=True)
class _Row:
    """One kernel: what the host saw, what was measured, and what is missing of it."""

    kernel: KernelLaunches
    times: KernelTimes
    blocks_incomplete: int
    launches_incomplete: int

    @property
    def incomplete(self) -> bool:
        return bool(self.blocks_incomplete or self.launches_incomplete)


def build_report(
    run: Run, times: Mapping[int, KernelTimes], losses: Losses, *, every: int = 1
) -> Report:
    """The report; ``every``: 1 of so many blocks was measured, launches only if it is 1."""
    rows = [_row(kernel, times, every) for kernel in [*run.kernels, *_unnamed(run, times)]]
    rows.sort(key=lambda row: (-row.times.blocks.total, row.kernel.name))
    clock = " (simulated clock)" if run.simulated else ""
    share = "" if every == 1 else f", 1 of {every:,} blocks"
    parts: list[Part] = []
    if every == 1:
        title = f"Launches: first block's entry to last block's exit{clock}"
        parts.append(_table(title, run, rows, launches=True))
    title = f"Blocks: first warp's entry to last warp's exit{share}{clock}"
    parts.append(_table(title, run, rows, launches=False))
    parts += [
        Histogram(f"{row.kernel.label}: blocks{clock}", "ns", row.times.blocks.octaves())
        for row in rows[:HISTOGRAMS]
        if len(row.times.blocks)
    ]
    parts += [
        Paragraph(text, Weight.WARNING) for text in [*_doubts(rows), *_lost(losses), *_share(every)]
    ]
    parts += coverage(run)
    parts += cost(run)
    data = common_data(run) | {
        "clock": "simulated" if run.simulated else "globaltimer",
        "unit": "ns",
        "every": every,
        "lost": asdict(losses),
        "kernels": [_data(row, every) for row in rows],
    }
    missing = any(row.incomplete for row in rows) or any(asdict(losses).values())
    data["partial"] = bool(data["partial"]) or missing
    return Report(SCHEMA, tuple(parts), data)


def _row(kernel: KernelLaunches, times: Mapping[int, KernelTimes], every: int) -> _Row:
    """How many blocks and launches there must be is known, unless graphs or samples are in it."""
    measured = times.get(kernel.kernel_id, KernelTimes())
    if kernel.captured or every != 1:
        return _Row(kernel, measured, measured.open_blocks, measured.open_launches)
    return _Row(
        kernel,
        measured,
        max(kernel.blocks_probed - len(measured.blocks), measured.open_blocks),
        max(kernel.probed - len(measured.launches), measured.open_launches),
    )


def _unnamed(run: Run, times: Mapping[int, KernelTimes]) -> list[KernelLaunches]:
    """Kernels that were measured and that the host did not report: shown, never dropped."""
    known = {kernel.kernel_id for kernel in run.kernels}
    return [KernelLaunches(key, run.name(key), 0, 0) for key in sorted(times) if key not in known]


def _table(title: str, run: Run, rows: list[_Row], *, launches: bool) -> Table:
    columns = (
        KERNEL,
        Column("COUNT"),
        Column("P50"),
        Column("P95"),
        Column("P99"),
        Column("MAX"),
    )
    cells = []
    for row in rows:
        values = row.times.launches if launches else row.times.blocks
        missing = row.launches_incomplete if launches else row.blocks_incomplete
        lower = row.kernel.partial or bool(run.snapshot) or bool(missing)
        cells.append((row.kernel.label, count(len(values), lower_bound=lower), *_figures(values)))
    return Table(title, columns, tuple(cells))


def _figures(values: Durations) -> tuple[str, str, str, str]:
    if not len(values):
        return ("-", "-", "-", "-")
    figures = values.summary()
    return (
        duration(figures.p50),
        duration(figures.p95),
        duration(figures.p99),
        duration(figures.maximum),
    )


def _doubts(rows: list[_Row]) -> list[str]:
    return [
        f"{row.kernel.label}: {row.blocks_incomplete:,} blocks and "
        f"{row.launches_incomplete:,} launches did not become complete and are left out."
        for row in rows
        if row.incomplete
    ]


def _lost(losses: Losses) -> list[str]:
    sentences = (
        (losses.crowded, "groups of lanes found no room to meet their block, which is left out"),
        (losses.unsettled, "durations are counted, but may be missing in MAX and the minimum"),
        (losses.oversized, "groups of lanes left grids of 2^32 blocks or more: not measured"),
        (losses.overflow, f"groups of lanes left kernels beyond the first {MAX_KERNELS}"),
    )
    return [f"{number:,} {text}." for number, text in sentences if number]


def _share(every: int) -> list[str]:
    if every == 1:
        return []
    return [f"1 of {every:,} blocks was measured: launches are not, they need all of theirs."]


def _data(row: _Row, every: int) -> dict[str, object]:
    return launch_data(row.kernel) | {
        "partial": row.kernel.partial or row.incomplete,
        "blocks_incomplete": row.blocks_incomplete,
        "launches_incomplete": row.launches_incomplete,
        "launch": _values(row.times.launches) if every == 1 else None,
        "block": _values(row.times.blocks),
    }


def _values(values: Durations) -> dict[str, object]:
    figures = values.summary()
    return {
        "count": figures.count,
        "min": figures.minimum,
        "mean": round(figures.mean, 3),
        "p50": figures.p50,
        "p95": figures.p95,
        "p99": figures.p99,
        "max": figures.maximum,
        "log2": [list(bucket) for bucket in values.octaves()],
    }
