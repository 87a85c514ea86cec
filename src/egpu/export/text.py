"""Reports as text for people, at most 80 columns wide."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, TextIO, assert_never

from egpu.report import DURATION_UNITS, Align, Column, Histogram, Paragraph, Report, Table, Weight

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
_BAR = 32
_GAP = 2  # columns between the columns of a table
_LEAST = 8  # of a shortened column
_STYLES = {Weight.PLAIN: "", Weight.WARNING: "yellow", Weight.COST: "dim"}
_PREFIX = {Weight.PLAIN: "", Weight.WARNING: "! ", Weight.COST: ""}


def write_text(report: Report, stream: TextIO) -> None:
    """Write ``report`` to ``stream``, with colours if it is a terminal that has them."""
    from rich.console import Console  # noqa: PLC0415  (half of the start-up time of a command)

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704  (called while handling it) the caller decides, not rich

    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if stream.isatty() else WIDTH
    console = Plain(file=stream, width=max(width, 40), highlight=False, soft_wrap=False)
    _write(console, report)


def render_text(report: Report) -> str:
    """``report`` as plain text without colours."""
    from io import StringIO  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    stream = StringIO()
    console = Console(
        file=stream, width=WIDTH, no_color=True, highlight=False, force_terminal=False
    )
    _write(console, report)
    return stream.getvalue()


def _write(console: Console, report: Report) -> None:
    before: object = None
    for part in report.parts:
        if before is not None and not (
            isinstance(part, Paragraph) and isinstance(before, Paragraph)
        ):
            console.print()
        match part:
            case Table():
                _table(console, part)
            case Histogram():
                _histogram(console, part)
            case Paragraph():
                _paragraph(console, part)
            case _:
                assert_never(part)
        before = part


def _table(console: Console, table: Table) -> None:
    from rich.text import Text  # noqa: PLC0415

    if table.title:
        console.print(Text(table.title, style="bold"))
    head, *rows = table_lines(table, console.width)
    console.print(Text(head, style="underline"))
    for line in rows:
        console.print(Text(line))


def table_lines(table: Table, width: int) -> list[str]:
    """The head line, then the rows, none wider than ``width`` as long as the numbers allow it.

    Columns that may be shortened share what the others leave.  If that is next to nothing, the
    first column gets a line of its own above the rest.
    """
    cells = [tuple(column.title for column in table.columns), *table.rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    soft = [index for index, column in enumerate(table.columns) if column.may_shorten]
    left = width - _GAP * (len(widths) - 1)
    left -= sum(size for index, size in enumerate(widths) if index not in soft)
    if sum(widths[index] for index in soft) > left:
        if left < _LEAST * len(soft):
            rest = Table("", table.columns[1:], tuple(row[1:] for row in table.rows))
            below = ["  " + line for line in table_lines(rest, width - 2)]
            names = [_shorten(row[0], width, table.columns[0]) for row in table.rows]
            return [
                below[0],
                *(line for pair in zip(names, below[1:], strict=True) for line in pair),
            ]
        for position, index in enumerate(sorted(soft, key=lambda at: widths[at])):
            widths[index] = min(widths[index], left // (len(soft) - position))
            left -= widths[index]
    return [_row(table, row, widths) for row in cells]


def _row(table: Table, row: tuple[str, ...], widths: list[int]) -> str:
    parts = []
    for column, cell, size in zip(table.columns, row, widths, strict=True):
        text = _shorten(cell, size, column)
        parts.append(text.rjust(size) if column.align is Align.RIGHT else text.ljust(size))
    return (" " * _GAP).join(parts).rstrip()


def _shorten(text: str, size: int, column: Column) -> str:
    if len(text) <= size:
        return text
    end = size * 3 // 5 if column.keep_end else 0
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"


def _paragraph(console: Console, paragraph: Paragraph) -> None:
    from rich.text import Text  # noqa: PLC0415

    prefix = _PREFIX[paragraph.weight]
    for line in textwrap.wrap(
        paragraph.text, console.width - len(prefix), subsequent_indent="  ", break_on_hyphens=False
    ):
        console.print(Text(prefix + line, style=_STYLES[paragraph.weight]))
        prefix = " " * len(prefix)


def _histogram(console: Console, histogram: Histogram) -> None:
    from rich.text import Text  # noqa: PLC0415

    if histogram.title:
        console.print(Text(histogram.title, style="bold"))
    for line in histogram_lines(histogram):
        console.print(Text(line))


def histogram_lines(histogram: Histogram) -> list[str]:
    """One line per bucket: range, count and a bar; empty buckets between full ones are kept."""
    full = [index for index, row in enumerate(histogram.buckets) if row[2]]
    if not full:
        return ["(nothing)"]
    rows = histogram.buckets[full[0] : full[-1] + 1]
    most = max(count for _, _, count in rows)
    labels = [
        f"[{_quantity(low, histogram.unit)}, {_quantity(high, histogram.unit)})"
        for low, high, _ in rows
    ]
    label_width = max(len(label) for label in labels)
    count_width = max(len(f"{count:,}") for _, _, count in rows)
    lines = []
    for label, (_, _, count) in zip(labels, rows, strict=True):
        length = max(1, round(count * _BAR / most)) if count else 0
        bar = "@" * length
        lines.append(f"{label:<{label_width}}  {count:>{count_width},}  |{bar:<{_BAR}}|")
    return lines


def _quantity(value: int, unit: str) -> str:
    if unit == "ns":
        return _edge(value)
    return f"{value}{unit and ' ' + unit}"


def _edge(nanoseconds: int) -> str:
    """A bucket's edge: a power of two, shown short."""
    for unit, name in DURATION_UNITS:
        if nanoseconds >= unit * 10 or unit == 1:
            return f"{nanoseconds // unit}{name}"
    return "0ns"
