"""What a report is made of: plain values that tools fill in and exporters render.

They stand below both, so that tools know no format and exporters know no tool.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

DURATION_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))


class Align(enum.Enum):
    """How the cells of a column stand."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one that may be shortened gives way when the line is too long.

    ``keep_end``: cells are then cut in their middle, since their ends tell them apart.
    """

    title: str
    align: Align = Align.RIGHT
    may_shorten: bool = False
    keep_end: bool = False


KERNEL = Column("KERNEL", Align.LEFT, may_shorten=True, keep_end=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of ready-made cells under ``columns``."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by range: (inclusive lower end, exclusive upper end, count), ascending.

    ``unit`` names what the ends are in ("ns" is rendered as readable durations).
    """

    title: str
    unit: str
    buckets: tuple[tuple[int, int, int], ...]


class Weight(enum.Enum):
    """How a paragraph is meant."""

    PLAIN = "plain"
    WARNING = "warning"  # something is missing or cannot be trusted
    COST = "cost"  # what egpu itself cost


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line of text, wrapped by the exporter."""

    text: str
    weight: Weight = Weight.PLAIN


Part = Table | Histogram | Paragraph


@dataclass(frozen=True, slots=True)
class Report:
    """A finished report.

    ``schema`` ("kernelcount/1") names the layout of ``data``, which holds only what JSON knows; the
    number rises when a key goes or changes its meaning, not when one is added.
    """

    schema: str
    parts: tuple[Part, ...]
    data: Mapping[str, object] = field(default_factory=dict)


def duration(nanoseconds: float) -> str:
    """A readable duration with three significant digits: "512 ns", "1.05 us", "12.3 ms"."""
    # 999.6 us would print as "1000 us": from there on the larger unit has it.
    unit, name = next(
        (row for row in DURATION_UNITS if nanoseconds >= row[0] * 0.9995), DURATION_UNITS[-1]
    )
    scaled = nanoseconds / unit
    digits = 0 if unit == 1 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f} {name}"


def byte_text(number: int) -> str:
    """A readable number of bytes: "512 B", "1.5 KiB", "256 MiB"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << shift:
            scaled = number / (1 << shift)
            return f"{scaled:.0f} {unit}" if scaled >= 99.5 else f"{scaled:.3g} {unit}"
    return f"{number} B"
