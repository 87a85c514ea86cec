"""The tools that come with egpu: one row each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Protocol

from egpu.errors import InputError, InternalError

if TYPE_CHECKING:
    from egpu.bpf.program import Object
    from egpu.report import Report
    from egpu.session import Session
    from egpu.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool's name and what it answers; its folder and object file have the name too.

    ``samples``: it can measure a share of the blocks (constant ``every`` of its programs).
    ``timeline``: it can say what ran where and when (its ``Tool`` is a ``TimelineTool``).
    """

    name: str
    summary: str
    samples: bool = False
    timeline: bool = False


# fmt: off
TOOLS: tuple[ToolEntry, ...] = (
    ToolEntry("kernelcount", "launches, threads and blocks, by kernel and SM"),
    ToolEntry("kernellat",   "how long launches and blocks take: p50, p95, p99 and histogram",
              samples=True),
    ToolEntry("blocksched",  "which block ran on which SM and when: waves, tail, imbalance, gaps",
              timeline=True),
)
# fmt: on


class Tool(Protocol):
    """One use of a tool in one session."""

    def collect(self, session: Session) -> None:
        """Take in what is there now. Called repeatedly while the workload runs."""

    def report(self, session: Session) -> Report:
        """The report, once the workload has ended."""


class TimelineTool(Tool, Protocol):
    """A tool that can also say what ran where and when."""

    def timeline(self, session: Session) -> Timeline:
        """Everything that it kept; after :meth:`report`."""


def find_tool(name: str) -> ToolEntry | None:
    """The tool of that name, None if there is none."""
    return next((entry for entry in TOOLS if entry.name == name), None)


def load_object(entry: ToolEntry) -> Object:
    """The tool's programs. InputError if the installation lacks its object file."""
    from egpu.bpf.object import read_object  # noqa: PLC0415

    path = resources.files("egpu.tools") / entry.name / f"{entry.name}.bpf.o"
    if not path.is_file():
        raise InputError(
            "the tool's object file is missing",
            where=str(path),
            hint="reinstall egpu, or run python -m egpu.tools.build in a checkout",
        )
    return read_object(path.read_bytes(), entry.name)


def new_tool(entry: ToolEntry) -> Tool:
    """A fresh tool for one session."""
    module = importlib.import_module(f"egpu.tools.{entry.name}.tool")
    make: Callable[[], Tool] | None = getattr(module, "new_tool", None)
    if make is None:
        raise InternalError(f"{module.__name__} has no new_tool()")
    return make()
