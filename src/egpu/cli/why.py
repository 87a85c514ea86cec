"""``egpu inspect --why``: can the kernels of an image be probed, and if not, why."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from egpu.report import KERNEL, Align, Column, Paragraph, Part, Table, Weight

if TYPE_CHECKING:
    from egpu.image import KernelInfo, Member
    from egpu.session.trial import Trial, Trials

_NAMED = 6  # kernels named behind a reason


@dataclass(frozen=True, slots=True)
class Trier:
    """Tries the kernels of members and describes what came of it."""

    trials: Trials

    def tried(
        self,
        member: Member,
        kernels: Sequence[KernelInfo],
        names: Sequence[str],
        parts: list[Part],
    ) -> list[dict[str, object]]:
        """Adds to ``parts`` and gives JSON for each kernel; progress goes to standard error."""
        rows: list[Trial] = []
        with click.progressbar(
            kernels,
            label="egpu: trying kernels",
            file=sys.stderr,
            hidden=sys.stderr is None or not sys.stderr.isatty(),  # None: closed
        ) as bar:
            for kernel in bar:
                rows.append(self.trials.of(member, kernel))
        parts += [_table(rows, names), *_reasons(rows, names)]
        return [_data(row) for row in rows]


def _table(rows: Sequence[Trial], names: Sequence[str]) -> Table:
    columns = (
        KERNEL,
        Column("BY", Align.LEFT),
        Column("SITES"),
        Column("REGS"),
        Column("TOOK"),
    )
    cells = tuple(
        (
            name,
            row.way.value,
            "-" if row.reason else f"{row.entry_sites}+{row.exit_sites}",
            _registers(row),
            f"{row.took_ms:.1f} ms" if row.took_ms else "-",
        )
        for row, name in zip(rows, names, strict=True)
    )
    return Table("Can be probed: sites at entry and exit, registers", columns, cells)


def _registers(row: Trial) -> str:
    if row.registers_before and row.registers_after:
        return f"{row.registers_before} -> {row.registers_after}"
    known = row.registers_before or row.registers_after
    return str(known) if known else "-"


def _reasons(rows: Sequence[Trial], names: Sequence[str]) -> list[Part]:
    """A sentence for each reason, with the kernels that it is for."""
    found: dict[str, list[tuple[str, Trial]]] = {}
    for row, name in zip(rows, names, strict=True):
        if row.reason:
            found.setdefault(_without_name(row), []).append((name, row))
    parts: list[Part] = []
    for reason, kernels in found.items():
        more = f" and {len(kernels) - _NAMED:,} more" if len(kernels) > _NAMED else ""
        name, row = kernels[0]
        # A kernel may be called "a" or "code": where it is the only one, nothing is put for a name
        # that is shown as it is.
        said = row.reason if len(kernels) == 1 and name == row.kernel else reason
        text = f"Not: {', '.join(name for name, _ in kernels[:_NAMED])}{more}: {said}"
        parts.append(Paragraph(text, Weight.WARNING))
    for row, name in zip(rows, names, strict=True):
        if row.uncovered:
            text = f"{name}: threads that end by {', '.join(row.uncovered)} are not seen to leave"
            parts.append(Paragraph(text, Weight.WARNING))
    return parts


def _without_name(row: Trial) -> str:
    """The reason, alike for all kernels that have it."""
    name = rf"(?<![\w$.]){re.escape(row.kernel)}(?![\w$])"
    return re.sub(name, "this kernel", row.reason)


def _data(row: Trial) -> dict[str, object]:
    return asdict(row) | {
        "way": row.way.value,
        "uncovered": list(row.uncovered),
        "took_ms": round(row.took_ms, 3),
    }
