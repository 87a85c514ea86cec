"""The report of blocksched: how blocks filled the device, launch by launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from egpu.report import KERNEL, Align, Column, Paragraph, Part, Report, Table, Weight, duration
from egpu.tools.blocksched.schedule import Schedule
from egpu.tools.model import KernelLaunches, Run
from egpu.tools.sections import common_data, cost, count, coverage, launch_data, share

SCHEMA = "blocksched/1"
LONGEST = 8  # kernels whose longest launch has a line in the text
PICTURES = 4  # of these, shown over time
IN_JSON = 10_000  # launches in JSON, the longest
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Records:
    """What became of the blocks' records.

    ``received + dropped + missing`` were sent; ``left_out`` of the received ones were too many to
    be kept.  ``crowded`` and ``oversized`` as in the probe's ``struct lost``.
    """

    received: int = 0
    dropped: int = 0
    missing: int = 0
    left_out: int = 0
    crowded: int = 0
    oversized: int = 0

    @property
    def complete(self) -> bool:
        """Whether every block that was probed is in the numbers."""
        gone = self.dropped, self.missing, self.left_out, self.crowded, self.oversized
        return not any(gone)


@dataclass(frozen=True, slots=True)
class _Row:
    """One kernel and its launches, longest first."""

    kernel: KernelLaunches
    blocks: int
    launches: tuple[Schedule, ...]

    @property
    def missing(self) -> int:
        """Blocks that the host counted and that sent no record; 0 where that is not known."""
        if self.kernel.captured:
            return sum(max(0, each.expected - each.blocks) for each in self.launches)
        return max(0, self.kernel.blocks_probed - self.blocks)

    @property
    def time(self) -> int:
        return sum(each.time for each in self.launches)

    def mean(self, values: Sequence[float]) -> float:
        """Over the launches, each weighing as much as it took."""
        weights = [max(each.time, 1) for each in self.launches]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def build_report(
    run: Run, launches: Sequence[Schedule], kept: Mapping[int, int], records: Records, *, sms: int
) -> Report:
    """The report; ``kept``: blocks by kernel id, ``sms``: of the device, 0 if that is not one."""
    rows = _rows(run, launches, kept)
    longest = sorted(launches, key=lambda each: (-each.time, each.start, each.source.launch))
    clock = " (simulated)" if run.simulated else ""
    parts: list[Part] = [_kernels(run, rows, clock)]
    shown = [row.launches[0] for row in rows[:LONGEST] if row.launches]
    if shown:
        parts.append(_launches(run, shown, clock, sms))
        parts.append(_pictures(run, shown[:PICTURES]))
        parts.append(_last_blocks(run, shown[:PICTURES], clock))
    parts += [Paragraph(text, Weight.WARNING) for text in [*_doubts(rows), *_lost(records)]]
    parts += coverage(run)
    parts += cost(run)
    data = common_data(run) | {
        "clock": "simulated" if run.simulated else "globaltimer",
        "unit": "ns",
        "sms": sms,
        "records": asdict(records),
        "kernels": [_kernel_data(row) for row in rows],
        "launches_left_out": max(0, len(longest) - IN_JSON),
        "schedules": [_launch_data(run, each) for each in longest[:IN_JSON]],
    }
    incomplete = not records.complete or any(row.missing for row in rows)
    data["partial"] = bool(data["partial"]) or incomplete
    return Report(SCHEMA, tuple(parts), data)


def _rows(run: Run, launches: Sequence[Schedule], kept: Mapping[int, int]) -> list[_Row]:
    known = {kernel.kernel_id for kernel in run.kernels}
    unnamed = [KernelLaunches(key, run.name(key), 0, 0) for key in sorted(kept) if key not in known]
    by_kernel: dict[int, list[Schedule]] = {}
    for each in launches:
        by_kernel.setdefault(each.source.kernel_id, []).append(each)
    rows = [
        _Row(
            kernel,
            kept.get(kernel.kernel_id, 0),
            tuple(sorted(by_kernel.get(kernel.kernel_id, ()), key=lambda each: -each.time)),
        )
        for kernel in (*run.kernels, *unnamed)
    ]
    return sorted(rows, key=lambda row: (-row.time, row.kernel.name))


_FIGURES = (Column("WAVES"), Column("TAIL"), Column("IMBAL"), Column("FILL"))


def _kernels(run: Run, rows: list[_Row], clock: str) -> Table:
    columns = (
        KERNEL,
        Column("LAUNCHES"),
        Column("BLOCKS"),
        Column("TIME"),
        *_FIGURES,
        Column("GAP"),
    )
    cells = []
    for row in rows:
        lower = row.kernel.partial or bool(run.snapshot) or bool(row.missing)
        head = (row.kernel.label, f"{len(row.launches):,}", count(row.blocks, lower_bound=lower))
        if not row.launches:
            cells.append((*head, *"------"))
            continue
        means = [
            row.mean([each.waves for each in row.launches]),
            row.mean([each.tail_share for each in row.launches]),
            row.mean([each.imbalance for each in row.launches]),
            row.mean([each.fill for each in row.launches]),
        ]
        cells.append((*head, duration(row.time), *_figures(*means), _gap(row)))
    title = f"Kernels: TIME is the launches' sum, what follows a mean over it{clock}"
    return Table(title, columns, tuple(cells))


def _figures(waves: float, tail: float, imbalance: float, fill: float) -> tuple[str, ...]:
    return f"{waves:.2f}", f"{tail * 100:.0f} %", f"{imbalance:.2f}x", f"{fill * 100:.0f} %"


def _gap(row: _Row) -> str:
    """The mean gap over all launches."""
    gaps = sum(each.gaps for each in row.launches)
    if not gaps:
        return "-"
    return duration(sum(each.gap_mean * each.gaps for each in row.launches) / gaps)


def _launches(run: Run, launches: Sequence[Schedule], clock: str, sms: int) -> Table:
    columns = (
        KERNEL,
        Column("LAUNCH"),
        Column("BLOCKS"),
        Column("TIME"),
        *_FIGURES,
        Column("LATE"),
        Column("SMS"),
    )
    cells = tuple(
        (
            _label(run, each),
            _number(each),
            count(each.blocks, lower_bound=each.blocks < each.expected),
            duration(each.time),
            *_figures(each.waves, each.tail_share, each.imbalance, each.fill),
            f"{each.late:,}",
            f"{each.sms}/{sms}" if sms else str(each.sms),
        )
        for each in launches
    )
    return Table(f"Longest launch of each{clock}", columns, cells)


def _label(run: Run, each: Schedule) -> str:
    return run.label(each.source.kernel_id)


def _number(each: Schedule) -> str:
    replay = f".{each.source.replay}" if each.source.replay else ""
    return f"{each.source.launch}{replay}"


def _pictures(run: Run, launches: Sequence[Schedule]) -> Table:
    columns = (
        KERNEL,
        Column("LAUNCH"),
        Column("PEAK"),
        Column("FROM START TO END", Align.LEFT),
    )
    cells = tuple(
        (_label(run, each), _number(each), f"{max(each.resident, default=0):,.0f}", _picture(each))
        for each in launches
    )
    return Table("Resident blocks over time", columns, cells)


def _picture(each: Schedule) -> str:
    top = max(each.resident, default=0.0)
    steps = len(_BARS) - 1
    bars = (_BARS[min(steps, -int(-value * steps // top))] for value in each.resident)
    return "".join(bars) if top else "(shorter than the clock's step)"


def _last_blocks(run: Run, launches: Sequence[Schedule], clock: str) -> Table:
    columns = (
        KERNEL,
        Column("LAUNCH"),
        Column("BLOCK", Align.LEFT),
        Column("SM"),
        Column("STARTED"),
        Column("TOOK"),
        Column("MEDIAN"),
    )
    cells = tuple(
        (
            _label(run, each),
            _number(each),
            ",".join(str(part) for part in coordinates(each.last.index, each.source.grid)),
            str(each.last.sm),
            f"{share(each.last.start, each.time)}",
            duration(each.last.took),
            duration(each.last.median),
        )
        for each in launches
    )
    return Table(f"Block that ended last: started at, took, median of all{clock}", columns, cells)


def coordinates(index: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """A block's x, y and z."""
    x, y, _ = grid
    return index % x, index // x % y, index // (x * y)


