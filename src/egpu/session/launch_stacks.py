"""From which stacks launches came, by their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from egpu.agent.frames import CallFrame
from egpu.errors import InputError
from egpu.session.stacks import StackFrame, named

_Kept = tuple[tuple[int, dict[int, int]], ...]


@dataclass(frozen=True, slots=True)
class LaunchStack:
    """One stack of process ``pid`` and the ids of the probed launches that came from it, of those
    that are kept."""

    pid: int
    number: int
    launches: tuple[int, ...]
    frames: tuple[StackFrame, ...]


class LaunchStacks:
    """What the agents kept: of each process its last probed launches (LAUNCHES_KEPT)."""

    def __init__(
        self,
        kept: Callable[[], _Kept],
        stacks: Callable[[], Mapping[int, tuple[CallFrame, ...]]],
        *,
        asked: bool,
    ) -> None:
        self._kept = kept
        self._stacks = stacks
        self._asked = asked

    def of(self, launch_id: int, pid: int | None) -> tuple[StackFrame, ...] | None:
        """See ``Session.stack_of``."""
        if not self._asked:
            raise InputError(
                "the session keeps no stacks of launches",
                hint="run it with Options(stacks=True), or --stacks",
            )
        found = {
            process: launches[launch_id]
            for process, launches in self._kept()
            if launch_id in launches and pid in (None, process)
        }
        if len(found) > 1:
            raise InputError(
                f"launch {launch_id} is of several processes: {', '.join(map(str, sorted(found)))}",
                hint="name one: pid=",
            )
        frames = self._stacks().get(next(iter(found.values()))) if found else None
        return None if frames is None else named(frames)

    def all(self) -> tuple[LaunchStack, ...]:
        """Every stack with its launches, the one with the most first."""
        rows = []
        stacks = self._stacks()
        for pid, launches in self._kept():
            by_number: dict[int, list[int]] = {}
            for launch_id, number in launches.items():
                by_number.setdefault(number, []).append(launch_id)
            rows += [
                LaunchStack(pid, number, tuple(sorted(ids)), named(stacks[number]))
                for number, ids in by_number.items()
                if number in stacks
            ]
        return tuple(sorted(rows, key=lambda row: (-len(row.launches), row.pid, row.launches[0])))
