"""``egpu cache``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from egpu.cli.output import destination, json_option, write_report
from egpu.report import KERNEL, Align, Column, Paragraph, Part, Report, Table, Weight, byte_text

if TYPE_CHECKING:
    from egpu.session.cache_listing import CacheEntry

ROWS = 40  # entries shown in the text; JSON has all
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@click.group("cache")
def command() -> None:
    """Show and clear the twins that are kept on disk.

    EGPU_CACHE_DIR says where they are kept and EGPU_CACHE_LIMIT how much they may take.
    """


@command.command("path")
def show_path() -> None:
    """Print the folder."""
    from egpu.session.cache import default_directory  # noqa: PLC0415

    click.echo(str(default_directory()))


@command.command("list")
@json_option
def show_list(*, as_json: bool) -> None:
    """Show what is kept, most recently used first."""
    from egpu.session.cache import (  # noqa: PLC0415
        cache_limit,
        check_directory,
        default_directory,
    )
    from egpu.session.cache_listing import list_entries  # noqa: PLC0415

    folder, limit = default_directory(), cache_limit()
    check_directory(folder)
    entries = list_entries(folder)
    total = sum(entry.size for entry in entries)
    lead = f"{folder}: {len(entries):,} twins, {byte_text(total)} of at most {byte_text(limit)}"
    parts: list[Part] = [Paragraph(lead)]
    if entries:
        parts.append(_table(entries[:ROWS]))
    if len(entries) > ROWS:
        parts.append(Paragraph(f"... and {len(entries) - ROWS:,} more; --json has them"))
    old = sum(not entry.current for entry in entries)
    if old:
        text = f"{old:,} are of another version of egpu and will make room as others come."
        parts.append(Paragraph(text, Weight.WARNING))
    data = {
        "directory": str(folder),
        "limit": limit,
        "bytes": total,
        "entries": [_data(entry) for entry in entries],
    }
    with destination(None) as stream:
        write_report(Report("cache/1", tuple(parts), data), stream, as_json=as_json)


@command.command("clear")
@click.option("--keep", metavar="SIZE", default="0", help="Leave the last used SIZE (64M, 1G).")
@json_option
def clear_cache(*, keep: str, as_json: bool) -> int:
    """Remove what is kept.  Sessions that run go on and keep what they build from now on.

    The exit code is 1 if something could not be removed.
    """
    from egpu.session.cache import (  # noqa: PLC0415
        byte_size,
        check_directory,
        default_directory,
    )
    from egpu.session.cache_listing import clear  # noqa: PLC0415

    folder = default_directory()
    check_directory(folder)
    cleared = clear(folder, keep=byte_size(keep, "--keep"))
    text = f"{folder}: {cleared.entries:,} twins removed, {byte_text(cleared.bytes)}"
    parts: list[Part] = [Paragraph(text)]
    if cleared.failed:
        parts.append(Paragraph(f"{cleared.failed:,} could not be removed", Weight.WARNING))
    data = {
        "directory": str(folder),
        "removed": cleared.entries,
        "bytes": cleared.bytes,
        "failed": cleared.failed,
    }
    with destination(None) as stream:
        write_report(Report("cache-clear/1", tuple(parts), data), stream, as_json=as_json)
    return 1 if cleared.failed else 0


def _table(entries: tuple[CacheEntry, ...]) -> Table:
    from egpu.tools.names import display_names  # noqa: PLC0415

    kernels = [entry.origin.kernel if entry.origin else "" for entry in entries]
    names = display_names(kernels)
    columns = (
        KERNEL,
        Column("PROGRAMS", Align.LEFT, may_shorten=True),
        Column("ARCH"),
        Column("SIZE"),
        Column("USED"),
        Column("EGPU"),
    )
    return Table(
        "", columns, tuple(_row(*each) for each in zip(entries, kernels, names, strict=True))
    )


def _row(entry: CacheEntry, kernel: str, name: str) -> tuple[str, ...]:
    made = entry.origin
    return (
        name if kernel else "(of another format)",
        ", ".join(made.programs) if made else "-",
        f"sm_{made.arch}" if made and made.arch else "-",
        byte_text(entry.size),
        _age(entry.age_s),
        (made.version if made else "?") + ("" if entry.current else " old"),
    )


def _age(seconds: float) -> str:
    unit, name = next((row for row in _AGES if seconds >= row[0]), _AGES[-1])
    return f"{seconds / unit:.0f} {name} ago"


def _data(entry: CacheEntry) -> dict[str, object]:
    made = entry.origin
    return {
        "file": entry.path.name,
        "bytes": entry.size,
        "age_s": round(entry.age_s, 3),
        "current": entry.current,
        "kernel": made.kernel if made else None,
        "programs": list(made.programs) if made else [],
        "arch": made.arch if made else None,
        "version": made.version if made else None,
    }
