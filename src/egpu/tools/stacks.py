"""What ``egpu run --stacks`` adds to a report: the host stacks from which launches came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from egpu.report import Align, Column, Paragraph, Part, Report, Table
from egpu.session import LaunchStack
from egpu.tools.explain import before_cost

_ROWS = 32  # stacks in the text; JSON has all


def with_stacks(report: Report, rows: Sequence[LaunchStack]) -> Report:
    """``report`` and every stack with its launches: before its cost lines, under "stacks"."""
    added: list[Part] = [Paragraph("Stacks: no probed launch")]
    if rows:
        columns = (
            Column("LAUNCHES"),
            Column("IDS"),
            Column("FROM, INNERMOST FIRST", Align.LEFT, may_shorten=True),
        )
        cells = tuple(
            (f"{len(row.launches):,}", _ids(row.launches), " < ".join(map(str, row.frames)))
            for row in rows[:_ROWS]
        )
        added = [Table("Stacks of the probed launches", columns, cells)]
    if len(rows) > _ROWS:
        added.append(Paragraph(f"... and {len(rows) - _ROWS:,} more; --json has them"))
    data = {**report.data, "stacks": [asdict(row) for row in rows]}
    return replace(before_cost(report, added), data=data)


def _ids(launches: Sequence[int]) -> str:
    first, last = launches[0], launches[-1]
    return str(first) if first == last else f"{first}-{last}"
