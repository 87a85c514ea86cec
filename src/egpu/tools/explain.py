"""What ``egpu run --explain`` adds to a report: how each kernel that was seen was probed, or why
not, and what ``--verbose`` adds: names in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from egpu.bpf.demangle import demangle
from egpu.report import KERNEL, Align, Column, Paragraph, Part, Report, Table, Weight
from egpu.session import Explanation, Way
from egpu.tools.names import display_names
from egpu.tools.running import UNNAMED

_ROWS = 60  # kernels in the text; JSON has all
_NAMED = 6  # kernels named with a reason


def with_explanations(report: Report, rows: Sequence[Explanation]) -> Report:
    """``report`` and what was done to each kernel: before its cost lines, under "explain"."""
    names = display_names([demangle(row.kernel) or UNNAMED for row in rows])
    added = _parts(rows[:_ROWS], names)
    if len(rows) > _ROWS:
        added.append(Paragraph(f"... and {len(rows) - _ROWS:,} more; --json has them"))
    data = {**report.data, "explain": [_data(*each) for each in zip(rows, names, strict=True)]}
    return replace(before_cost(report, added), data=data)


def with_full_names(report: Report) -> Report:
    """``report`` and, for each name that its tables shorten, the whole."""
    kernels = report.data.get("kernels")
    full: list[tuple[str, str]] = []
    for row in kernels if isinstance(kernels, list) else ():
        if isinstance(row, Mapping) and row.get("short_name", row["name"]) != row["name"]:
            full.append((str(row["short_name"]), str(row["name"])))
    if not full:
        return report
    lines = [Paragraph(f"{short} is {whole}") for short, whole in full]
    return before_cost(report, lines)


def before_cost(report: Report, added: Sequence[Part]) -> Report:
    """Every report ends with its own cost."""
    place = next(
        (
            index
            for index, part in enumerate(report.parts)
            if isinstance(part, Paragraph) and part.weight is Weight.COST
        ),
        len(report.parts),
    )
    return replace(report, parts=(*report.parts[:place], *added, *report.parts[place:]))


def _parts(rows: Sequence[Explanation], names: Sequence[str]) -> list[Part]:
    columns = (
        KERNEL,
        Column("BY", Align.LEFT),
        Column("SITES"),
        Column("REGS"),
        Column("BLOCKS/SM"),
        Column("LOCAL"),
        Column("BUILT"),
    )
    cells = tuple(_cells(row, name) for row, name in zip(rows, names, strict=False))
    title = "How each kernel was probed: sites at entry and exit, registers, resident blocks"
    parts: list[Part] = [Table(title, columns, cells)]
    reasons: dict[str, list[str]] = {}
    for row, name in zip(rows, names, strict=False):
        for text in row.why_not:
            reasons.setdefault(text, []).append(name)
    for text, kernels in reasons.items():
        more = f" and {len(kernels) - _NAMED:,} more" if len(kernels) > _NAMED else ""
        parts.append(Paragraph(f"Not probed: {', '.join(kernels[:_NAMED])}{more}: {text}"))
    return parts


def _cells(row: Explanation, name: str) -> tuple[str, ...]:
    if row.way is Way.NONE:
        return (name, row.way.value, *"-----")
    return (
        name,
        row.way.value,
        f"{row.entry_sites}+{row.exit_sites}",
        _change(row.registers_before or None, row.registers_after or None),
        _change(row.blocks_before, row.blocks_after),
        _change(row.local_before, row.local_after) if row.registers_after else "-",
        "cached" if row.cached else f"{row.build_ms:.1f} ms",
    )


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "-"
    return f"{before} -> {after}" if before != after else str(after)


def _data(row: Explanation, name: str) -> dict[str, object]:
    return asdict(row) | {
        "kernel": row.kernel,
        "name": demangle(row.kernel) or UNNAMED,
        "short_name": name,
        "way": row.way.value,
        "why_not": list(row.why_not),
        "build_ms": round(row.build_ms, 3),
        "image_ms": round(row.image_ms, 3),
        "compile_ms": round(row.compile_ms, 3),
    }
