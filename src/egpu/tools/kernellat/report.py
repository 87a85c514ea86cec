"""The report of kernellat: how long launches and blocks took."""

from __future__ import annotations

from collections.abc import Mapping

from egpu.report import Align, Column, Histogram, Paragraph, Part, Report, Table, Weight, duration
from egpu.tools.kernellat.latencies import Latencies, Summary
from egpu.tools.kernellat.merge import KernelLatency
from egpu.tools.model import KernelLaunches, Run
from egpu.tools.sections import common_data, cost, count, coverage, launch_data, short

SCHEMA = "kernellat/1"
HISTOGRAMS = 4  # kernels that get a histogram in the text; JSON has all


def build_report(run: Run, merged: Mapping[int, KernelLatency], oversized: int) -> Report:
    """The report; ``oversized``: warps in grids of 2**32 blocks or more: they have no records."""
    known = {kernel.kernel_id for kernel in run.kernels}
    kernels = [
        *run.kernels,
        *(KernelLaunches(key, run.name(key), 0, 0) for key in sorted(merged) if key not in known),
    ]
    rows = [(kernel, merged.get(kernel.kernel_id, KernelLatency())) for kernel in kernels]
    rows.sort(key=lambda row: (-_total(row[1]), row[0].name))
    clock = " (simulated clock)" if run.simulated else ""
    parts: list[Part] = [
        _table(f"Launches: first block's entry to last block's exit{clock}", run, rows, "launches"),
        _table(f"Blocks: first warp's entry to last warp's exit{clock}", run, rows, "blocks"),
    ]
    parts += [
        Histogram(f"{short(kernel.name)}: blocks{clock}", "ns", latency.blocks.octaves())
        for kernel, latency in rows[:HISTOGRAMS]
        if len(latency.blocks)
    ]
    parts += [
        Paragraph(text, Weight.WARNING)
        for kernel, latency in rows
        for text in _doubts(kernel, latency)
    ]
    if oversized:
        parts.append(
            Paragraph(
                f"{oversized:,} warps left kernels with 2^32 blocks or more and have no record.",
                Weight.WARNING,
            )
        )
    parts += coverage(run)
    parts += cost(run)
    data = common_data(run) | {
        "clock": "simulated" if run.simulated else "globaltimer",
        "unit": "ns",
        "oversized_warps": oversized,
        "kernels": [_data(kernel, latency) for kernel, latency in rows],
    }
    incomplete = any(_incomplete(kernel, latency) for kernel, latency in rows)
    data["partial"] = bool(data["partial"]) or incomplete or oversized > 0
    return Report(SCHEMA, tuple(parts), data)


def _table(
    title: str, run: Run, rows: list[tuple[KernelLaunches, KernelLatency]], what: str
) -> Table:
    columns = (
        Column("KERNEL", Align.LEFT, may_shorten=True),
        Column("COUNT"),
        Column("P50"),
        Column("P95"),
        Column("P99"),
        Column("MAX"),
    )
    cells = []
    for kernel, latency in rows:
        values = latency.launches if what == "launches" else latency.blocks
        lower = kernel.partial or bool(run.snapshot) or _incomplete(kernel, latency)
        cells.append((kernel.name, count(len(values), lower_bound=lower), *_figures(values)))
    return Table(title, columns, tuple(cells))


def _figures(values: Latencies) -> tuple[str, str, str, str]:
    if not len(values):
        return ("-", "-", "-", "-")
    figures = values.summary()
    return (
        duration(figures.p50),
        duration(figures.p95),
        duration(figures.p99),
        duration(figures.maximum),
    )


def _total(latency: KernelLatency) -> float:
    figures = latency.blocks.summary()
    return figures.mean * figures.count


def _unrecorded(kernel: KernelLaunches, latency: KernelLatency) -> int:
    """Blocks of probed launches of which no record came at all (graphs have no expected number)."""
    if kernel.captured:
        return 0
    found = len(latency.blocks) + latency.incomplete_blocks + latency.missing_blocks
    return max(0, kernel.blocks_probed - found)


def _incomplete(kernel: KernelLaunches, latency: KernelLatency) -> bool:
    return bool(
        latency.incomplete_blocks
        or latency.missing_blocks
        or latency.incomplete_launches
        or latency.unmerged_records
        or _unrecorded(kernel, latency)
    )


def _doubts(kernel: KernelLaunches, latency: KernelLatency) -> list[str]:
    name, doubts = short(kernel.name), []
    missing = latency.missing_blocks + _unrecorded(kernel, latency)
    if latency.incomplete_blocks or missing or latency.incomplete_launches:
        doubts.append(
            f"{name}: left out {latency.incomplete_blocks:,} blocks with some of their "
            f"records and {missing:,} with none; {latency.incomplete_launches:,} launches are "
            "incomplete."
        )
    if latency.unmerged_records:
        doubts.append(
            f"{name}: {latency.unmerged_records:,} records were left out because too many "
            "launches were incomplete at once."
        )
    return doubts


def _data(kernel: KernelLaunches, latency: KernelLatency) -> dict[str, object]:
    return launch_data(kernel) | {
        "partial": kernel.partial or _incomplete(kernel, latency),
        "records": latency.records,
        "blocks_incomplete": latency.incomplete_blocks,
        "blocks_missing": latency.missing_blocks + _unrecorded(kernel, latency),
        "launches_incomplete": latency.incomplete_launches,
        "records_unmerged": latency.unmerged_records,
        "launch": _values(latency.launches),
        "block": _values(latency.blocks),
    }


def _values(values: Latencies) -> dict[str, object]:
    figures: Summary = values.summary()
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
