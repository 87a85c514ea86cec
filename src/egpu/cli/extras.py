"""What ``egpu run`` adds to a report when it is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from egpu.cli import failure
from egpu.errors import InputError

if TYPE_CHECKING:
    from egpu.report import Report
    from egpu.session import Session
    from egpu.tools.registry import TimelineTool, Tool, ToolEntry


@dataclass(frozen=True, slots=True)
class Extras:
    """``explain``: how each kernel was probed, ``stacks``: from where launches came,
    ``verbose``: names in full."""

    explain: bool = False
    stacks: bool = False
    verbose: bool = False

    def added_to(self, report: Report, session: Session) -> Report:
        """``report`` and what was asked for."""
        from egpu.tools.explain import with_explanations, with_full_names  # noqa: PLC0415
        from egpu.tools.stacks import with_stacks  # noqa: PLC0415

        if self.explain:
            report = with_explanations(report, session.explain())
        if self.stacks:
            report = with_stacks(report, session.launch_stacks())
        return with_full_names(report) if self.verbose else report


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool, what is added to its report, and the file for its timeline."""

    tool: Tool
    extras: Extras
    picture: BinaryIO | None

    def collect(self, session: Session) -> None:
        """Have the tool take in what is there."""
        self.tool.collect(session)

    def report(self, session: Session) -> Report:
        """The tool's report; the timeline is written as well."""
        report = self.extras.added_to(self.tool.report(session), session)
        if self.picture is not None:
            self._draw(session, self.picture)
        return report

    def _draw(self, session: Session, picture: BinaryIO) -> None:
        from egpu.export.perfetto import write_perfetto  # noqa: PLC0415

        tool = cast("TimelineTool", self.tool)
        try:
            slices = write_perfetto(tool.timeline(session), picture)
            picture.flush()
        except OSError as error:  # the report is there all the same
            failure.say(error, f"{picture.name} is incomplete")
            failure.discard(picture)
            return
        click.echo(f"egpu: {slices:,} blocks written to {picture.name}", err=True)


@contextmanager
def picture_file(tool: ToolEntry | None, path: Path | None) -> Iterator[BinaryIO | None]:
    """The file for the timeline, opened before the workload starts, as it says what is missing."""
    if path is None:
        yield None
        return
    if tool is None or not tool.timeline:
        raise click.UsageError("--perfetto is for tools that keep a timeline: blocksched")
    from egpu.export.perfetto import require_perfetto  # noqa: PLC0415

    require_perfetto()
    try:
        stream = path.open("wb")
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", where=str(path)) from error
    with stream:
        yield stream