def _doubts(rows: list[_Row]) -> list[str]:
    return [
        f"{row.kernel.label}: {row.missing:,} blocks of probed launches are not in the numbers."
        for row in rows
        if row.missing
    ]


def _lost(records: Records) -> list[str]:
    sentences = (
        (records.dropped, "records found the ring full: collect more often (--interval)"),
        (records.missing, "records were begun and never finished"),
        (records.left_out, "records were counted and not kept: there were too many"),
        (records.crowded, "groups of lanes found no room to meet their block, which is left out"),
        (records.oversized, "groups of lanes left grids of 2^32 blocks or more: not recorded"),
    )
    return [f"{number:,} {text}." for number, text in sentences if number]


def _kernel_data(row: _Row) -> dict[str, object]:
    return launch_data(row.kernel) | {
        "partial": row.kernel.partial or bool(row.missing),
        "blocks": row.blocks,
        "blocks_expected": None if row.kernel.captured else row.kernel.blocks_probed,
        "blocks_missing": row.missing,
        "launches_recorded": len(row.launches),
        "time": row.time,
    }


def _launch_data(run: Run, each: Schedule) -> dict[str, object]:
    source = each.source
    return {
        "kernel_id": source.kernel_id,
        "name": run.name(source.kernel_id),
        "context": source.place,
        "launch_id": source.launch,
        "replay": source.replay,
        "grid": list(source.grid),
        "threads": int(source.blocks["threads"][0]),
        "blocks": each.blocks,
        "blocks_expected": each.expected,
        "start": each.start,
        "time": each.time,
        "sms": each.sms,
        "places": each.places,
        "waves": round(each.waves, 4),
        "tail": each.tail,
        "tail_share": round(each.tail_share, 4),
        "late_blocks": each.late,
        "imbalance": round(each.imbalance, 4),
        "fill": round(each.fill, 4),
        "gaps": {"count": each.gaps, "mean": round(each.gap_mean, 3), "max": each.gap_most},
        "resident": [round(value, 2) for value in each.resident],
        "last_block": asdict(each.last),
    }
