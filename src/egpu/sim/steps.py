"""A kernel as a list of steps: what the executor walks over."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from egpu.errors import UnsupportedError
from egpu.sim.operands import Layout, Read, Run, Write


class Action(enum.Enum):
    """What a step does to the flow of its threads."""

    PLAIN = "plain"
    BRANCH = "branch"
    SWITCH = "switch"  # brx.idx
    EXIT = "exit"
    TRAP = "trap"
    BARRIER = "barrier"
    COLLECTIVE = "collective"
    REFUSE = "refuse"  # raises ``refusal`` when a thread gets here


@dataclass(frozen=True, slots=True)
class Barrier:
    """``form`` "sync", "arrive" or the reduction ("popc", "and", "or"); ``number`` and ``count``
    (None: all threads) are read per thread; a reduction has ``predicate`` and ``write``."""

    form: str
    number: Read
    count: Read | None = None
    predicate: Read | None = None
    write: Write | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """Waits for the lanes that ``mask`` names. ``anywhere``: they may wait at other such steps
    (bar.warp.sync), else they must be at this one."""

    mask: Read
    anywhere: bool


@dataclass(slots=True)
class Step:
    """``target`` and ``targets`` are step numbers; ``line`` counts from 1 in the module's text."""

    action: Action
    line: int
    text: str
    run: Run | None = None
    guard: int | None = None
    guard_negated: bool = False
    target: int = -1
    targets: tuple[int, ...] = ()
    index: Read | None = None
    barrier: Barrier | None = None
    collective: Collective | None = None
    refusal: UnsupportedError | None = None


@dataclass(slots=True)
class Kernel:
    """A compiled kernel. ``max_threads`` comes from .maxntid or .reqntid, 1024 without."""

    name: str
    steps: list[Step]
    layout: Layout
    parameter_bytes: int
    max_threads: int = 1024
    required_block: tuple[int, int, int] | None = None
